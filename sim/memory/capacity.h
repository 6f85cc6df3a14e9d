// Whether a step fits a GPU. One rule for predict and search.
#pragma once

#include "sim/base/units.h"
#include "sim/spec/cluster.h"

namespace foreshard {

struct Fit {
  Bytes capacity;   // what the driver reports
  Bytes outside;    // CUDA context, NCCL: sim/memory/outside_allocator.h
  Bytes allocated;  // predicted peak
  Bytes reserved;   // predicted peak of what is taken from the driver: peak_reserved()
  Bytes margin() const { return capacity - outside - reserved; }
  bool fits() const { return margin() >= Bytes(0); }
};

inline Fit fit_in(const Cluster& cluster, Bytes peak_allocated, Bytes peak_reserved,
                  Bytes outside) {
  return {cluster.gpu.memory, outside, peak_allocated, peak_reserved};
}

// False: no allocator could make it fit. What search asks of every plan; reserved memory takes
// a hundred times as long to tell and is asked of the plans that are left in the end.
inline bool may_fit(const Cluster& cluster, Bytes peak_allocated, Bytes outside) {
  return fit_in(cluster, peak_allocated, peak_allocated, outside).fits();
}

}  // namespace foreshard
