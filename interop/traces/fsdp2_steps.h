// The steps of an FSDP2 job in a Kineto trace, in the words of our events: which unit's all-gather,
// forward, reduction ran when.
//
// Read from the record_function ranges that fully_shard writes (PyTorch 2.4 and later,
// torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py, _fsdp_state.py): "FSDP::pre_forward
// (layers.3)", "FSDP::all_gather (layers.3)" and so on, and from "Optimizer.step#...". A step ends
// with the optimizer's last piece of work, as in a forecast; "ProfilerStep#N" gives it its number.
// Where no optimizer range is in the trace (a hand-written update), the ProfilerStep marks end
// the steps.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "interop/traces/kineto.h"
#include "interop/traces/trace_bytes.h"
#include "sim/graph/event_graph.h"

namespace foreshard {

// What a trace of torch.profiler says of a job beside the times of its steps: the machine, the
// process groups, the shapes of tensors and which kernels were chosen.
//
// Shapes are there with record_shapes=True. Of a unit's parameters they are those of the gradients
// that are packed for its reduce-scatter (fsdp::chunk_cat, torch/distributed/fsdp/_fully_shard/
// _fsdp_collectives.py): whole, in the order of registration, trained ones only.
struct TraceFacts {
  std::string backend;  // "nccl"
  Bytes device_memory;
  std::vector<TracedGroup> groups;
  bool has_shapes = false;

  std::map<std::string, std::vector<TensorShape>> parameters;  // by unit, as FsdpTrace::units
  // Tables of forward, [rows, hidden], as they were read; the longest is that of tokens.
  std::vector<TensorShape> tables;
  std::int64_t micro_batch = 0, sequence = 0;          // of what the longest table was read with
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;  // kv_heads: as attention got them
  std::string attention;                               // operator of forward: "aten::_flash_..."

  std::string optimizer;       // "AdamW"; "" without a range
  std::string optimizer_step;  // "fused", "foreach" or "loop"
  std::string master_dtype;    // of the optimizer's kernels: "float", "c10::BFloat16"
  bool compiled = false;       // kernels of Inductor or its ranges
};

TraceFacts read_facts(const KinetoTrace& trace);

// Which other library's ranges are in a trace without FSDP2's: "FSDP1", "DDP", "DeepSpeed"; "".
std::string other_library(const KinetoTrace& trace);

// Consecutive work of one kind on one unit: from the first piece's begin to the last one's end.
struct TraceRun {
  EventKind kind = EventKind::kForward;
  int unit = -1;  // index into FsdpTrace::units; -1: of the whole step
  int microbatch = 0;
  Time issue;  // by the host, of the first piece
  Time begin, end;
  Time busy;  // of its pieces, one after another
  int pieces = 0;
  int products = 0;  // of them, matrix products, and attention of forward
  int attentions = 0;
  std::uint32_t message = 0;  // of a collective: index into FsdpTrace::messages; 0: not told
};

// Work that FSDP2 and the training step do not account for: logging, data, other libraries.
struct OutsideWork {
  std::string what;  // "all_reduce before forward"
  int pieces = 0;
  Time time;
};

struct JobStep {
  std::int64_t number = 0;
  Time begin, end;             // ends of two optimizers
  std::vector<TraceRun> runs;  // by issue
  std::vector<OutsideWork> outside;
};

struct FsdpTrace {
  std::string file;
  std::int64_t rank = -1, world = -1;
  std::int64_t base_nanoseconds = 0;
  std::string device;
  bool of_gpu = false;
  // Names of the modules as PyTorch prints them, in the order of their first forward; "" is the
  // root module's own unit. A unit of several modules reads "norm, output".
  std::vector<std::string> units;
  std::vector<JobStep> steps;
  Bytes peak_allocated, peak_reserved;  // of the GPU, within the steps; 0: not recorded
  Bytes grown;                          // what is held, since the peaks count
  std::optional<double> retries;        // of its allocator, a step
  // From the file beside it that interop/record/timed.py writes; "" and none without it.
  std::string host, created;
  std::vector<std::pair<std::string, std::string>> versions;
  std::vector<Time> without_profiler;  // steps before the profiler began
  // Of one step, where that file or the trace tells.
  std::vector<TracedCollectiveCall> collectives;
  std::vector<TracedMessage> messages;
  TraceFacts facts;
  std::vector<std::string> notes;
};

// Throws Error(kInvalidInput), naming the file, where the trace has no FSDP2 ranges or no whole step.
FsdpTrace read_fsdp_steps(const KinetoTrace& trace);

// The record_function ranges that fully_shard, optimizers and torch.profiler write into a trace.
struct FsdpRange {
  enum class Label : std::uint8_t {
    kNone,
    kRootPreForward,
    kPreForward,
    kPostForward,
    kPreBackward,
    kAllGather,
    kCopyOut,
    kAccumulate,  // post_backward_accumulate
    kReshard,     // post_backward_reshard
    kReduce,      // post_backward_reduce
    kRootPostBackward,
    kOptimizer,
    kProfilerStep,
  };

  Label label = Label::kNone;
  std::string unit;          // modules as PyTorch prints them, without wrappers; "" is the root's
  std::int64_t number = -1;  // ProfilerStep#N

  bool has_unit() const { return label >= Label::kPreForward && label <= Label::kReduce; }
};

// "FSDP::pre_forward (layers.3)". Label::kNone: a range of something else.
FsdpRange read_fsdp_range(std::string_view text);

}
