// torch 2.11 distributed/tensor/experimental/_context_parallel/_attention.py,
// _templated_ring_attention and its backward (505-640).
//
// Forward: keys and values flat in one buffer; gathered at once, or exchanged with the neighbour
// before each step and awaited behind it. A step is one call of the attention kernel; outputs are
// merged in fp32. Backward: keys and values come round again, and gradients of both go round in
// fp32, always from neighbour to neighbour: a step's are added to what arrived and sent on; the
// last exchange is awaited at once.
#include "sim/graph/layers/layer_ring.h"

#include <string>
#include <utility>
#include <vector>

#include "sim/graph/layers/layer_kernels.h"

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
  }

  Slots forward() {
    begin_keys();
    Slots ended;
    const std::int32_t sum = temporary(2 * out_, "attention fp32");
    std::int32_t arrived = received_;
    for (std::int64_t step = 0; step < op_.ring.ranks; ++step) {
      const bool sends = op_.ring.exchanges && step > 0 && step + 1 < op_.ring.ranks;
      std::int32_t next = LayerProgramWriter::kNoSlot;
      std::int16_t flight = launched_;
      if (sends) {
        next = temporary(k_ + v_, "keys and values");
        flight = launch(CollectiveKind::kAllToAll, k_ + v_, k_ + v_, element_);
      }
      if (op_.ring.computes(step)) compute(step);
      const bool waits = step == 0 || sends;
      if (waits) writer_.await(flight);
      if (step == 0) end_packing();
      if (op_.ring.computes(step) && step > 0) merge(step);
      if (sends) writer_.free(std::exchange(arrived, next));
    }
    ended = {sum, arrived};
    return ended;
  }

  Slots backward() {
    const std::int32_t dq = temporary(2 * q_, "q.grad fp32");
    const std::int32_t dkv = temporary(2 * (k_ + v_), "k and v.grad fp32");
    begin_keys();
    std::int16_t keys = launched_;
    std::int32_t arrived = received_;
    const TensorElement fp32{ElementType::kFp32, DType::kFp32};
    std::int16_t gradients = 0;
    std::int32_t sent = LayerProgramWriter::kNoSlot, came = LayerProgramWriter::kNoSlot;
    Slots first;
    const std::int64_t wide = 2 * (k_ + v_);
    for (std::int64_t step = 0; step < op_.ring.ranks; ++step) {
      std::int32_t next = LayerProgramWriter::kNoSlot;
      const bool sends = op_.ring.exchanges && step > 0 && step + 1 < op_.ring.ranks;
      if (step == 1 || (op_.ring.exchanges && step > 1)) {
        writer_.await(keys);
        if (step == 1) end_packing();
      }
      if (sends) {
        next = temporary(k_ + v_, "keys and values");
        keys = launch(CollectiveKind::kAllToAll, k_ + v_, k_ + v_, element_);
      }
      Slots made;
      if (op_.ring.computes(step)) made = compute_backward(step);
      free(first);
      first = {};
      if (step > 0) {
        writer_.await(gradients);
        writer_.free(sent);
      }
      sent = temporary(wide, "k and v.grad to send");
      copy(wide + (step > 0 ? 2 * wide : k_ + v_));
      if (came != LayerProgramWriter::kNoSlot) writer_.free(came);
      came = temporary(wide, "k and v.grad that arrive");
      gradients = launch(CollectiveKind::kAllToAll, wide, wide, fp32);
      copy(3 * 2 * q_);
      first = std::move(made);
      if (sends) writer_.free(std::exchange(arrived, next));
    }
    writer_.await(gradients);
    writer_.free(sent);
    copy(3 * q_ + 3 * (k_ + v_));
    Slots ended = {dq, dkv, came, arrived};
    ended.insert(ended.end(), first.begin(), first.end());
    return ended;
  }

 private:
  std::int32_t temporary(std::int64_t bytes, const char* what) {
    const std::int32_t slot = writer_.add_slot(category_, bytes, op_.name + " " + what);
    writer_.allocate(slot);
    return slot;
  }
  void free(const Slots& slots) {
    for (const std::int32_t slot : slots) writer_.free(slot);
  }
  void copy(std::int64_t bytes) {
    add_memory_kernel(writer_.phase(), Function::kCopy, pass_, bytes);
  }
  std::int16_t launch(CollectiveKind kind, std::int64_t in, std::int64_t out,
                      TensorElement element) {
    return writer_.launch({.kind = kind, .dim = MeshDim::kCp}, in, out, element);
  }

  // Contiguous copies of both, side by side, and the first collective.
  void begin_keys() {
    packing_ = {temporary(k_, "keys"), temporary(v_, "values"),
                temporary(k_ + v_, "keys and values flat")};
    copy(4 * (k_ + v_));
    const bool exchanges = op_.ring.exchanges;
    const std::int64_t all = exchanges ? k_ + v_ : op_.ring.ranks * (k_ + v_);
    received_ = temporary(all, "keys and values");
    launched_ = launch(exchanges ? CollectiveKind::kAllToAll : CollectiveKind::kAllGather, k_ + v_,
                       all, element_);
  }
  void end_packing() { free(std::exchange(packing_, {})); }

  // As many products as one causal attention over the rank's own positions; without balance a later
  // step is not causal, which is twice as many.
  void attend(std::int64_t step) {
    const std::size_t begin = writer_.phase().kernels.size();
    if (pass_ == Pass::kForward) {
      add_forward_kernels(graph_.counts(), op_, writer_.phase());
    } else {
      add_backward_kernels(graph_.counts(), op_, {false, true}, writer_.phase());
    }
    if (op_.ring.balanced || step == 0) return;
    for (std::size_t k = begin; k < writer_.phase().kernels.size(); ++k) {
      Kernel& kernel = writer_.phase().kernels[k];
      if (kernel.kind != KernelKind::kAttention) continue;
      writer_.phase().flops += kernel.flops;
      kernel.causal = false;
      kernel.flops = kernel.flops * 2.0;
    }
  }

  void compute(std::int64_t step) {
    const std::int64_t part = op_.ring.halves(step) ? 2 : 1;
    step_out_ = {temporary(out_ / part, "step"), temporary(statistics_ / part, "step logsumexp")};
    attend(step);
    if (step > 0) return;
    copy(out_ + 2 * out_);
    free(std::exchange(step_out_, {}));
  }

  // The step's output in fp32, its difference to the sum, and that one's share.
  void merge(std::int64_t step) {
    const std::int64_t part = op_.ring.halves(step) ? 2 : 1;
    const std::int64_t wide = 2 * out_ / part;
    const Slots temporaries = {temporary(wide, "step fp32"), temporary(wide, "difference"),
                               temporary(wide, "share"), temporary(statistics_ / part, "weight")};
    for (const std::int64_t passes : {3, 3, 3, 2}) copy(passes * wide);
    free(temporaries);
    if (part > 1) copy(2 * 2 * out_);
    free(std::exchange(step_out_, {}));
  }

  Slots compute_backward(std::int64_t step) {
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
  Slots packing_, step_out_;
  std::int32_t received_ = LayerProgramWriter::kNoSlot;
  std::int16_t launched_ = 0;
};

}  // namespace

Slots write_ring_forward(LayerProgramWriter& writer, const Operation& op, MemoryCategory category) {
  return Ring(writer, op, category, Pass::kForward).forward();
}

Slots write_ring_backward(LayerProgramWriter& writer, const Operation& op) {
  return Ring(writer, op, MemoryCategory::kBackwardTemp, Pass::kBackward).backward();
}

}  // namespace foreshard
