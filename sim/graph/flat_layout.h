// Where a unit's parameters lie in its flat buffer (runtime native): one after the other in the order of the layers,
// each aligned to 128 bytes in the compute dtype, the whole padded to equal shards.
//
// 128 bytes keep the operands of matrix products aligned (research: 16 B is the least for vector loads and TMA).
// Offsets and sizes are elements, the same in every dtype; padding is zero everywhere, always.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/spec/model_spec.h"
#include "sim/spec/plan.h"

namespace foreshard {

inline constexpr std::int64_t kFlatAlignmentBytes = 128;

struct FlatParameter {
  std::int32_t layer = 0;      // index into ModelSpec::order
  std::int32_t parameter = 0;  // index into LayerSpec::parameters
  std::int64_t offset = 0;
  std::int64_t numel = 0;
};

struct FlatUnit {
  std::vector<FlatParameter> parameters;
  std::int64_t shard_numel = 0;  // of one rank; the same grid whatever the number of shards
  // Those whose gradient the ranks of mesh.tp have summands of lie together, behind all others.
  std::int64_t partial_offset = 0;
  std::int64_t partial_numel = 0;
  std::int64_t shards = 1;
  std::int64_t padded_numel() const { return shard_numel * shards; }
};

// Tied parameters belong to the layer that owns them and are left out.
FlatUnit flatten(const ModelSpec& model, std::span<const std::int32_t> layers, const Plan& plan);

}
