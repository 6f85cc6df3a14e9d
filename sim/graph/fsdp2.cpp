// PyTorch 2.11's fully_shard, step by step. Functions carry the names of
// torch/distributed/fsdp/_fully_shard/.
//
// unshard: copy-in on its own stream (cast to the compute dtype, copy into the rank's slot of the
// gather buffer), all-gather on the all-gather stream behind it.
//
// wait_for_unshard: copy-out on the compute stream. In forward the gather buffer of the unit before
// is held until then: its copy-out must have ended before another copy-in may reuse it; it is freed
// after this copy-out was issued, because a local name keeps it alive. In backward the buffer is
// freed at once.
//
// pre_backward: by default prefetches the unit that ran before this one in forward
// (post_forward_order).
//
// post_backward: reshards, waits for the reduce-scatter whose input is still held, packs gradients
// (cast and padding), reduce-scatters, with replicas all-reduces, casts or adds to the gradient
// that is there. The gradient of each unit's last parameter lives until its reduction was issued.
//
// root_post_backward: runs what is left, root first: units whose inputs need no gradient (token
// ids) are reduced here, exposed; the compute stream then waits for every unit's reduction.
//
// The knobs of later versions (several reduce-scatter inputs, a communicator for reduce-scatters:
// from 2.13) are built as the plan asks; check() refuses them for versions that do not have them.
// All of it was recorded from the library (tests/recordings); fsdp2_recordings_test.cpp holds this
// file against that.
#include <algorithm>
#include <deque>
#include <utility>
#include <vector>

#include "sim/base/error.h"
#include "sim/graph/runtimes.h"
#include "sim/graph/step_builder.h"

namespace foreshard {
namespace {

// Variants of unit rows.
constexpr std::int32_t kWholeGroup = 0;  // all-gather over the shard group
constexpr std::int32_t kSmallGroup = 1;  // ... over the group the unit was resharded to
constexpr std::int32_t kSingleRank =
    2;  // shard size 1: parameters are copied one by one, nothing is gathered
constexpr std::int32_t kCast = 0;       // accumulate: cast the reduced gradient to the stored dtype
constexpr std::int32_t kAdd = 1;        // ... add it to the gradient of earlier micro-batches
constexpr std::int32_t kCastAdd = 2;    // ... both
constexpr std::int32_t kUnsharded = 3;  // ... keep the unsharded gradient: cast or add it

class Fsdp2 final : public StepBuilder {
 public:
  Fsdp2(const ModelSpec& model, const Plan& plan, const LayerPrograms& programs,
        EventGraph recycled)
      : StepBuilder(model, plan, programs, std::move(recycled)),
        states_(static_cast<std::size_t>(unit_count())) {
    add_communicators(PostForwardGroups::kOfEachUnit);
  }

  EventGraph build() {
    for (std::int32_t u = 0; u < count(); ++u) {
      allocate_persistent(MemoryCategory::kShardedParam, u, shape(u).sharded);
      if (plan_.optimizer.kind == Optimizer::Kind::kAdamW) {
        allocate_persistent(MemoryCategory::kOptimizerState, u, shape(u).optimizer_state);
        allocate_persistent(MemoryCategory::kOptimizerState, u, shape(u).optimizer_state);
      }
    }
    const auto microbatches = static_cast<std::int32_t>(plan_.batch.accumulation);
    for (std::int32_t m = 0; m < microbatches; ++m) {
      begin_microbatch(m);
      sync_ = plan_.accumulation == AccumulationMode::kReduceEach || m + 1 == microbatches;
      forward();
      backward();
    }
    optimizer();
    return finish();
  }

 private:
  struct State {
    bool pending = false;  // all-gather issued, not yet copied out
    bool unsharded = false;
    bool reduced = false;  // post_backward ran in this micro-batch
    EventId all_gather = kNoEvent;
    EventId copy_out = kNoEvent;
    EventId reshard = kNoEvent;      // copy of the kept slice
    EventId post_reduce = kNoEvent;  // gradient ready
    std::int32_t gather_buffer = kNoBuffer;
    std::int32_t parameters = kNoBuffer;
    std::int32_t small_shard = kNoBuffer;
    std::int32_t gradient = kNoBuffer;     // sharded
    std::int32_t accumulated = kNoBuffer;  // unsharded, in the reduce dtype
    bool keeps_gradients = false;          // of an earlier micro-batch, in the compute dtype
    std::int32_t order = -1;               // position in post_forward_order
  };

  std::int32_t count() const { return static_cast<std::int32_t>(states_.size()); }
  State& state(std::int32_t unit) { return states_[static_cast<std::size_t>(unit)]; }
  bool sharded() const { return plan_.mesh.shard > 1; }
  bool replicated() const { return plan_.mesh.replicate > 1; }
  bool casts_gradients() const { return plan_.reduce_dtype != plan_.master_dtype; }
  std::int64_t param_size() const { return size_of(plan_.param_dtype); }
  std::int64_t reduce_size() const { return size_of(plan_.reduce_dtype); }
  std::int64_t master_size() const { return size_of(plan_.master_dtype); }

  // --- forward ---

  void forward() {
    const std::int64_t labels = checked_multiply(
        checked_multiply(plan_.batch.micro_batch, plan_.batch.sequence), std::int64_t{8});
    input_tokens_ = allocate(MemoryCategory::kInput, Stream::kCompute, -1, Bytes(labels));
    input_labels_ = allocate(MemoryCategory::kInput, Stream::kCompute, -1, Bytes(labels));
    // root_pre_forward: gathers start when the optimizer's (or the previous micro-batch's) work is
    // done.
    wait(Stream::kCopyIn, tail(Stream::kCompute));
    wait(Stream::kAllGather, tail(Stream::kCompute));
    if (root() >= 0) pre_forward(root());
    const auto layers = static_cast<std::int32_t>(model_.order.size());
    for (std::int32_t l = 0; l < layers; ++l) {
      const std::int32_t u = unit_of_layer(l);
      if (u < 0) continue;  // loss
      const auto own = layers_of(u);
      if (u != root() && l == own.front()) pre_forward(u);
      add_layer_row(EventKind::kForward, l);
      if (u != root() && l == own.back()) post_forward(u);
    }
    if (root() >= 0) post_forward(root());
    if (held_gather_ != kNoBuffer) {
      wait(Stream::kCopyIn, held_copy_out_);
      wait(Stream::kAllGather, held_copy_out_);
      StepBuilder::free(held_gather_);
    }
    if (unit_of_layer(layers - 1) < 0) add_layer_row(EventKind::kLoss, layers - 1);
  }

  void pre_forward(std::int32_t u) {
    hook();
    unshard(u);
    wait_for_unshard_forward(u);
    const std::int64_t depth = plan_.prefetch.forward;
    for (std::int64_t ahead = 1; ahead <= depth; ++ahead) {
      const std::int64_t target = u + ahead;
      if (u != root() && target < count()) unshard(static_cast<std::int32_t>(target));
    }
  }

  void post_forward(std::int32_t u) {
    hook();
    State& s = state(u);
    switch (unit(u).reshard.kind) {
      case Reshard::Kind::kNever:
        break;
      case Reshard::Kind::kAlways:
        reshard(u);
        break;
      case Reshard::Kind::kGroup: {
        s.reshard = add_unit_row(EventKind::kReshard, Stream::kCompute, u);
        reshard(u);  // parameter by parameter, so never more than one small slice beyond the whole
        s.small_shard =
            allocate(MemoryCategory::kPostForwardShard, Stream::kCompute, u,
                     Bytes(unit(u).padded_numel() / unit(u).reshard.group * param_size()));
        break;
      }
    }
    s.order = static_cast<std::int32_t>(post_forward_order_.size());
    post_forward_order_.push_back(u);
  }

  void reshard(std::int32_t u) {
    StepBuilder::free(state(u).parameters);
    state(u).unsharded = false;
  }

  void unshard(std::int32_t u) {
    State& s = state(u);
    if (s.unsharded || s.pending) return;
    s.pending = true;
    if (!sharded()) return;
    const bool small = s.small_shard != kNoBuffer;
    const std::int32_t variant = small ? kSmallGroup : kWholeGroup;
    const std::int64_t padded = unit(u).padded_numel();
    if (small) {
      wait(Stream::kCopyIn, s.reshard);
      wait(Stream::kAllGather, s.reshard);
    }
    const EventId copy_in = add_unit_row(EventKind::kAllGatherCopyIn, Stream::kCopyIn, u, variant);
    std::int32_t temporary = kNoBuffer;
    if (small) {
      temporary = allocate(MemoryCategory::kCastTemp, Stream::kCopyIn, u,
                           Bytes(padded / unit(u).reshard.group * param_size()));
    } else if (plan_.param_dtype != plan_.master_dtype) {
      temporary = allocate(MemoryCategory::kCastTemp, Stream::kCopyIn, u,
                           Bytes(unit(u).shard_numel * param_size()));
    }
    s.gather_buffer = allocate(MemoryCategory::kAllGatherOutput, Stream::kCopyIn, u,
                               Bytes(padded * param_size()));
    wait(Stream::kAllGather, copy_in);
    s.all_gather = add_unit_row(EventKind::kAllGather, Stream::kAllGather, u, variant);
    StepBuilder::free(temporary);
  }

  void copy_out(std::int32_t u) {
    State& s = state(u);
    if (sharded()) wait(Stream::kCompute, s.all_gather);
    s.copy_out = add_unit_row(EventKind::kAllGatherCopyOut, Stream::kCompute, u,
                              sharded() ? kWholeGroup : kSingleRank);
    StepBuilder::free(s.small_shard);
    s.parameters =
        allocate(MemoryCategory::kUnshardedParam, Stream::kCompute, u, shape(u).unsharded);
    if (!sharded() && plan_.param_dtype != plan_.master_dtype) {
      std::int32_t temporary =
          allocate(MemoryCategory::kCastTemp, Stream::kCompute, u, shape(u).largest_parameter);
      StepBuilder::free(temporary);
    }
    s.pending = false;
    s.unsharded = true;
  }

  void wait_for_unshard_forward(std::int32_t u) {
    State& s = state(u);
    if (s.unsharded) return;
    if (held_gather_ != kNoBuffer) {
      wait(Stream::kCopyIn, held_copy_out_);
      wait(Stream::kAllGather, held_copy_out_);
    }
    copy_out(u);
    StepBuilder::free(held_gather_);
    held_gather_ = s.gather_buffer;
    held_copy_out_ = s.copy_out;
    s.gather_buffer = kNoBuffer;
  }

  void wait_for_unshard_backward(std::int32_t u) {
    State& s = state(u);
    if (s.unsharded) return;
    copy_out(u);
    wait(Stream::kCopyIn, s.copy_out);
    wait(Stream::kAllGather, s.copy_out);
    StepBuilder::free(s.gather_buffer);
  }

  // --- backward ---

  void backward() {
    for (State& s : states_) s.reduced = false;
    const auto layers = static_cast<std::int32_t>(model_.order.size());
    bool root_hook_due = root() >= 0;
    for (std::int32_t l = layers; l-- > 0;) {
      const std::int32_t u = unit_of_layer(l);
      if (u < 0) continue;
      const auto own = layers_of(u);
      if (u != root() && l == own.back()) pre_backward(u);
      // The root's hook sits on the same output as the last unit's and was registered after it.
      if (root_hook_due) {
        pre_backward(root());
        root_hook_due = false;
      }
      if (recompute_of(l) != Recompute::kNone) add_layer_row(EventKind::kRecompute, l);
      add_layer_row(EventKind::kBackward, l);
      if (u != root() && l == own.front() && inputs_need_gradient(l)) post_backward(u);
    }
    root_post_backward();
    post_forward_order_.clear();
  }

  bool inputs_need_gradient(std::int32_t layer) const {
    const LayerInstance& instance = model_.order[static_cast<std::size_t>(layer)];
    return model_.kinds[static_cast<std::size_t>(instance.kind)].role != LayerRole::kEmbedding;
  }

  void pre_backward(std::int32_t u) {
    hook();
    unshard(u);
    wait_for_unshard_backward(u);
    // One unit back is the default prefetch; deeper ones are explicit lists of modules.
    for (std::int64_t back = 1; back <= plan_.prefetch.backward; ++back) {
      const std::int64_t position = state(u).order - back;
      if (position >= 0) unshard(post_forward_order_[static_cast<std::size_t>(position)]);
    }
  }

  void post_backward(std::int32_t u) {
    State& s = state(u);
    s.reduced = true;
    hook();
    accumulate_unsharded(u);
    reshard(u);
    if (!sync_) return;
    while (static_cast<std::int64_t>(held_reduces_.size()) >= plan_.reduce_scatter_buffers) {
      release_reduce_input();
    }
    const EventId copy_in = add_unit_row(EventKind::kReduceScatterCopyIn, Stream::kCompute, u,
                                         s.accumulated != kNoBuffer ? kUnsharded : 0);
    const std::int64_t padded = unit(u).padded_numel();
    const std::int32_t input = allocate(MemoryCategory::kReduceScatterInput, Stream::kCompute, u,
                                        Bytes(padded * reduce_size()));
    const bool from_accumulated = s.accumulated != kNoBuffer;
    if (from_accumulated) {
      StepBuilder::free(s.accumulated);
    } else {
      free_unit_gradients(u);
    }
    wait(Stream::kReduceScatter, copy_in);
    EventId last = sharded()
                       ? add_unit_row(EventKind::kReduceScatter, Stream::kReduceScatter, u)
                       : add_unit_row(EventKind::kAccumulate, Stream::kReduceScatter, u, kCast);
    const EventId reduce = last;
    const bool first = s.gradient == kNoBuffer;
    const bool is_gradient = first && !casts_gradients();
    std::int32_t output =
        allocate(is_gradient ? MemoryCategory::kShardedGrad : MemoryCategory::kReduceScatterOutput,
                 Stream::kReduceScatter, u, Bytes(unit(u).shard_numel * reduce_size()));
    Stream stream = Stream::kReduceScatter;
    if (replicated()) {
      stream = Stream::kAllReduce;
      wait(Stream::kAllReduce, reduce);
      last = add_unit_row(EventKind::kAllReduce, Stream::kAllReduce, u);
    }
    if (is_gradient) {
      s.gradient = output;
    } else {
      const std::int32_t variant = !casts_gradients() ? kAdd : first ? kCast : kCastAdd;
      last = add_unit_row(EventKind::kAccumulate, stream, u, variant);
      std::int32_t cast = kNoBuffer;
      if (casts_gradients()) {
        cast = allocate(first ? MemoryCategory::kShardedGrad : MemoryCategory::kReduceScatterOutput,
                        stream, u, Bytes(unit(u).shard_numel * master_size()));
      }
      if (replicated() && casts_gradients()) {
        held_all_reduce_inputs_.push_back(
            output);  // up to 2.15 these live until the end of backward
      } else {
        StepBuilder::free(output);
      }
      if (first) {
        s.gradient = cast;
      } else {
        StepBuilder::free(cast);
      }
    }
    if (!from_accumulated) free_last_unit_gradient(u);
    s.post_reduce = last;
    held_reduces_.push_back({reduce, input});
  }

  // The compute stream waits for the oldest reduce-scatter whose input is still held, then its
  // memory may be used again.
  void release_reduce_input() {
    wait(Stream::kCompute, held_reduces_.front().first);
    StepBuilder::free(held_reduces_.front().second);
    held_reduces_.pop_front();
  }

  // Gradients that are not reduced yet: kept per parameter, in the reduce dtype if that differs
  // from the compute dtype.
  void accumulate_unsharded(std::int32_t u) {
    State& s = state(u);
    const bool casts = plan_.reduce_dtype != plan_.param_dtype;
    const bool keeps = s.accumulated != kNoBuffer || s.keeps_gradients;
    if (sync_ && !keeps) return;
    if (!keeps && !casts) {
      s.keeps_gradients = true;
      first_gradients_ = microbatch();
      return;
    }
    add_unit_row(EventKind::kAccumulate, Stream::kCompute, u, kUnsharded);
    if (casts && s.accumulated == kNoBuffer) {
      s.accumulated = allocate(MemoryCategory::kAccumulatedGrad, Stream::kCompute, u,
                               Bytes(unit(u).numel * reduce_size()));
    }
    free_gradients(u);
    free_last_gradient(u);
  }

  void free_unit_gradients(std::int32_t u) {
    if (!state(u).keeps_gradients) return free_gradients(u);
    const std::int32_t now = microbatch();
    begin_microbatch(first_gradients_);
    free_gradients(u);
    begin_microbatch(now);
  }

  void free_last_unit_gradient(std::int32_t u) {
    if (!state(u).keeps_gradients) return free_last_gradient(u);
    const std::int32_t now = microbatch();
    begin_microbatch(first_gradients_);
    free_last_gradient(u);
    begin_microbatch(now);
    state(u).keeps_gradients = false;
  }

  void root_post_backward() {
    for (std::int32_t u = 0; u < count(); ++u) {
      if (!state(u).reduced) post_backward(u);
      if (sync_) wait(Stream::kCompute, state(u).post_reduce);
    }
    while (!held_reduces_.empty()) release_reduce_input();
    for (std::int32_t& input : held_all_reduce_inputs_) StepBuilder::free(input);
    held_all_reduce_inputs_.clear();
    StepBuilder::free(input_tokens_);
    StepBuilder::free(input_labels_);
  }

  // --- optimizer ---

  void optimizer() {
    if (plan_.optimizer.clip_norm) {
      add_step_row(EventKind::kGradNorm, Stream::kCompute);
      if (sharded()) {
        wait(Stream::kAllReduce, tail(Stream::kCompute));
        wait(Stream::kCompute, add_step_row(EventKind::kAllReduce, Stream::kAllReduce));
      }
      add_step_row(EventKind::kGradScale, Stream::kCompute);
    }
    const EventId last = add_step_row(EventKind::kOptimizer, Stream::kCompute);
    if (plan_.optimizer.kind == Optimizer::Kind::kAdamW &&
        plan_.optimizer.implementation == Optimizer::Implementation::kForeach) {
      Bytes bytes;
      for (std::int32_t u = 0; u < count(); ++u) bytes += shape(u).optimizer_state;
      std::int32_t temporary =
          allocate(MemoryCategory::kOptimizerTemp, Stream::kCompute, -1, bytes);
      StepBuilder::free(temporary);
    }
    for (State& s : states_) StepBuilder::free(s.gradient);  // zero_grad
    if (plan_.host_sync == HostSync::kStep) graph().final_host_wait = last;
  }

  // --- counts ---

  UnitWork unit_work(EventKind kind, const UnitShape& s, std::int32_t variant) const override {
    UnitWork work;
    const std::int64_t shards = plan_.mesh.shard;
    const std::int64_t padded = checked_multiply(s.shard_numel, shards);
    const std::int64_t p = param_size(), r = reduce_size(), o = master_size();
    switch (kind) {
      case EventKind::kAllGatherCopyIn:
        if (variant == kSmallGroup) {
          const std::int64_t slice = padded / s.reshard_group * p;
          work.bytes = Bytes(slice);
          work.kernels = {copy_kernel(2 * slice), copy_kernel(2 * slice)};
        } else {
          work.bytes = Bytes(s.shard_numel * p);
          if (p != o) work.kernels.push_back(copy_kernel(s.shard_numel * (o + p)));
          work.kernels.push_back(copy_kernel(2 * s.shard_numel * p));
        }
        break;
      case EventKind::kAllGather:
        work.bytes = Bytes(padded * p);
        work.communicator =
            variant == kSmallGroup ? post_forward_communicator(s.reshard_group) : kShard;
        work.queues = variant != kSmallGroup;
        break;
      case EventKind::kAllGatherCopyOut:
        work.bytes = Bytes(padded * p);
        if (variant == kSingleRank) {
          if (p != o) work.kernels.push_back(copy_kernel(s.numel * (o + p)));
          work.launches = (p != o ? 2 : 1) * s.parameters;
        }
        work.kernels.push_back(copy_kernel(2 * padded * p));
        break;
      case EventKind::kReshard:
        work.bytes = Bytes(padded / s.reshard_group * p);
        work.kernels = {copy_kernel(2 * work.bytes.count())};
        work.launches = s.parameters;
        break;
      case EventKind::kReduceScatterCopyIn:
        work.bytes = Bytes(padded * r);
        work.kernels = {copy_kernel(s.numel * (variant == kUnsharded ? r : p) + padded * r)};
        break;
      case EventKind::kReduceScatter:
        work.bytes = Bytes(padded * r);
        work.communicator = reduce_scatter_communicator();
        break;
      case EventKind::kAllReduce:
        work.bytes = Bytes(s.shard_numel * r);
        work.communicator = kReplicate;
        break;
      case EventKind::kAccumulate:
        if (variant == kUnsharded) {  // read the new gradient, read and write the kept one
          work.bytes = Bytes(s.numel * r);
          work.kernels = {copy_kernel(s.numel * (p + 2 * r))};
          work.launches = s.parameters;
          break;
        }
        work.bytes = Bytes(s.shard_numel * o);
        if (variant != kAdd) work.kernels.push_back(copy_kernel(s.shard_numel * (r + o)));
        if (variant != kCast) {
          work.kernels.push_back(copy_kernel(3 * s.shard_numel * o));
          work.launches = s.parameters;  // one `+=` per parameter
        }
        break;
      default:
        FORESHARD_CHECK(false, "not a unit's row");
    }
    return work;
  }

  UnitWork step_work(EventKind kind) const override {
    UnitWork work;
    std::int64_t elements = 0;
    for (std::int32_t u = 0; u < unit_count(); ++u) {
      elements = checked_add(elements, shape(u).local_numel);
    }
    switch (kind) {
      case EventKind::kGradNorm:
        work.kernels = {memory_kernel(MemoryClass::kOptimizer, elements * master_size())};
        break;
      case EventKind::kGradScale:
        work.kernels = {memory_kernel(MemoryClass::kOptimizer, 2 * elements * master_size())};
        break;
      case EventKind::kAllReduce:  // the squared norm
        work.bytes = Bytes(4);
        work.communicator = kShard;
        break;
      case EventKind::kOptimizer:
        work.kernels = optimizer_kernels(elements);
        break;
      default:
        FORESHARD_CHECK(false, "not a row of the whole step");
    }
    return work;
  }

  std::vector<State> states_;
  std::vector<std::int32_t> post_forward_order_;
  std::int32_t held_gather_ = kNoBuffer;
  EventId held_copy_out_ = kNoEvent;
  std::deque<std::pair<EventId, std::int32_t>> held_reduces_;  // reduce-scatter and its input
  std::vector<std::int32_t> held_all_reduce_inputs_;
  std::int32_t input_tokens_ = kNoBuffer;
  std::int32_t input_labels_ = kNoBuffer;
  std::int32_t first_gradients_ = 0;  // micro-batch whose gradient tensors are kept
  bool sync_ = true;
};

}  // namespace

EventGraph build_fsdp2(const ModelSpec& model, const Plan& plan, const LayerPrograms& programs,
                       EventGraph recycled) {
  return Fsdp2(model, plan, programs, std::move(recycled)).build();
}

}  // namespace foreshard
