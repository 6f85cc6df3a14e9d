// Mixed precision at the borders of units, written as operations of the layer: FSDP2 casts what
// arrives at a module to param_dtype and what leaves it to output_dtype.
//
// Casts of the layer's own unit carry LayerSegment::kBefore and kAfter as their part; those of a
// module inside stand beside its operations in the part around it.
#pragma once

#include <optional>
#include <vector>

#include "sim/graph/layers/layer_program.h"

namespace foreshard {

struct CastedLayer {
  std::optional<LayerSpec> layer;           // none: the layer as it is
  std::vector<std::optional<DType>> casts;  // per operation: dtype of an inserted cast
};

CastedLayer with_casts(const LayerSpec& layer, const ProgramOptions& options);

// Of every tensor: what arrives keeps its dtype until it is cast; sums and products of two dtypes
// are in the wider one.
std::vector<TensorElement> element_types(const LayerSpec& layer, const CastedLayer& casts,
                                         const ProgramOptions& options);

}  // namespace foreshard
