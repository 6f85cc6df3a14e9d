// The clock that a power limit leaves a row, from the energy of its kernels.
#pragma once

#include "sim/spec/calibration.h"

namespace foreshard {

// Of a row's kernels at the top clock.
struct HeatLoad {
  double products = 0;  // s
  double others = 0;    // s
  double joules = 0;    // above idle
};

// How often as long as their curves say the row's products take under a limit in W: `cool` where
// the limit does not bind. Needs a curve with idle > 0.
double product_heat(const HeatCurve& curve, const HeatLoad& load, double power_limit);

}  // namespace foreshard
