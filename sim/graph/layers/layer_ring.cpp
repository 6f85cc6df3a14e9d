// torch 2.11 distributed/tensor/experimental/_context_parallel/_attention.py, _templated_ring_attention, its backward
// and _SDPAMerger, variable by variable: a buffer lives as long as a name or an open collective refers to it.
//
// Forward: keys and values flat in one buffer; gathered at once, or exchanged with the neighbour before each step and
// awaited behind it. A step is one call of the attention kernel; outputs are merged in fp32. Backward: keys and values
// come round again, and gradients of both go round in fp32, always from neighbour to neighbour: a step's are added to
// what arrived and sent on; the last exchange is awaited at once. A step that the rank skips makes zeros in fp32.
#include <algorithm>
#include <utility>

#include "sim/base/lookup.h"
#include "sim/graph/layers/layer_kernels.h"
#include "sim/graph/layers/layer_phases.h"

namespace foreshard {
namespace {

using Slots = LayerProgramWriter::Slots;

class Ring {
 public:
  Ring(LayerProgramWriter& writer, const Operation& op, MemoryCategory category, Pass pass)
      : writer_(writer), graph_(writer.graph()), op_(op), category_(category), pass_(pass) {
    q_ = graph_.bytes(op.inputs[0]);
    k_ = graph_.bytes(op.inputs[1]);
    v_ = graph_.bytes(op.inputs[2]);
    out_ = graph_.bytes(op.outputs[0]);
    statistics_ = graph_.bytes(op.outputs[1]);
    element_ = graph_.element(op.inputs[1]);
    wide_ = size_of(DType::kFp32) / element_.size();
  }

  Slots forward() {
    pack_keys();
    std::int32_t sum = LayerProgramWriter::kNoSlot;
    for (std::int64_t step = 0; step < op_.ring.ranks; ++step) {
      receive_keys(step);
      send_keys(step);
      if (!op_.ring.computes(step)) continue;
      read_keys(step);
      compute(step);
      if (step > 0) {
        merge(step);
      } else if (widens()) {
        sum = temporary(wide_ * out_, "attention fp32");
        copy(out_ + wide_ * out_);
      } else {
        sum = step_out_.front();
        step_out_.erase(step_out_.begin());
      }
    }
    free(lse_);
    // The results in the compute dtype are the operation's.
    Slots ended;
    if (widens()) ended.push_back(sum);
    else free(sum);
    for (const Slots& rest : {received_keys(), packing_, step_out_}) append(ended, rest);
    return ended;
  }

  Slots backward() {
    const std::int32_t dq = temporary(wide_ * q_, "q.grad fp32");
    Slots sums = {temporary(wide_ * k_, "k.grad fp32"), temporary(wide_ * v_, "v.grad fp32")};
    pack_keys();
    const TensorElement element = op_.ring.narrow ? element_ : TensorElement{ElementType::kFp32, DType::kFp32};
    const std::int64_t wide = (op_.ring.narrow ? 1 : wide_) * (k_ + v_);
    std::int16_t gradients = 0;
    std::int32_t sent = LayerProgramWriter::kNoSlot, came = LayerProgramWriter::kNoSlot;
    std::int32_t held = LayerProgramWriter::kNoSlot, statistics = LayerProgramWriter::kNoSlot;
    Slots made;
    // Those of the rank's own keys need not travel (TransformerEngine), but do in PyTorch's.
    const std::int64_t first = op_.ring.narrow ? 1 : 0;
    for (std::int64_t step = 0; step < op_.ring.ranks; ++step) {
      receive_keys(step);
      send_keys(step);
      if (op_.ring.computes(step)) {
        const std::int32_t half =
            op_.ring.halves(step) ? temporary(statistics_ / 2, "logsumexp") : LayerProgramWriter::kNoSlot;
        read_keys(step);
        free(std::exchange(statistics, half));
        free(std::exchange(made, step_gradients(step)));
      } else {
        replace_by_zeros(made);
      }
      if (step < first) continue;
      const bool adds_half = op_.ring.balanced && step > 0 && step <= op_.ring.rank;
      if (step == first) {
        const Slots flattened = {temporary(wide_ * k_, "k.grad flat"), temporary(wide_ * v_, "v.grad flat")};
        sent = temporary(wide, "k and v.grad to send");
        free(flattened);
      } else {
        writer_.await(gradients);
        free(sent);
        free(std::exchange(sums, {}));
        free(std::exchange(held, came));
        if (adds_half) sums = {temporary(wide_ * k_, "k.grad sum"), temporary(wide_ * v_, "v.grad sum")};
        sent = temporary(wide, "k and v.grad to send");
      }
      copy(wide + (step > 0 ? 2 * wide : k_ + v_));
      came = temporary(wide, "k and v.grad that arrive");
      gradients = launch(CollectiveKind::kAllToAll, wide, wide, element);
      if (adds_half) free(std::exchange(held, LayerProgramWriter::kNoSlot));
      if (op_.ring.halves(step)) free(temporary(wide_ * q_, "q.grad sum"));  // which takes the place of the one before
      copy(3 * wide_ * q_);
    }
    std::int32_t query = dq, both = came;
    if (widens()) {
      query = temporary(q_, "q.grad");
      free(dq);
    }
    writer_.await(gradients);
    if (widens()) {
      both = temporary(k_ + v_, "k and v.grad");
      copy(3 * q_ + 3 * (k_ + v_));
      free(came);
    }
    free(sent);
    free(query);  // the operation's gradients
    free(both);
    Slots ended = {flat_, held, statistics};
    std::erase(ended, LayerProgramWriter::kNoSlot);
    for (const Slots& rest : {received_keys(), made, sums, packing_}) append(ended, rest);
    return ended;
  }

 private:
  // What is in fp32 already is its own copy in fp32.
  bool widens() const { return wide_ > 1; }
  std::int32_t temporary(std::int64_t bytes, const char* what) {
    const std::int32_t slot = writer_.add_slot(category_, bytes, op_.name + " " + what);
    writer_.allocate(slot);
    return slot;
  }
  void free(std::int32_t slot) {
    if (slot != LayerProgramWriter::kNoSlot) writer_.free(slot);
  }
  void free(const Slots& slots) {
    for (const std::int32_t slot : slots) writer_.free(slot);
  }
  void copy(std::int64_t bytes) { add_memory_kernel(writer_.phase(), Function::kCopy, pass_, bytes); }
  std::int16_t launch(CollectiveKind kind, std::int64_t in, std::int64_t out, TensorElement element) {
    const LayerCollective collective{
        .kind = kind, .dim = MeshDim::kCp, .to_neighbour = kind == CollectiveKind::kAllToAll};
    return writer_.launch(collective, in, out, element);
  }

  // Contiguous copies of both, which those of one head are as they are, but for a part of a row.
  void pack_keys() {
    const bool one_head = op_.attention.kv_heads == 1;
    for (const std::size_t i : {std::size_t{1}, std::size_t{2}}) {
      if (one_head && !is_part(op_.inputs[i])) continue;
      packing_.push_back(temporary(i == 1 ? k_ : v_, i == 1 ? "keys" : "values"));
      copy(2 * (i == 1 ? k_ : v_));
    }
  }
  bool is_part(std::int16_t t) const {
    const std::vector<Operation>& all = graph_.layer().operations;
    return std::ranges::any_of(
        all, [t](const Operation& op) { return op.view && op.outputs.size() > 1 && contains(op.outputs, t); });
  }
  // Side by side, before every step but the last; only the first are gathered.
  void send_keys(std::int64_t step) {
    if (step + 1 == op_.ring.ranks) return;
    const std::int32_t before = std::exchange(flat_, temporary(k_ + v_, "keys and values flat"));
    copy(2 * (k_ + v_));
    if (pass_ == Pass::kBackward) free(before);  // a name, which the new one takes
    const bool exchanges = op_.ring.exchanges;
    if (step > 0 && !exchanges) {
      if (pass_ == Pass::kForward) free(std::exchange(flat_, LayerProgramWriter::kNoSlot));
      return;
    }
    const std::int64_t all = exchanges ? k_ + v_ : op_.ring.ranks * (k_ + v_);
    next_ = temporary(all, "keys and values");
    launched_ = launch(exchanges ? CollectiveKind::kAllToAll : CollectiveKind::kAllGather, k_ + v_, all, element_);
  }
  void receive_keys(std::int64_t step) {
    if (step == 0 || (step > 1 && !op_.ring.exchanges)) return;
    writer_.await(launched_);
    if (pass_ == Pass::kForward) free(std::exchange(flat_, LayerProgramWriter::kNoSlot));
    if (received_ != read_) free(received_);
    received_ = std::exchange(next_, LayerProgramWriter::kNoSlot);
  }
  // The kernel's arguments are names of their own, which a step that is skipped keeps.
  void read_keys(std::int64_t step) {
    if (step == 0) return;
    free(std::exchange(packing_, {}));
    if (read_ != received_) free(std::exchange(read_, received_));
  }
  Slots received_keys() const {
    Slots slots = {received_};
    if (read_ != received_) slots.push_back(read_);
    std::erase(slots, LayerProgramWriter::kNoSlot);
    return slots;
  }

  // As many products as one causal attention over the rank's own positions; without balance a later
  // step is not causal, which is twice as many.
  void attend(std::int64_t step) {
    const std::size_t begin = writer_.phase().kernels.size();
    if (pass_ == Pass::kForward) add_forward_kernels(graph_.counts(), op_, writer_.phase());
    else add_backward_kernels(graph_.counts(), op_, {false, true}, writer_.phase());
    if (op_.ring.balanced || step == 0) return;
    for (std::size_t k = begin; k < writer_.phase().kernels.size(); ++k) {
      Kernel& kernel = writer_.phase().kernels[k];
      if (kernel.kind != KernelKind::kAttention) continue;
      writer_.phase().flops += kernel.flops;
      kernel.causal = false;
      kernel.flops = kernel.flops * 2.0;
    }
  }

  // What the kernel makes takes the place of what it made in the step before; the first step's
  // statistics are the merged ones.
  void compute(std::int64_t step) {
    const std::int64_t part = op_.ring.halves(step) ? 2 : 1;
    Slots made = {temporary(out_ / part, "step"), temporary(statistics_ / part, "step logsumexp")};
    for (std::size_t t = 2; t < op_.outputs.size(); ++t)
      made.push_back(temporary(graph_.bytes(op_.outputs[t]), "step state"));
    if (step == 0) {
      lse_ = made[1];
      made.erase(made.begin() + 1);
    }
    attend(step);
    free(std::exchange(step_out_, std::move(made)));
  }

  // The step's output in fp32, its difference to the sum, and that one's share; so the statistics.
  // Halves are put together with the other half again.
  void merge(std::int64_t step) {
    const std::int64_t part = op_.ring.halves(step) ? 2 : 1;
    const std::int64_t wide = wide_ * out_ / part, narrow = statistics_ / part;
    const std::int32_t block = widens() ? temporary(wide, "step fp32") : LayerProgramWriter::kNoSlot;
    const std::int32_t difference = temporary(narrow, "logsumexp difference");
    const std::int32_t weight = temporary(narrow, "weight");
    free(difference);
    const std::int32_t change = temporary(wide, "difference"), share = temporary(wide, "share");
    free(weight);
    free(change);
    const std::int32_t merged = temporary(wide, "merged");
    free(share);
    const std::int32_t back = temporary(narrow, "logsumexp difference");
    const std::int32_t logarithm = temporary(narrow, "logarithm");
    free(back);
    const std::int32_t statistics = temporary(narrow, "merged logsumexp");
    free(logarithm);
    for (const std::int64_t passes : {3, 3, 3}) copy(passes * wide);
    if (widens()) copy(2 * wide);
    if (part > 1) {
      const std::int32_t whole = temporary(statistics_, "logsumexp");
      free(std::exchange(lse_, whole));
      free(temporary(wide_ * out_, "attention fp32"));  // which takes the place of the one before
      copy(2 * wide_ * out_);
      free(statistics);
    } else {
      free(std::exchange(lse_, statistics));
    }
    free(merged);  // or the one before, which is as large
    free(block);
  }

  void replace_by_zeros(Slots& made) {
    const std::int64_t sizes[] = {q_, k_, v_};
    for (std::size_t i = 0; i < made.size(); ++i) free(std::exchange(made[i], temporary(wide_ * sizes[i], "zeros")));
  }

  Slots step_gradients(std::int64_t step) {
    const std::int64_t part = op_.ring.halves(step) ? 2 : 1;
    const std::int64_t keys = step > 0 && op_.ring.balanced && step <= op_.ring.rank ? 2 : 1;
    Slots made = {temporary(q_ / part, "q.grad of step"), temporary(k_ / keys, "k.grad of step"),
        temporary(v_ / keys, "v.grad of step")};
    attend(step);
    return made;
  }

  LayerProgramWriter& writer_;
  const LayerAutograd& graph_;
  const Operation& op_;
  const MemoryCategory category_;
  const Pass pass_;
  std::int64_t q_ = 0, k_ = 0, v_ = 0, out_ = 0, statistics_ = 0;  // bytes
  TensorElement element_;
  std::int64_t wide_ = 1;  // fp32's bytes over an element's
  Slots packing_, step_out_;
  // Keys and values: flat, being sent on; those that are read; those that come next.
  std::int32_t flat_ = LayerProgramWriter::kNoSlot;
  std::int32_t received_ = LayerProgramWriter::kNoSlot, next_ = LayerProgramWriter::kNoSlot;
  std::int32_t read_ = LayerProgramWriter::kNoSlot;
  std::int32_t lse_ = LayerProgramWriter::kNoSlot;
  std::int16_t launched_ = 0;
};

}

Slots write_ring_forward(LayerProgramWriter& writer, const Operation& op, MemoryCategory category) {
  return Ring(writer, op, category, Pass::kForward).forward();
}

Slots write_ring_backward(LayerProgramWriter& writer, const Operation& op) {
  return Ring(writer, op, MemoryCategory::kBackwardTemp, Pass::kBackward).backward();
}

}
