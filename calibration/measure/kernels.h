// Kernels where they stand: each is timed inside its layer, so that caches hold what they hold in a
// step.
#pragma once

#include "calibration/measure/bench.h"
#include "calibration/measure/measure.h"

namespace foreshard {

// Rows of kinds gemm, attention, memory and host.
void measure_kernels(const MeasuredJob& job, const MeasureRequest& request, Bench& bench, int ranks,
                     Json& rows);

}  // namespace foreshard
