// A GPU's profile out of the engine's own measurements of it (calibration/measurements.h with a
// device): the shipped profile of that GPU, with what was measured as points.
//
// A measured shape or size then costs what was measured; near ones the shipped curve corrected by
// the points; what was not measured (collectives, overlap) stays as shipped.
#pragma once

#include <string>
#include <vector>

#include "calibration/fit/fit.h"
#include "calibration/measurements.h"

namespace foreshard {

struct DeviceFit {
  Calibration calibration;
  std::vector<CurveReport> reports;  // errors of the shipped curves on the measured rows
  std::vector<std::string> notes;
};

// Throws Error(kInvalidInput) where nothing was measured or the catalogue has no such GPU.
DeviceFit fit_device(const Measurements& measurements);

}  // namespace foreshard
