// One training step in counts, without times: what every rank issues, in host order.
//
// A row is what one marker pair can bracket on one stream (DESIGN section 3). Row numbers are event ids and host-issue
// positions; every dependency points to a smaller id: stream order, communicator order, `waits` (cudaStreamWaitEvent),
// host order, `host_wait`. So the graph is acyclic by construction and one forward pass can time it.
//
// Rows that cost the same share a Work entry (what is priced), rows that allocate the same share a
// LayerProgram slice (what memory replay walks); only ids differ. That is what makes building and
// timing a 96-layer step a matter of microseconds without folding the layers themselves.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sim/base/letters.h"
#include "sim/base/units.h"
#include "sim/graph/layers/layer_program.h"
#include "sim/spec/cluster.h"
#include "sim/spec/plan.h"

namespace foreshard {

using EventId = std::int32_t;
inline constexpr EventId kNoEvent = -1;

enum class EventKind : std::uint8_t {
  kAllGatherCopyIn,
  kAllGather,
  kAllGatherCopyOut,
  kForward,
  kLoss,  // forward and backward of the loss
  kRecompute,
  kBackward,
  kReshard,  // copies the kept slice when parameters are resharded to a smaller group
  kReduceScatterCopyIn,
  kReduceScatter,
  kAllReduce,
  kAccumulate,  // cast to the stored dtype and/or add to the gradient that is there
  kGradNorm,
  kGradScale,
  kOptimizer,
  kHostToDevice,  // shards of the parameters, with CPU offload
  kDeviceToHost,  // reduced gradients, with CPU offload
  kBroadcast,
  kReduce,           // to one rank
  kGradientCopyIn,   // gradients into a bucket
  kGradientCopyOut,  // a reduced bucket back into gradients
  kQuantize,
  kDequantize,
  kStorageRead,  // NVMe
  kStorageWrite,
  kHostOptimizer,  // the step on the host's cores
  kAllToAll,
  kSendRecv,  // a batch of transfers between two ranks of a pipeline
};
inline constexpr std::size_t kEventKinds = 28;
constexpr const char* to_string(EventKind kind) {
  return word_at(kind, "all_gather_copy_in", "all_gather", "all_gather_copy_out", "forward", "loss", "recompute",
      "backward", "reshard", "reduce_scatter_copy_in", "reduce_scatter", "all_reduce", "accumulate", "grad_norm",
      "grad_scale", "optimizer", "host_to_device", "device_to_host", "broadcast", "reduce", "gradient_copy_in",
      "gradient_copy_out", "quantize", "dequantize", "storage_read", "storage_write", "host_optimizer", "all_to_all",
      "send_recv");
}
constexpr bool is_of_optimizer(EventKind kind) {
  using enum EventKind;
  return kind == kGradNorm || kind == kGradScale || kind == kOptimizer || kind == kHostOptimizer;
}
constexpr bool is_collective(EventKind kind) {
  return kind == EventKind::kAllGather || kind == EventKind::kReduceScatter || kind == EventKind::kAllReduce ||
         kind == EventKind::kBroadcast || kind == EventKind::kReduce || kind == EventKind::kAllToAll ||
         kind == EventKind::kSendRecv;
}

// The last five are the streams of communicators of the mesh's axes: of those inside layers, tp,
// cp, and ep with etp; and of pp, whose sends that are no batch's have one of their own.
enum class Stream : std::uint8_t {
  kCompute,
  kCopyIn,
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kTensor,
  kContext,
  kExpert,
  kPipeline,
  kPipelineSend
};
inline constexpr std::size_t kStreams = 10;
constexpr const char* to_string(Stream stream) {
  return word_at(
      stream, {"compute", "all_gather_copy_in", "all_gather", "reduce_scatter", "all_reduce", "tensor_parallel",
                  "context_parallel", "expert_parallel", "pipeline_parallel", "pipeline_send"});
}
// Streams as bits.
using StreamSet = std::uint16_t;
constexpr StreamSet only(Stream stream) { return static_cast<StreamSet>(1U << static_cast<unsigned>(stream)); }

// A FIFO of collectives: operations on one communicator run one after another in issue order, whatever their streams.
struct Communicator {
  std::string name;  // "shard", "replicate", "post_forward", "reduce_scatter"
  GroupShape group;
  // Collectives of different units do not queue on each other (one communicator per unit, resharding to small groups).
  bool per_unit = false;
};
inline constexpr std::uint8_t kNoCommunicator = 255;

// Whose Python calls a collective, which is what its call takes the host.
enum class Caller : std::uint8_t {
  kRuntime,
  kFunctional,      // a layer, through torch.distributed._functional_collectives
  kRedistribution,  // a layer's DTensor that changes its placement, with its autograd function
};

// What a row costs, in counts.
struct Work {
  EventKind kind = EventKind::kForward;
  std::uint8_t communicator = kNoCommunicator;
  std::uint16_t hooks = 0;     // FSDP hook calls of the host before it enqueues
  std::uint16_t launches = 0;  // kernels the host enqueues
  bool to_neighbour = false;   // all-to-all round a ring: all of it goes to one rank
  Caller caller = Caller::kRuntime;
  bool begins = false;        // the first row of a micro-batch's loss, of a layer that runs again
  bool captured = false;      // the kernels of a layer: one CUDA graph
  std::uint16_t copies = 1;   // all-to-all of rows: LayerCollective::copies
  std::uint32_t tensors = 0;  // parameters that the host goes through one by one for it
  std::uint32_t kernels_begin = 0;
  std::uint32_t kernels_end = 0;
  Bytes bytes;  // collectives: the whole unsharded buffer, as nccl-tests; copies: bytes written
  Flops flops;
  bool operator==(const Work&) const = default;
};

struct Row {
  EventKind kind = EventKind::kForward;
  Stream stream = Stream::kCompute;
  // Whose FIFO it joins; none when the unit has a communicator of its own.
  std::uint8_t communicator = kNoCommunicator;
  std::uint8_t wait_count = 0;
  std::uint32_t waits_begin = 0;
  EventId host_wait = kNoEvent;
  std::uint16_t work = 0;
  // Streams (bits) whose head may start once this row has ended: its own, waiting ones, the
  // communicator's next. It lets the simulator look at nothing but what can go on.
  StreamSet wakes = 0;
  bool operator==(const Row&) const = default;
};
static_assert(sizeof(Row) == 16);

// One step of a row's memory log, in host order. Layer phases replay a slice of the layer's program, so that identical
// layers share it; `target` is a buffer for kAllocate and kFree, else an index into EventGraph::executions.
struct MemoryAction {
  enum class Kind : std::uint8_t {
    kAllocate,
    kFree,
    kStore,  // the buffer is a sharded gradient from now on
    kKeep,   // the buffer is an unsharded gradient kept for later micro-batches from now on
    kForward,
    kRecompute,
    kBackward,
    kFreeGradients,  // weight gradients but the last parameter's
    kFreeLastGradient,
  };
  static constexpr std::uint16_t kWhole = 65535;
  constexpr MemoryAction(Kind k, std::int32_t t, std::uint16_t s = kWhole, std::uint8_t n = 1)
      : kind(k), segments(n), segment(s), target(t) {}
  Kind kind;
  // kForward, kRecompute, kBackward: the first segment of the phase and how many; kFreeGradients
  // and kFreeLastGradient: whose (the layer's part). kWhole: all of it. kFree: the streams that
  // were recorded (Tensor.record_stream); kWhole: none.
  std::uint8_t segments;
  std::uint16_t segment;
  std::int32_t target;
  // kFree: the block is back only once these have done what they were given before it was freed.
  constexpr StreamSet recorded() const { return kind == Kind::kFree && segment != kWhole ? segment : StreamSet{0}; }
  bool operator==(const MemoryAction&) const = default;
};

// What a row of runtime native does where it writes gradients.
enum class SumMode : std::uint8_t {
  kBegin,  // overwrites what is there; of a backward: its unit's gradients begin
  kAdd,    // adds to what is there, in rank order
  kApart,  // a reduce-scatter's sum stays by itself, for the accumulation whose `buffer` it is
};

// Who a row belongs to and what happens to memory when the host issues it.
struct RowDetail {
  std::int32_t unit = -1;
  std::int32_t layer = -1;  // index into ModelSpec::order
  std::int32_t microbatch = 0;
  std::uint32_t actions_begin = 0;
  std::uint32_t actions_end = 0;
  // Runtime native: the buffer a gather or copy fills, backward writes gradients to, or a reduction reads.
  std::int32_t buffer = -1;
  // Runtime native, the other operand: this rank's piece that a gather or a copy to the device reads
  // (-1: it is in place), the kept slice that a reshard fills, where a reduction's sum goes, the
  // gradient that a copy to the host fills.
  std::int32_t other = -1;
  SumMode sum = SumMode::kBegin;
  bool operator==(const RowDetail&) const = default;
};

// Which of a unit's memory between steps a buffer is (runtime native; of ZeRO-3 the masters, which
// are there before the optimizer makes states).
enum class BufferRole : std::uint8_t {
  kNone,
  kMaster,    // of the shard, in the stored dtype
  kShadow,    // of the shard, in the compute dtype
  kGradient,  // of the shard, which the optimizer reads
  kFirstMoment,
  kSecondMoment,
  kPostForward,   // the slice that is kept for a gather in a smaller group
  kScratch,       // of a communicator of CPU ranks: one each, in their order
  kUnitGradient,  // of the whole unit, as backward writes it
};

// Where a buffer lives: a stream's pool of the caching allocator, by allocation stream.
struct Buffer {
  MemoryCategory category = MemoryCategory::kActivation;
  Stream pool = Stream::kCompute;
  std::int32_t unit = -1;
  Bytes bytes;  // as the allocator counts: rounded up to 512
  // Tensors it consists of, one per parameter, allocated and freed one after the other: index into
  // EventGraph::parts; -1: a single one.
  std::int32_t parts = -1;
  bool on_host = false;  // pinned or pageable memory of the host
  BufferRole role = BufferRole::kNone;
  bool operator==(const Buffer&) const = default;
};

// A row that is one side of a transfer between two ranks of a pipeline. kBoth: of a batch, which moves when both sides
// have begun. kSend and kReceive: of one transfer, whose sender does not wait for who receives it (it is buffered, or
// posted long before). The i-th of this rank with `peer` meets the i-th of that one with this rank; a send, a receive.
struct Exchange {
  enum class Side : std::uint8_t { kBoth, kSend, kReceive };
  EventId row = kNoEvent;
  std::int32_t peer = 0;  // rank of the pipeline
  Side side = Side::kBoth;
  bool operator==(const Exchange&) const = default;
};

// One execution of a layer in a micro-batch: its slots are buffers first_buffer .. first_buffer + slots.
struct LayerExecution {
  std::int32_t layer = 0;
  std::int32_t microbatch = 0;
  std::int32_t unit = 0;
  std::uint32_t program = 0;
  std::int32_t first_buffer = 0;
  // The execution whose weight gradients this one's backward adds to its own and drops
  // (LayerPhaseProgram::kEarlierGradient): the next call of the same module, or a tied head; -1.
  std::int32_t earlier = -1;
  // The execution whose slots 0 and 1 are LayerPhaseProgram::kWaiting: of the embedding that began
  // the chain which ends here; -1.
  std::int32_t joined = -1;
};

struct Unit {
  std::string name;  // "embedding", "layers.17", "layers.4-7", "norm+head", "root"
  std::int64_t parameters = 0;
  std::int64_t numel = 0;        // unpadded
  std::int64_t shard_numel = 0;  // padded elements of one rank
  std::int64_t padded_numel() const { return shard_numel * shards; }
  std::int64_t shards = 1;
  Reshard reshard;
};

// Who issues the rows of a step.
struct HostCode {
  bool python = false;             // an interpreter and autograd, call by call; else the engine
  bool compiled = false;           // its layers by torch.compile
  bool engine = false;             // its layers are modules of TransformerEngine and Megatron-Core
  std::uint8_t cast_launches = 0;  // kernels that cast an operand to fp8, group by group
  bool captured = false;           // forward and backward of all micro-batches are one CUDA graph
  bool dtensors = false;           // its parameters are DTensors outside of forward and backward
  bool reducer = false;            // its gradients are reduced by DDP's reducer, in C++
  bool modules = false;            // its hooks are DeepSpeed's, around every module
  // Its parameters were whole before they were sharded: on the host, or on the device.
  bool from_host = false, from_device = false;
  bool empties_cache = false;  // torch.cuda.empty_cache() between forward and backward
  bool operator==(const HostCode&) const = default;
};

struct EventGraph {
  static constexpr int kSchema = 1;

  std::vector<Row> rows;
  std::vector<RowDetail> details;
  std::vector<EventId> waits;
  std::vector<Work> works;
  std::vector<Kernel> kernels;
  std::vector<Communicator> communicators;
  std::vector<Unit> units;
  EventId final_host_wait = kNoEvent;  // the host awaits its end before the next step
  // Of a rank of a pipeline: the rows that meet others', in their order, and the graphs of all
  // ranks, but for this one's own place, which is null. Empty: there is no pipeline.
  std::vector<Exchange> exchanges;
  std::int32_t pipeline_rank = 0;
  std::vector<std::shared_ptr<const EventGraph>> pipeline;
  HostCode host;  // what issues the rows

  // Memory: ids below first_own_buffer belong to the slots of `executions`, the others are `buffers`.
  std::int32_t first_own_buffer = 0;
  std::vector<Buffer> buffers;
  std::vector<std::vector<Bytes>> parts;  // as allocated; zero: that parameter has no such tensor
  std::vector<std::int32_t> persistent;   // alive before the first row, most of them after the last (states, shards)
  std::vector<LayerExecution> executions;
  std::vector<std::shared_ptr<const LayerProgram>> programs;
  std::vector<MemoryAction> actions;

  std::span<const EventId> waits_of(EventId id) const {
    const Row& row = rows[at(id)];
    return {waits.data() + row.waits_begin, row.wait_count};
  }
  std::span<const Kernel> kernels_of(const Work& work) const {
    return std::span(kernels).subspan(work.kernels_begin, work.kernels_end - work.kernels_begin);
  }
  void clear();  // keeps the memory
  std::int32_t buffer_count() const { return first_own_buffer + static_cast<std::int32_t>(buffers.size()); }
  Buffer buffer(std::int32_t id) const;  // whichever table it lives in
  // Tensor of a layer execution ("q_rope"), or the category of a unit's buffer.
  std::string buffer_name(std::int32_t id) const;
  // The execution a slot buffer belongs to; nullptr for a unit's own buffer.
  const LayerExecution* execution_of(std::int32_t buffer) const;
  const LayerProgram& program(const LayerExecution& execution) const { return *programs[execution.program]; }

  // Hash of rows, waits, works, buffers and the schema version; calibration never changes it.
  std::string fingerprint() const;
};

}
