#pragma once

#include "sim/simulate/forecast.h"

namespace foreshard {

// forecast() for those who compare codes: of its memory the peaks alone, of its timeline not the
// first steps.
Forecast forecast_figures(const ModelSpec& model, const Plan& plan, const CostModel& costs);

}  // namespace foreshard
