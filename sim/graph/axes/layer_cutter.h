// One layer of a model as a rank of mesh.tp, mesh.cp and mesh.ep computes it (rank_part.cpp has the
// rules).
#pragma once

#include <cstdint>
#include <vector>

#include "sim/graph/axes/rank_part.h"
#include "sim/spec/model_spec.h"
#include "sim/spec/plan.h"

namespace foreshard {

// Of a tensor over the ranks of mesh.tp.
enum class Placement : std::uint8_t { kWhole, kSequence, kFeature };

// The tensor that says in which order a rank's experts have the rows that came.
inline constexpr const char* kRowOrder = "order of rows";

struct CutLayer {
  LayerSpec layer;
  std::vector<Slices> slices;  // of its operations
  Placement output = Placement::kWhole;
};

// `input`: of what the layer before hands on; `joined`: of what waited for the layer.
CutLayer cut_layer(const LayerSpec& layer, const Plan& plan, Placement input, Placement joined);

// Elements of part `index` of `all` that are cut into `parts` as torch.chunk does: the last parts
// may have fewer, or none.
std::int64_t chunk_of(std::int64_t all, std::int64_t parts, std::int64_t index);

}  // namespace foreshard
