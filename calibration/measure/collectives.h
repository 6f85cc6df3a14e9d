// Collectives over all ranks, and what they and computation do to each other.
#pragma once

#include "calibration/measure/bench.h"
#include "calibration/measure/measure.h"

namespace foreshard {

// Rows of kinds collective and contention.
void measure_collectives(World& world, const MeasureRequest& request, std::size_t largest,
                         Bench& bench, Json& rows);

}  // namespace foreshard
