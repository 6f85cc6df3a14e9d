// MeasuredPoints as JSON: part of profiles of machines that were measured themselves.
#pragma once

#include "sim/base/config.h"
#include "sim/base/json.h"
#include "sim/spec/calibration.h"

namespace foreshard {

Json to_json(const MeasuredPoints& points);
// Strict. Throws ConfigError: unknown keys, no points, bytes not ascending, times falling.
MeasuredPoints read_measured_points(const ConfigNode& node);

}  // namespace foreshard
