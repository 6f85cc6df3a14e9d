// A region with a reduction (a norm, fused or in single operations) is a generated norm, one
// without an elementwise kernel. Backward has no kernel of PyTorch's slow kind, but two generated
// ones: reductions along rows and along columns do not fuse (MixOrderReduction, torch/_inductor
// of 2.10, was the first to), so that the weight's gradient reads the arriving gradient and the input again.
#include "sim/graph/layers/fused_region.h"

#include <algorithm>

#include "sim/base/lookup.h"
#include "sim/graph/layers/layer_kernels.h"

namespace foreshard {
namespace {

// Whether it is new there.
bool insert(Indices& set, std::int16_t t) {
  if (contains(set, t)) return false;
  set.push_back(t);
  return true;
}

std::int64_t size(const FusedRegion::Sizes& bytes, std::int16_t t) { return bytes[at(t)]; }

}

void FusedRegion::enter(const Operation& op) {
  if (region_ == op.region) return;
  region_ = op.region;
  kernel_ = kNone;
  read_.clear();
  written_.clear();
}

void FusedRegion::add(const Operation& op, Pass pass, std::int64_t moved, LayerPhaseProgram& phase) {
  if (kernel_ == kNone) {
    if (moved == 0) return;
    kernel_ = phase.kernels.size();
    add_memory_kernel(phase, op.function, pass, 0);
  }
  Kernel& kernel = phase.kernels[kernel_];
  kernel.bytes += Bytes(moved);
  if (op.kind != OperationKind::kNorm && op.function != Function::kColumnSum) return;
  kernel.function = op.kind == OperationKind::kNorm ? op.function : Function::kRmsNorm;
  kernel.memory_class = MemoryClass::kGeneratedNorm;
}

void FusedRegion::forward(const Operation& op, const Sizes& bytes, LayerPhaseProgram& phase) {
  enter(op);
  std::int64_t moved = 0;
  for (const std::int16_t t : op.inputs) {
    const bool made_here = contains(written_, t);
    if (!made_here && insert(read_, t)) moved += size(bytes, t);
  }
  for (const std::int16_t t : op.outputs)
    if (insert(written_, t)) moved += size(bytes, t);
  add(op, Pass::kForward, moved, phase);
}

void FusedRegion::backward(
    const Operation& op, const Derivative& derivative, const Sizes& bytes, LayerPhaseProgram& phase) {
  enter(op);
  std::int64_t moved = 0;
  const std::int16_t output = op.outputs.front();
  const bool is_made = !insert(written_, output);  // what arrives is in registers, or a part of it
  const bool renames =
      std::ranges::all_of(derivative.gradients, [](const InputGradient& each) { return each.alias && !each.exists; });
  const bool sums = derivative.parts > 1;
  if (!renames || sums) moved += (derivative.parts - (is_made ? 1 : 0)) * size(bytes, output);
  bool wrote_alias = false;
  for (const std::int16_t t : derivative.saved)
    if (insert(read_, t)) moved += size(bytes, t);
  for (const InputGradient& each : derivative.gradients) {
    const bool is_new = insert(written_, each.tensor);
    if (each.inside) {
      if (is_new && each.exists) moved += size(bytes, each.tensor);
      continue;
    }
    if (each.alias && !each.exists) {
      if ((is_made || sums) && !wrote_alias) moved += size(bytes, each.tensor);
      wrote_alias = true;
    } else if (is_new) {
      moved += (each.exists ? 2 : 1) * size(bytes, each.tensor);
    }
  }
  if (!op.parameters.empty()) moved += 2 * size(bytes, output);  // the second kernel
  add(op, Pass::kBackward, moved, phase);
}

}
