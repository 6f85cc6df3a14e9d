// The builder of runtime fsdp1: PyTorch 2.11's FullyShardedDataParallel, function by function.
//
// Functions carry the names of torch/distributed/fsdp/ and do what those do: fsdp1.cpp runs the model, its hooks and
// autograd, fsdp1_runtime.cpp unshards, reshards and prefetches (_runtime_utils.py, _flat_param.py), fsdp1_reduce.cpp
// reduces (_post_backward_hook to the final callback), fsdp1_optimizer.cpp holds what lives between steps and ends one,
// fsdp1_work.cpp says what rows cost, fsdp1_log.cpp writes the log of tests/recordings/ddp_zero.
//
// Strategies: mesh.shard 1 is NO_SHARD; replicas make HYBRID_SHARD; reshard_after_forward says
// FULL_SHARD (always) or SHARD_GRAD_OP (never).
//
// Tensors whose streams were recorded (record_stream) count as free from the host's free on, but the allocator gives
// them out again only when these streams are done with them: what is reserved depends on times (sim/memory/reserved.h),
// above all where the host runs far ahead (limit_all_gathers: false).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sim/graph/host_log.h"
#include "sim/graph/step_builder.h"
#include "sim/spec/plan.h"

namespace foreshard {

// Sizes of a flat parameter of FullyShardedDataParallel, in elements.
//
// Sources: torch/distributed/fsdp/_flat_param.py (2.11): _init_flat_param_and_metadata (with use_orig_params every
// parameter begins at a multiple of 16 bytes of the compute dtype, and the whole is padded to a multiple of the ranks),
// _get_unpadded_shard (torch.chunk: ceil(numel / N) for each rank, the last ones less or nothing).
struct FlatSize {
  std::int64_t numel = 0;      // of the parameters
  std::int64_t flat = 0;       // with what pads between and behind them
  std::int64_t shard = 0;      // of each rank, padded
  std::int64_t shard_pad = 0;  // of that of Plan::rank
  std::int64_t padded = 0;     // of all shards: what is gathered and reduced
  // Of the shard of Plan::rank, what the optimizer steps: all of it where every parameter is
  // trained, else the pieces of those that are (use_orig_params).
  std::int64_t trained_shard = 0;
  std::vector<std::int64_t> stepped;  // the same, tensor by tensor
};

// Ranks of the process group that a flat parameter is given; without shards that is the world.
std::int64_t flat_group(const Plan& plan);

// `parameters` in the order of Module.named_parameters().
FlatSize flat_size(const std::vector<UnitParameter>& parameters, const Plan& plan);

class Fsdp1Log;

class Fsdp1 final : public StepBuilder {
 public:
  // What one step leaves to the next: the order of the first forward, and the limiter's queue.
  struct FreeEvent {
    EventId row = kNoEvent;  // of the step that is built; of an earlier one: kNoEvent
    std::int32_t unit = -1;
    bool in_forward = false;
    std::int32_t step = 0;
    std::int32_t microbatch = 0;
  };
  struct Carried {
    std::int32_t step = 1;
    std::vector<std::int32_t> pre_forward_order;  // empty in the first iteration
    std::vector<FreeEvent> free_events;
  };

  Fsdp1(const ModelSpec& model, const Plan& plan, const LayerPrograms& programs, EventGraph recycled);
  ~Fsdp1() override;
  EventGraph build();  // the steady step
  LibraryStep record(Carried& carried, LibraryWatch::Modules modules, LibraryRun& run);

 private:
  friend class Fsdp1Log;

  // Variants of unit rows.
  static constexpr std::int32_t kLowPrecision = 0;  // copy-in: cast of the shard
  static constexpr std::int32_t kAdd = 1;           // accumulate: onto the kept flat gradient
  static constexpr std::int32_t kFinish = 2;        // ... post-divide, cast
  static constexpr std::int32_t kFinishAdd = 3;     // ... post-divide, cast, add to the shard
  static constexpr std::int32_t kLowerAgain = 4;    // ... cast to the compute dtype
  static constexpr std::int32_t kPrepare = 0;       // reduce-scatter copy-in: cast, pad, pre-divide
  static constexpr std::int32_t kPrepareKept = 1;   // ... of a gradient in the stored dtype

  enum class Training : std::uint8_t { kIdle, kForward, kBackwardPre, kBackwardPost };

  struct Handle {  // FlatParamHandle
    FlatSize size;
    bool trained = false;
    bool reshards_after_forward = false;
    Training state = Training::kIdle;
    bool prefetched = false;
    bool needs_pre_forward_unshard = false;
    bool needs_pre_backward_unshard = false;
    bool ran_pre_backward_hook = false;
    std::int32_t pre_forward_index = -1;
    std::int32_t post_forward_index = -1;
    bool unsharded = false;       // the padded unsharded flat parameter has storage
    bool in_use = false;          // flat_param.data is not the local shard
    std::int32_t open_views = 0;  // forwards whose views autograd has not met yet
    std::int32_t parameters = kNoBuffer;
    std::int32_t shard_copy = kNoBuffer;     // low precision, or from the host
    std::int32_t flat_gradient = kNoBuffer;  // flat_param.grad, unsharded
    bool has_flat_gradient = false;
    bool gradient_is_stored_dtype = false;  // NO_SHARD: the flat gradient of an earlier reduction
    std::int32_t gradient = kNoBuffer;      // _saved_grad_shard
    bool has_gradient = false;
    bool lowered_gradient = false;  // keep_low_precision_grads
  };

  // The autograd graph in the order of creation; backward runs it in reverse.
  struct TapeEntry {
    std::int32_t unit = -1;  // >= 0: views of its flat parameter; else part of a layer
    std::int32_t layer = -1;
    std::int8_t part = 0;
    bool begins_layer = false;
    bool ends_layer = false;
    bool ends_part = false;  // of a nested unit
  };

  Handle& handle(std::int32_t unit) { return handles_[at(unit)]; }
  const Handle& handle(std::int32_t unit) const { return handles_[at(unit)]; }
  std::int32_t count() const { return static_cast<std::int32_t>(handles_.size()); }
  bool sharded() const { return plan_.mesh.shard > 1; }
  bool hybrid() const { return sharded() && (plan_.mesh.replicate > 1 || plan_.fsdp1.hybrid_shard); }
  bool offloads() const { return plan_.offload != Offload::kNone; }
  bool lowers_parameters() const { return plan_.param_dtype != plan_.master_dtype; }
  bool in_place() const { return plan_.fsdp1.gradients_in_place; }
  DType gradient_dtype(const Handle& h) const {
    if (in_place()) return plan_.reduce_dtype;
    return h.gradient_is_stored_dtype ? plan_.master_dtype : plan_.param_dtype;
  }

  // --- nothing is written in a dry run, which only finds the limiter's steady queue ---
  EventId row(EventKind kind, Stream stream, std::int32_t unit, std::int32_t variant = 0);
  std::int32_t hold(MemoryCategory category, Stream pool, std::int32_t unit, std::int64_t bytes);
  // `recorded`: streams that the library recorded on it (record_stream).
  void drop(std::int32_t& buffer, StreamSet recorded = 0);
  // Of a sharded gradient: replicas reduce it on a stream of their own.
  StreamSet gradient_streams() const { return hybrid() ? only(Stream::kAllReduce) : StreamSet{0}; }
  void wait_tail(Stream stream, Stream source);

  // --- fsdp1.cpp ---
  void prepare();
  void begin(const Carried& carried);
  void run_step();
  void note_facts();
  void run_forward();
  void run_model(EventKind last);
  void run_reference();
  void end_root();
  void forward_layer(std::int32_t layer);
  void run_segments(std::int32_t layer);
  void run_border(EventKind kind, std::int32_t layer, std::int8_t part);
  void run_backward();
  void run_views(std::int32_t unit);
  void begin_backward(const TapeEntry& entry);
  void run_entry(const TapeEntry& entry);
  void run_recompute(std::int32_t layer);
  bool is_trained_below(std::int32_t layer) const { return output_needs_gradient_[at(layer)]; }

  // --- fsdp1_runtime.cpp ---
  void root_pre_forward();
  void pre_forward(std::int32_t unit);
  void post_forward(std::int32_t unit, bool output_needs_gradient);
  void pre_backward(std::int32_t unit);
  void unshard(std::int32_t unit);
  void make_views(std::int32_t unit);
  // Whether all of them are checkpointed, by autograd inside of autograd.
  bool is_reentrant(std::span<const std::int32_t> layers) const;
  bool pre_unshard(std::int32_t unit);
  void all_gather(std::int32_t unit);
  void reshard(std::int32_t unit, bool frees);
  void wait_for_unshard();
  void prefetch(std::int32_t unit, Training pass);
  std::int32_t target_of_prefetch(std::int32_t unit) const;
  void dequeue_if_needed();
  bool frees_in_backward(std::int32_t unit) const;

  // --- fsdp1_reduce.cpp ---
  void accumulate_grad(std::int32_t unit);
  void accumulate_in_place(std::int32_t unit);
  void post_backward(std::int32_t unit);
  void reshard_only(std::int32_t unit);
  void reduce_grad(std::int32_t unit);
  void offload_grad(std::int32_t unit, Stream stream);
  void final_callback();

  // --- fsdp1_optimizer.cpp ---
  void persistent_memory();
  void clip();
  void reduce_number();
  void optimizer();

  // --- fsdp1_work.cpp ---
  UnitWork unit_work(EventKind kind, const UnitShape& shape, std::int32_t variant) const override;
  UnitWork step_work(EventKind kind) const override;
  double pre_divide() const;
  double post_divide() const;

  std::vector<Handle> handles_;
  std::vector<bool> input_needs_gradient_, output_needs_gradient_;  // of each layer
  std::vector<TapeEntry> tape_;
  std::vector<std::size_t> next_segment_;  // of each layer's backward
  std::vector<bool> recomputed_;           // in the backward that runs
  std::vector<std::int32_t> post_forward_order_;
  Carried carried_;
  std::size_t queue_head_ = 0;   // into carried_.free_events
  std::int32_t late_free_ = -1;  // last one taken of those that the step before left
  std::size_t inherited_ = 0;    // how many those are
  bool first_iteration_ = true;
  bool syncs_gradients_ = true;
  bool recomputing_ = false;
  bool dry_ = false;
  bool loss_is_inside_ = false;   // plan_.loss_in_forward
  std::int32_t root_ends_ = -1;   // the last layer of the module whose unit the root's is
  bool root_is_inner_ = false;    // the unit that is taken for the root is a module inside of it
  std::int32_t last_layer_ = -1;  // before the loss
  std::map<std::string, std::int64_t> facts_;
  std::unique_ptr<Fsdp1Log> log_;  // null: none is kept
};

}
