// Foreshard's own engine: one flat padded buffer per unit that is the parameter storage, no copies, static arenas.
//
// The all-gather writes into a slot of a ring of parameter slots; views into the slot are the parameters. The optimizer
// writes the compute-dtype shadow of the shard, so nothing is cast before a gather. Backward writes weight gradients
// straight into a flat buffer of the unit in the reduce dtype, and the reduce-scatter reads it from there. One rank has
// no use for either: its shadow is the parameters, its sums are the gradients.
//
// Slots, not streams, bound how far gathers run ahead. `prefetch.forward: k` gives k + 1 slots and issues the gather of
// unit i + k before the forward of unit i; `implicit` gives two slots and issues a gather when the host reaches the
// unit; 0 gives one slot. A gather waits for the last compute row that used its slot.
//
// Gradients are there from the backward that makes them on: a unit's until it is reduced, of which
// buffers.reduce_scatter + 1 are there at once besides the root's (a backward waits for the oldest
// reduction), its sums until the optimizer has read them.
//
// The root unit, whose layers are spread over the whole step, has storage of its own and stays
// gathered, whatever reshard_after_forward says of it.
//
// With offload, shards, states and gradient sums live on the host. A gather's own segment is copied into its slot on a
// stream of its own before the gather; a unit's gradients are summed in one of two slots, copied to the host, and
// brought back for the next micro-batch to add to. The host does the norm and the step.
//
// With replicas, gradients are summed over micro-batches first and all-reduced once, after the last one. Units that are
// never resharded are gathered once per step: parameters change with the optimizer only. Unlike FSDP2 the embedding's
// unit is not gathered in backward: its gradient needs no weight.
//
// With tensor parallelism a layer's collectives are rows between its parts, on a stream and a
// communicator of their own, and compute waits for each at once. A rank's part of the tokens is a
// run of rows, so nothing is copied around them. What every rank of tp has whole lies at the end of
// its unit; the summands of these gradients are all-reduced in one row before the unit's reduction.
#include <algorithm>
#include <array>
#include <deque>
#include <utility>
#include <vector>

#include "sim/base/error.h"
#include "sim/graph/cpu_collectives.h"
#include "sim/graph/flat_layout.h"
#include "sim/graph/runtimes.h"
#include "sim/graph/step_builder.h"

namespace foreshard {
namespace {

// The squared norm travels as an exact sum: 67 digits of 32 bits, 64 bits each, cover every double.
constexpr std::int64_t kNormBytes = std::int64_t{67} * 8;

// Variants of kAccumulate.
constexpr std::int32_t kAdd = 1;
// Variants of kAllReduce.
constexpr std::int32_t kPartial = 2;
// Variants of kHostToDevice.
constexpr std::int32_t kGradientSum = 1;
// Where gradients are summed before they go to the host: one is copied while the next one fills.
constexpr std::size_t kStagingSlots = 2;

class Native final : public StepBuilder {
 public:
  Native(const ModelSpec& model, const Plan& plan, const LayerPrograms& programs, EventGraph recycled)
      : StepBuilder(model, plan, programs, std::move(recycled)), states_(at(unit_count())) {
    flatten();
    add_communicators(PostForwardGroups::kShared);
  }

  EventGraph build() {
    arenas();
    const auto microbatches = static_cast<std::int32_t>(plan_.batch.accumulation);
    for (std::int32_t m = 0; m < microbatches; ++m) {
      begin_pass(m, m);
      last_ = m + 1 == microbatches;
      forward();
      backward();
    }
    optimizer();
    scratches();
    return finish();
  }

  EventGraph evaluation() {
    arenas();
    begin_pass(evaluation_pass(), 0);
    forward();
    free_inputs();
    graph().final_host_wait = tail(Stream::kCompute);
    scratches();
    return finish();
  }

 private:
  struct State {
    std::int64_t shard = 0;  // flat padded elements of one rank
    bool kept = false;       // has storage of its own between forward and backward
    bool present = false;    // gathered or being gathered
    bool waited = false;     // compute already waits for the gather
    EventId all_gather = kNoEvent;
    EventId last_use = kNoEvent;
    EventId read = kNoEvent;  // the row that reads `gradient` last
    EventId reduced = kNoEvent;
    std::int32_t piece = kNoBuffer;  // what a gather sends: the shadow, or the master
    std::int32_t post_forward = kNoBuffer;
    std::int32_t stored_gradient = kNoBuffer;  // of the shard: the sums
    std::int32_t storage = kNoBuffer;          // where it is gathered: its own or the slot it holds
    std::int32_t gradient = kNoBuffer;         // of the whole unit, which backward writes
    std::int64_t partial = 0;                  // flat elements whose gradient the ranks of tp have summands of
  };

  std::int32_t count() const { return static_cast<std::int32_t>(states_.size()); }
  State& state(std::int32_t unit) { return states_[at(unit)]; }
  bool keeps_gradients() const { return plan_.accumulation == AccumulationMode::kKeepUnsharded; }
  // Of an element of a reduce-scatter's sum: CPU ranks add in fp32 and leave it so, a library's sum
  // is of the dtype on the wire.
  std::int64_t sum_size() const { return plan_.host == HostKind::kComputes ? size_of(DType::kFp32) : reduce_size(); }

  // Whether parameters have to be gathered at all; else the stored shard, or its shadow, is the parameter.
  bool gathers() const { return plan_.mesh.shard > 1 || offloads(); }
  // Whether backward writes gradients where the optimizer reads them: where nothing is added to
  // them, so that sums of micro-batches are sums of whole gradients everywhere.
  bool writes_sums() const {
    return plan_.mesh.shard == 1 && plan_.mesh.tp == 1 && plan_.batch.accumulation == 1 &&
           plan_.reduce_dtype == DType::kFp32 && !offloads();
  }
  bool offloads() const { return plan_.offload != Offload::kNone; }
  bool continues_sums() const { return is_microbatch_order(plan_.reduction_order); }

  void flatten() {
    auto& listed = graph().units;
    for (std::int32_t u = 0; u < count(); ++u) {
      const FlatUnit flat = foreshard::flatten(model_, layers_of(u), plan_);
      state(u).shard = flat.shard_numel;
      state(u).partial = flat.partial_numel;
      state(u).kept = unit(u).reshard.kind == Reshard::Kind::kNever || u == root();
      listed[at(u)].shard_numel = state(u).shard;
    }
  }

  std::int64_t padded(std::int32_t u) { return state(u).shard * plan_.mesh.shard; }

  // What lives between steps: with offload, on the host.
  std::int32_t hold(BufferRole role, std::int32_t u, std::int64_t bytes) {
    const MemoryCategory category = role <= BufferRole::kShadow     ? MemoryCategory::kShardedParam
                                    : role == BufferRole::kGradient ? MemoryCategory::kShardedGrad
                                                                    : MemoryCategory::kOptimizerState;
    const std::int32_t id = allocate_persistent(category, u, Bytes(bytes));
    graph().buffers.back().on_host = offloads();
    graph().buffers.back().role = role;
    return id;
  }

  void arenas() {
    std::int64_t largest = 0;
    for (std::int32_t u = 0; u < count(); ++u) {
      const std::int64_t shard = state(u).shard;
      state(u).piece = hold(BufferRole::kMaster, u, shard * size_of(plan_.master_dtype));
      if (plan_.param_dtype != plan_.master_dtype) state(u).piece = hold(BufferRole::kShadow, u, shard * param_size());
      if (offloads()) state(u).stored_gradient = hold(BufferRole::kGradient, u, shard * 4);
      if (plan_.optimizer.kind == Optimizer::Kind::kAdamW)
        for (const BufferRole moment : {BufferRole::kFirstMoment, BufferRole::kSecondMoment})
          hold(moment, u, shard * size_of(plan_.optimizer.state));
      if (!gathers()) {
        // Nothing besides the shard.
      } else if (state(u).kept) {
        state(u).storage = allocate_persistent(MemoryCategory::kUnshardedParam, u, Bytes(padded(u) * param_size()));
      } else {
        largest = std::max(largest, padded(u));
      }
      if (unit(u).reshard.kind == Reshard::Kind::kGroup && !state(u).kept) {
        state(u).post_forward = allocate_persistent(
            MemoryCategory::kPostForwardShard, u, Bytes(padded(u) / unit(u).reshard.group * param_size()));
        graph().buffers.back().role = BufferRole::kPostForward;
      }
    }
    const std::int64_t ahead =
        std::max(plan_.prefetch.forward == Prefetch::kImplicit ? 1 : plan_.prefetch.forward, plan_.prefetch.backward);
    slot_users_.assign(at(std::min<std::int64_t>(ahead + 1, count())), -1);
    slot_buffers_.assign(slot_users_.size(), kNoBuffer);
    for (std::size_t s = 0; s < slot_users_.size() && largest > 0; ++s)
      slot_buffers_[s] = allocate_persistent(MemoryCategory::kUnshardedParam, -1, Bytes(largest * param_size()));
    std::int64_t largest_shard = 0;
    for (const State& s : states_) largest_shard = std::max(largest_shard, s.shard);
    for (std::size_t i = 0; offloads() && i < kStagingSlots; ++i)
      staging_[i].buffer = allocate_persistent(MemoryCategory::kShardedGrad, -1, Bytes(largest_shard * 4));
  }

  // --- gathers ---

  // Takes the slot whose user is done longest. False when every slot holds a unit that is still needed.
  bool issue_gather(std::int32_t u) {
    State& s = state(u);
    if (s.present) return true;
    EventId free_after = s.last_use;  // own storage: the previous use of it
    if (!s.kept) {
      std::int32_t chosen = -1;
      EventId oldest = 0;
      for (std::size_t i = 0; i < slot_users_.size(); ++i) {
        const std::int32_t user = slot_users_[i];
        if (user >= 0 && state(user).present) continue;
        const EventId used = user < 0 ? kNoEvent : state(user).last_use;
        if (chosen < 0 || used < oldest) {
          chosen = static_cast<std::int32_t>(i);
          oldest = used;
        }
      }
      if (chosen < 0) return false;
      slot_users_[at(chosen)] = u;
      s.storage = slot_buffers_[at(chosen)];
      free_after = oldest;
    }
    s.present = true;
    s.waited = false;
    if (!gathers()) return true;
    const bool small = backward_ && unit(u).reshard.kind == Reshard::Kind::kGroup;
    if (offloads() && !small) {
      wait(Stream::kCopyIn, free_after);
      const EventId copied = add_unit_row(EventKind::kHostToDevice, Stream::kCopyIn, u);
      works_in(s.storage, s.piece);
      wait(Stream::kAllGather, copied);
    }
    wait(Stream::kAllGather, free_after);
    // What a smaller group is sent was kept by the unit's reshard.
    if (small && s.last_use != free_after) wait(Stream::kAllGather, s.last_use);
    s.all_gather = add_unit_row(EventKind::kAllGather, Stream::kAllGather, u, small ? 1 : 0);
    works_in(s.storage, small ? s.post_forward : offloads() ? kNoBuffer : s.piece);
    return true;
  }

  void use(std::int32_t u) {
    const bool issued = issue_gather(u);
    FORESHARD_CHECK(issued, "no parameter slot for the unit that is needed now");
    State& s = state(u);
    if (!s.waited) wait(Stream::kCompute, s.all_gather);
    s.waited = true;
  }

  void release(std::int32_t u, EventId after) {
    state(u).last_use = after;
    if (!state(u).kept || last_) state(u).present = false;
  }

  // The operands of the row added last.
  void works_in(std::int32_t buffer, std::int32_t other, SumMode sum = SumMode::kBegin) {
    RowDetail& detail = graph().details.back();
    detail.buffer = buffer;
    detail.other = other;
    detail.sum = sum;
  }

  // --- forward ---

  void forward() {
    backward_ = false;
    const std::int64_t labels = plan_.batch.micro_batch * plan_.batch.sequence * 8;
    tokens_ = allocate(MemoryCategory::kInput, Stream::kCompute, -1, Bytes(labels));
    labels_ = allocate(MemoryCategory::kInput, Stream::kCompute, -1, Bytes(labels));
    if (root() >= 0) {
      hook();
      use(root());
    }
    const auto layers = static_cast<std::int32_t>(model_.order.size());
    for (std::int32_t l = 0; l < layers; ++l) {
      // The last micro-batch's reductions are long done, and activations are not yet at their most.
      if (l == layers / 2 && !keeps_gradients()) free_gradients();
      const std::int32_t u = unit_of_layer(l);
      if (u < 0) {
        run_layer(EventKind::kLoss, l);
        if (pass() == evaluation_pass()) continue;
        add_phase(EventKind::kBackward, l, Segments::kInside);
        add_phase(EventKind::kBackward, l, Segments::kExit);
        continue;
      }
      const auto own = layers_of(u);
      if (u != root() && l == own.front()) {
        hook();
        // The unit's own gather first: it must never find its slot taken by a prefetch.
        issue_gather(u);
        for (std::int64_t ahead = 1; ahead <= plan_.prefetch.forward; ++ahead) {
          const std::int64_t target = u + ahead;
          if (target < count() && !issue_gather(static_cast<std::int32_t>(target))) break;
        }
        use(u);
      }
      const EventId row = run_layer(EventKind::kForward, l);
      if (u == root()) state(u).last_use = row;
      else if (l == own.back()) after_forward(u, row);
    }
  }

  void after_forward(std::int32_t u, EventId row) {
    if (state(u).kept) {
      state(u).last_use = row;
      return;
    }
    if (unit(u).reshard.kind == Reshard::Kind::kGroup) {
      row = add_unit_row(EventKind::kReshard, Stream::kCompute, u);
      works_in(state(u).storage, state(u).post_forward);
    }
    state(u).last_use = row;
    state(u).present = false;
  }

  // --- backward ---

  bool is_embedding_only(std::int32_t u) const {
    const auto own = layers_of(u);
    return std::ranges::all_of(own, [&](std::int32_t l) {
      const auto kind = at(model_.order[at(l)].kind);
      return model_.kinds[kind].role == LayerRole::kEmbedding;
    });
  }

  void backward() {
    backward_ = true;
    const auto layers = static_cast<std::int32_t>(model_.order.size());
    for (std::int32_t l = layers; l-- > 0;) {
      const std::int32_t u = unit_of_layer(l);
      if (u < 0) continue;
      const auto own = layers_of(u);
      if (u != root() && l == own.back()) begin_backward(u);
      if (recompute_of(l) != Recompute::kNone) run_layer(EventKind::kRecompute, l);
      if (l == own.back()) begin_gradients(u);
      if (l == own.front() && (last_ || !keeps_gradients())) begin_sums(u);
      begins_ = l == own.back() && (microbatch() == 0 || !keeps_gradients());
      const EventId row = run_layer(EventKind::kBackward, l);
      state(u).last_use = row;
      if (u != root() && l == own.front()) reduce(u, row);
    }
    if (root() >= 0) reduce(root(), state(root()).last_use);
    free_inputs();
  }

  void free_inputs() {
    StepBuilder::free(tokens_);
    StepBuilder::free(labels_);
  }

  // --- layers, with the collectives between their parts ---

  // The layer's last row on the compute stream.
  EventId run_layer(EventKind kind, std::int32_t l) {
    const LayerPhaseProgram& p = phase(kind, l);
    if (p.calls.empty()) {
      const EventId row = add_layer_row(kind, l);
      write_gradients(kind, l);
      return row;
    }
    std::vector<EventId> launched(p.calls.size(), kNoEvent);
    EventId last = kNoEvent;
    std::size_t step = 0;
    for (std::size_t s = 0; s < p.segments.size(); ++s) {
      for (std::size_t c = 0; c < p.calls.size(); ++c) {
        const LayerCall& call = p.calls[c];
        if (call.segment != s) continue;
        if (call.kind == LayerCall::Kind::kLaunch) launched[c] = communicate(call, next_collective(p, l, step));
        else wait(Stream::kCompute, launched[at(call.launch)]);
      }
      const LayerSegment before = s == 0 ? LayerSegment() : p.segments[s - 1];
      if (p.segments[s].kernels_end > before.kernels_end) {
        last = add_layer_run(kind, l, s, 1);
        write_gradients(kind, l);
      } else if (p.segments[s].actions_end > before.actions_end) {
        add_segment(kind, l, static_cast<std::uint8_t>(s));
      }
    }
    return last;
  }

  // Of the row added last: where backward writes to, which the first one of a unit begins.
  void write_gradients(EventKind kind, std::int32_t l) {
    if (kind != EventKind::kBackward) return;
    const bool begins = std::exchange(begins_, false);
    works_in(state(unit_of_layer(l)).gradient, kNoBuffer, begins ? SumMode::kBegin : SumMode::kAdd);
  }

  // Launches and collectives among the steps come in one order.
  RowDetail next_collective(const LayerPhaseProgram& p, std::int32_t l, std::size_t& step) const {
    const auto moves = [&](const LayerStep& each) {
      if (each.kind == LayerStep::Kind::kSum) return false;
      const Operation& op = spec_of(l).operations[at(each.operation)];
      return (each.kind == LayerStep::Kind::kForward ? op.collective : op.collective_backward).kind !=
             CollectiveKind::kNone;
    };
    while (step < p.steps.size() && !moves(p.steps[step])) ++step;
    FORESHARD_CHECK(step < p.steps.size(), "a launch without its step");
    const LayerStep& found = p.steps[step++];
    const auto layers = static_cast<std::int32_t>(model_.order.size());
    const auto execution = at(pass() * layers + l);
    const std::int32_t first = graph().executions[execution].first_buffer;
    return RowDetail{.layer = l, .buffer = first + found.outputs.front(), .other = first + found.inputs.front()};
  }

  EventId communicate(const LayerCall& call, const RowDetail& operands) {
    const EventId row = launch_call(call, unit_of_layer(operands.layer));
    graph().details.back().layer = operands.layer;
    works_in(operands.buffer, operands.other);
    return row;
  }

  void begin_backward(std::int32_t u) {
    hook();
    if (!is_embedding_only(u)) {
      issue_gather(u);
      for (std::int64_t back = 1; back <= plan_.prefetch.backward; ++back) {
        const std::int64_t target = u - back;
        if (target <= root() || is_embedding_only(static_cast<std::int32_t>(target))) break;
        if (!issue_gather(static_cast<std::int32_t>(target))) break;
      }
      use(u);
    }
  }

  // --- gradients ---

  // Backward's next row makes them.
  void begin_gradients(std::int32_t u) {
    State& s = state(u);
    if (s.gradient != kNoBuffer) return;  // kept from the micro-batch before
    if (writes_sums()) {
      begin_sums(u);
      s.gradient = s.stored_gradient;
      return;
    }
    if (u != root() && std::cmp_greater(reducing_.size(), plan_.reduce_scatter_buffers)) {
      free_gradient(reducing_.front());
      reducing_.pop_front();
    }
    s.gradient = allocate(MemoryCategory::kUnshardedGrad, Stream::kCompute, u, Bytes(padded(u) * reduce_size()));
    graph().buffers.back().role = BufferRole::kUnitGradient;
  }

  void begin_sums(std::int32_t u) {
    State& s = state(u);
    if (s.stored_gradient != kNoBuffer) return;
    s.stored_gradient = allocate(MemoryCategory::kShardedGrad, Stream::kCompute, u, Bytes(s.shard * 4));
    graph().buffers.back().role = BufferRole::kGradient;
  }

  // What takes its place waits for the reduction.
  void free_gradient(std::int32_t u) {
    if (state(u).gradient == kNoBuffer) return;
    wait(Stream::kCompute, state(u).read);
    StepBuilder::free(state(u).gradient);
  }

  void free_gradients() {
    for (std::int32_t u = 0; u < count() && !writes_sums(); ++u) free_gradient(u);
    reducing_.clear();
  }

  void reduce(std::int32_t u, EventId row) {
    hook();
    release(u, row);
    State& s = state(u);
    if (writes_sums()) {
      s.reduced = plan_.mesh.replicate > 1 ? all_reduce(u, row, s.stored_gradient) : row;
      return;
    }
    if (keeps_gradients() && !last_) return;
    const bool adds = microbatch() > 0 && !keeps_gradients();
    Staging& staging = staging_[next_staging_];
    if (offloads()) take_staging_slot(u, adds);
    const std::int32_t sum = offloads() ? staging.buffer : s.stored_gradient;
    const SumMode mode = adds ? SumMode::kAdd : SumMode::kBegin;
    if (s.partial > 0) {
      wait(Stream::kTensor, row);
      row = add_unit_row(EventKind::kAllReduce, Stream::kTensor, u, kPartial);
      works_in(s.gradient, kNoBuffer);
    }
    wait(Stream::kReduceScatter, row);
    const bool sums_elsewhere = !continues_sums() && (adds || plan_.reduce_dtype != DType::kFp32);
    EventId last = kNoEvent;
    std::int32_t output = kNoBuffer;
    if (plan_.mesh.shard > 1) {
      last = add_unit_row(EventKind::kReduceScatter, Stream::kReduceScatter, u);
      const std::size_t row_of_sum = graph().details.size() - 1;
      works_in(s.gradient, sum, mode);
      s.read = last;
      if (sums_elsewhere) {
        output = allocate(MemoryCategory::kReduceScatterOutput, Stream::kReduceScatter, u, Bytes(s.shard * sum_size()));
        graph().details[row_of_sum].other = output;
        graph().details[row_of_sum].sum = SumMode::kApart;
      }
    }
    if (plan_.mesh.shard == 1 || sums_elsewhere) {
      last = add_unit_row(EventKind::kAccumulate, Stream::kReduceScatter, u, adds ? kAdd : 0);
      works_in(plan_.mesh.shard == 1 ? s.gradient : output, sum, mode);
      if (plan_.mesh.shard == 1) s.read = last;
    }
    StepBuilder::free(output);
    if (plan_.mesh.replicate > 1 && last_) last = all_reduce(u, last, sum);
    if (offloads()) {
      wait(Stream::kAllReduce, last);
      last = add_unit_row(EventKind::kDeviceToHost, Stream::kAllReduce, u);
      works_in(staging.buffer, s.stored_gradient);
      staging.copied = last;
      next_staging_ = (next_staging_ + 1) % kStagingSlots;
    }
    s.reduced = last;
    if (u != root()) reducing_.push_back(u);
  }

  EventId all_reduce(std::int32_t u, EventId after, std::int32_t sum) {
    wait(Stream::kAllReduce, after);
    const EventId row = add_unit_row(EventKind::kAllReduce, Stream::kAllReduce, u);
    works_in(kNoBuffer, sum);
    return row;
  }

  // Free once the copy that reads it is done; holds the sum of earlier micro-batches where this one's is added to it.
  void take_staging_slot(std::int32_t u, bool adds) {
    const Staging& staging = staging_[next_staging_];
    if (adds) {
      wait(Stream::kCopyIn, staging.copied);
      wait(Stream::kCopyIn, state(u).reduced);
      const EventId brought = add_unit_row(EventKind::kHostToDevice, Stream::kCopyIn, u, kGradientSum);
      works_in(staging.buffer, state(u).stored_gradient);
      wait(Stream::kReduceScatter, brought);
    }
    wait(Stream::kReduceScatter, staging.copied);
  }

  // --- optimizer ---

  void optimizer() {
    if (offloads()) return host_optimizer();
    for (State& s : states_) wait(Stream::kCompute, s.reduced);
    free_gradients();
    if (plan_.optimizer.clip_norm) {
      add_step_row(EventKind::kGradNorm, Stream::kCompute);
      if (plan_.mesh.shard > 1) {
        wait(Stream::kAllReduce, tail(Stream::kCompute));
        wait(Stream::kCompute, add_step_row(EventKind::kAllReduce, Stream::kAllReduce));
      }
      if (plan_.mesh.tp > 1) {
        wait(Stream::kTensor, tail(Stream::kCompute));
        wait(Stream::kTensor, tail(Stream::kAllReduce));
        wait(Stream::kCompute, add_collective(EventKind::kAllReduce, Stream::kTensor, communicator_of(MeshDim::kTp),
                                   Bytes(kNormBytes), -1));
      }
      add_step_row(EventKind::kGradScale, Stream::kCompute);
    }
    const EventId last = add_step_row(EventKind::kOptimizer, Stream::kCompute);
    for (State& s : states_) {
      s.present = false;
      s.last_use = last;
      StepBuilder::free(s.stored_gradient);
    }
    if (plan_.host_sync == HostSync::kStep) graph().final_host_wait = last;
  }

  // Once every gradient is there. The host's work is bound by memory: what it reads and writes is the price.
  void host_optimizer() {
    for (State& s : states_) {
      wait(Stream::kCompute, s.reduced);
      host_wait(s.reduced);
    }
    free_gradients();
    const auto by_host = [&](std::vector<Kernel> kernels) {
      UnitWork work = {.kernels = std::move(kernels)};
      return add_row(EventKind::kHostOptimizer, Stream::kCompute, new_work(EventKind::kHostOptimizer, work), -1);
    };
    const UnitWork step = step_work(EventKind::kOptimizer);
    EventId last = kNoEvent;
    if (plan_.optimizer.clip_norm) {
      last = by_host(step_work(EventKind::kGradNorm).kernels);
      if (plan_.mesh.shard > 1) {
        wait(Stream::kAllReduce, last);
        const EventId summed = add_step_row(EventKind::kAllReduce, Stream::kAllReduce);
        wait(Stream::kCompute, summed);
        host_wait(summed);
      }
      last = by_host({step_work(EventKind::kGradScale).kernels.front(), step.kernels.front()});
    } else {
      last = by_host(step.kernels);
    }
    graph().final_host_wait = last;
  }

  // --- CPU ranks ---

  // A buffer for each communicator, however small, so that an evaluation's are the step's.
  void scratches() {
    if (plan_.host != HostKind::kComputes) return;
    std::vector<std::int64_t> bytes(graph().communicators.size());
    for (std::size_t id = 0; id < graph().rows.size(); ++id) {
      const Work& work = graph().works[graph().rows[id].work];
      if (!is_collective(work.kind)) continue;
      std::int64_t& most = bytes[work.communicator];
      most = std::max(most, scratch_of(work, graph().details[id]));
    }
    for (const std::int64_t each : bytes) {
      allocate_persistent(MemoryCategory::kReduceScatterOutput, -1, Bytes(each));
      graph().buffers.back().role = BufferRole::kScratch;
    }
  }

  std::int64_t scratch_of(const Work& work, const RowDetail& detail) {
    const std::int64_t ranks = graph().communicators[work.communicator].group.size;
    const std::int64_t whole = work.bytes.count();
    if (work.kind == EventKind::kReduceScatter) return reduce_scatter_scratch(ranks, whole / ranks);
    if (work.kind != EventKind::kAllReduce) return 0;
    const bool is_gradient = detail.unit >= 0 && detail.buffer < 0;
    return is_gradient ? all_reduce_scratch(ranks, whole) : exchange_scratch(ranks, whole);
  }

  // --- counts ---

  UnitWork unit_work(EventKind kind, const UnitShape& shape, std::int32_t variant) const override {
    UnitWork work;
    const std::int64_t shard = state_of(shape).shard;
    const std::int64_t whole = checked_multiply(shard, plan_.mesh.shard);
    switch (kind) {
      case EventKind::kAllGather:
        work.bytes = Bytes(whole * param_size());
        work.communicator = variant == 1 ? post_forward_communicator(shape.reshard_group) : kShard;
        break;
      case EventKind::kReshard:
        work.bytes = Bytes(whole / shape.reshard_group * param_size());
        work.kernels = {copy_kernel(2 * work.bytes.count())};
        break;
      case EventKind::kReduceScatter:
        work.bytes = Bytes(whole * reduce_size());
        work.communicator = reduce_scatter_communicator();
        break;
      case EventKind::kAllReduce:
        if (variant == kPartial) {
          work.bytes = Bytes(state_of(shape).partial * reduce_size());
          work.communicator = communicator_of(MeshDim::kTp);
          break;
        }
        work.bytes = Bytes(shard * 4);
        work.communicator = kReplicate;
        break;
      case EventKind::kHostToDevice:
        work.bytes = Bytes(shard * (variant == kGradientSum ? 4 : param_size()));
        work.launches = 1;
        break;
      case EventKind::kDeviceToHost:
        work.bytes = Bytes(shard * 4);
        work.launches = 1;
        break;
      case EventKind::kAccumulate:
        work.bytes = Bytes(shard * 4);
        work.kernels = {copy_kernel(shard * (reduce_size() + (variant == kAdd ? 8 : 4)))};
        if (variant == kAdd) work.kernels.front().function = Function::kAdd;
        break;
      default: FORESHARD_CHECK(false, "not a unit's row");
    }
    return work;
  }

  UnitWork step_work(EventKind kind) const override {
    UnitWork work;
    std::int64_t elements = sum_of<std::int64_t>(states_, &State::shard);
    const bool shadow = plan_.param_dtype != plan_.master_dtype;
    switch (kind) {
      case EventKind::kGradNorm: work.kernels = {optimizer_kernel(Function::kSumOfSquares, elements * 4)}; break;
      case EventKind::kGradScale:
        // On a GPU the factor alone: the optimizer reads the gradients anyway.
        work.kernels = {optimizer_kernel(Function::kScale, scales_apart() ? elements * 8 : 8)};
        break;
      case EventKind::kAllReduce:
        work.bytes = Bytes(kNormBytes);
        work.communicator = kShard;
        break;
      case EventKind::kOptimizer: {
        // One fused pass whatever optimizer.implementation says: that is the engine's only one. It
        // writes the shadow too.
        const std::int64_t state =
            plan_.optimizer.kind == Optimizer::Kind::kAdamW ? 4 * size_of(plan_.optimizer.state) : 0;
        const std::int64_t bytes = 2 * size_of(plan_.master_dtype) + 4 + state + (shadow ? param_size() : 0);
        work.kernels = {
            optimizer_kernel(plan_.optimizer.kind == Optimizer::Kind::kAdamW ? Function::kAdamW : Function::kSgd,
                checked_multiply(elements, bytes))};
        work.launches = count();
        break;
      }
      default: FORESHARD_CHECK(false, "not a row of the whole step");
    }
    return work;
  }

  bool scales_apart() const { return plan_.host == HostKind::kComputes || offloads(); }

  static Kernel optimizer_kernel(Function function, std::int64_t bytes_moved) {
    Kernel kernel = memory_kernel(MemoryClass::kOptimizer, bytes_moved);
    kernel.function = function;
    return kernel;
  }

  // Units of one shape have one flat layout.
  const State& state_of(const UnitShape& wanted) const {
    for (std::size_t u = 0; u < states_.size(); ++u)
      if (&shape(static_cast<std::int32_t>(u)) == &wanted) return states_[u];
    FORESHARD_CHECK(false, "unknown unit shape");
    return states_.front();
  }

  std::vector<State> states_;
  std::vector<std::int32_t> slot_users_;  // unit that holds or held each parameter slot
  std::vector<std::int32_t> slot_buffers_;
  struct Staging {
    std::int32_t buffer = kNoBuffer;
    EventId copied = kNoEvent;  // the copy that reads it
  };
  std::array<Staging, kStagingSlots> staging_;
  std::size_t next_staging_ = 0;
  std::deque<std::int32_t> reducing_;  // units whose gradients are there until they are reduced
  std::int32_t tokens_ = kNoBuffer;
  std::int32_t labels_ = kNoBuffer;
  bool backward_ = false;
  bool last_ = false;
  bool begins_ = false;  // the next row of backward is the first that writes its unit's gradients
};

}

EventGraph build_native(const ModelSpec& model, const Plan& plan, const LayerPrograms& programs, EventGraph recycled) {
  return Native(model, plan, programs, std::move(recycled)).build();
}

EventGraph build_native_evaluation(const ModelSpec& model, const Plan& plan, const LayerPrograms& programs) {
  return Native(model, plan, programs, {}).evaluation();
}

}
