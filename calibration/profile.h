// Calibration profiles as files: calibration/profiles/<gpu>.json, built into the program.
//
// The shipped ones are the results of fit_published (calibration/fit/fit.h) and nothing else; a
// test refits and compares. Schema and units: calibration/README.md. Profiles of machines that were
// measured themselves hold such a calibration with its `measured` points
// (calibration/local_profile.h).
#pragma once

#include <string_view>

#include "sim/base/config.h"
#include "sim/base/json.h"
#include "sim/spec/calibration.h"

namespace foreshard {

Json to_json(const Calibration& calibration);

// Strict: every key there and none besides, ranges checked. Throws ConfigError.
Calibration parse_calibration(std::string_view json, std::string_view file_name);
Calibration read_calibration(const ConfigNode& root);

// The shipped profile of a catalogue key ("h100-sxm"). Throws Error(kMissingCapability) with the
// list where there is none.
Calibration load_profile(std::string_view gpu_key);

}  // namespace foreshard
