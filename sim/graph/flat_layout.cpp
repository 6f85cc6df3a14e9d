#include "sim/graph/flat_layout.h"

namespace foreshard {

FlatUnit flatten(const ModelSpec& model, std::span<const std::int32_t> layers, const Plan& plan) {
  const std::int64_t align = kFlatAlignmentBytes / size_of(plan.param_dtype);
  FlatUnit unit = {.shards = plan.mesh.shard};
  std::int64_t sum = 0;
  const auto lay = [&](bool partial) {
    for (const std::int32_t l : layers) {
      const LayerSpec& kind = model.kinds[at(model.order[at(l)].kind)];
      for (std::size_t p = 0; p < kind.parameters.size(); ++p) {
        if (kind.parameters[p].tied || kind.parameters[p].partial != partial) continue;
        const std::int64_t numel = kind.parameters[p].numel();
        unit.parameters.push_back({l, static_cast<std::int32_t>(p), sum, numel});
        sum = checked_add(sum, (numel + align - 1) / align * align);
      }
    }
  };
  lay(false);
  unit.partial_offset = sum;
  lay(true);
  unit.partial_numel = sum - unit.partial_offset;
  const std::int64_t step = checked_multiply(unit.shards, align);
  unit.shard_numel = checked_add(sum, step - 1) / step * align;
  return unit;
}

}
