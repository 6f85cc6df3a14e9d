// Micro-measurements of one GPU with the engine's own code.
//
// Kernels are timed inside a few blocks of each model, step after step, so on a chip as hot as
// training makes it: events between the kernels of an operation. Further rows (copies, contention,
// fixed memory, clocks) are `extra`: kept with the raw file, not fitted yet.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "calibration/measure/measure.h"
#include "exec/device/accelerator.h"

namespace foreshard {

struct DeviceMeasureRequest {
  std::vector<MeasuredJob> jobs;
  DType dtype = DType::kBf16;
  double seconds = 300;  // of everything; what does not fit in is left out, in order
  std::function<void(const std::string&)> progress;
  // Told after every part, so that what was measured is kept whatever happens next.
  std::function<void(const Json& rows, const Json& extra)> keep;
};

struct DeviceMeasurements {
  Json rows;   // as calibration/README.md describes them, ranks = 1
  Json extra;  // {kind, ...}, free
};

DeviceMeasurements measure_device(Accelerator& accelerator, const DeviceMeasureRequest& request);

}  // namespace foreshard
