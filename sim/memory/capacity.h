// Whether a peak fits a GPU. One rule for predict and search.
//
// Segments and fragmentation of the caching allocator are not modelled yet: reserved bytes are
// taken as allocated bytes plus kFragmentationMargin, and every report says "allocated only".
#pragma once

#include "sim/base/units.h"
#include "sim/spec/cluster.h"

namespace foreshard {

// Planners that know only allocated bytes leave 5 % (research: practice of 90-95 % of visible
// memory); declared, not fitted.
inline constexpr double kFragmentationMargin = 0.05;

struct Fit {
  Bytes capacity;   // what the driver reports
  Bytes outside;    // CUDA context, NCCL
  Bytes allocated;  // predicted peak
  Bytes reserved;   // allocated plus margin
  Bytes margin() const { return capacity - outside - reserved; }
  bool fits() const { return margin() >= Bytes(0); }
};

inline Fit fit_in(const Cluster& cluster, Bytes peak_allocated) {
  Fit fit;
  fit.capacity = cluster.gpu.memory;
  fit.outside = cluster.memory_outside_allocator;
  fit.allocated = peak_allocated;
  fit.reserved = Bytes(static_cast<std::int64_t>(static_cast<double>(peak_allocated.count()) *
                                                 (1 + kFragmentationMargin)));
  return fit;
}

}  // namespace foreshard
