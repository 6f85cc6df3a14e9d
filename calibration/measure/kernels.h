// Kernels where they stand: each is timed inside its layer, so that caches hold what they hold in a
// step.
#pragma once

#include "calibration/measure/bench.h"
#include "calibration/measure/measure.h"

namespace foreshard {

// How ranks share cores. Ranks that share one have it in turns of some milliseconds, and the median
// of a kernel that is shorter would be its time on a core of its own. So no more ranks compute at
// once than have cores, and what they take is multiplied by the ranks that share one.
struct Turns {
  int at_once = 1;
  double of_core = 1;
  bool operator==(const Turns&) const = default;
};
Turns turns_of(int ranks, int threads, int cores);

// The job over every mesh.tp of so many ranks that its model can be cut by, 1 first.
std::vector<MeasuredJob> over_tp(const MeasuredJob& job, DType dtype, int ranks);

// Rows of kinds gemm, attention, memory and host.
void measure_kernels(const MeasuredJob& job, const MeasureRequest& request, Bench& bench,
                     const World& world, Json& rows);

}  // namespace foreshard
