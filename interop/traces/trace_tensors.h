// The tensors that an operator of a trace was called with, where it was recorded with
// record_shapes=True.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "interop/traces/kineto.h"

namespace foreshard {

using TensorShape = std::vector<std::int64_t>;

struct TracedTensor {
  std::string dtype;  // as collectives print it: "BFloat16", "Float"; "" in a list of tensors
  TensorShape shape;
  std::int64_t elements() const;
};

// Its tensors in the order of the arguments, lists of tensors in their place; without scalars. None
// without shapes.
std::vector<TracedTensor> tensors_of(const KinetoTrace& trace, const TraceEvent& event);

}  // namespace foreshard
