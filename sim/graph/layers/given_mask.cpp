#include "sim/graph/layers/given_mask.h"

#include <algorithm>

#include "sim/base/lookup.h"
#include "sim/base/units.h"

namespace foreshard {

std::vector<std::int64_t> kept_masks(const ModelSpec& model, const Plan& plan) {
  std::vector<std::string_view> names;
  std::vector<std::int64_t> sizes;
  std::int64_t block = 0;
  for (const LayerInstance& instance : model.order) {
    const LayerSpec& layer = model.kinds[at(instance.kind)];
    if (layer.role != LayerRole::kBlock || instance.same_as >= 0) continue;
    if (plan.recompute.at(block++) != Recompute::kFull) continue;
    for (const TensorSpec& tensor : layer.tensors) {
      const bool is_mask = tensor.name.starts_with(kGivenMask);
      if (!is_mask || contains(names, tensor.name)) continue;
      names.push_back(tensor.name);
      const std::int64_t count = elements(tensor, plan.batch.micro_batch, plan.batch.sequence);
      const std::int64_t size = tensor.type == ElementType::kByte    ? 1
                                : tensor.type == ElementType::kInt64 ? 8
                                : tensor.type == ElementType::kFp32  ? size_of(DType::kFp32)
                                                                     : size_of(plan.compute_dtype());
      sizes.push_back(checked_multiply(count, size));
    }
  }
  return sizes;
}

bool adds_sinusoids(const ModelSpec& model) {
  return std::ranges::any_of(
      model.kinds, [](const LayerSpec& layer) { return contains(layer.tensors, kSinusoids, &TensorSpec::name); });
}

}
