// Calibration profiles as files (`foreshard.profile/1`); the shipped ones are in
// calibration/profile_store.h. Schema and units: calibration/README.md. Profiles of machines that
// were measured themselves hold such a calibration with its `measured` points
// (calibration/local_profile.h).
#pragma once

#include <string_view>

#include "sim/base/fields.h"
#include "sim/spec/calibration.h"

namespace foreshard {

template <typename Io>
void fields(Io& io, Calibration& calibration);

Json to_json(const Calibration& calibration);

// Strict: every key there and none besides, ranges checked. Throws ConfigError.
Calibration parse_calibration(std::string_view json, std::string_view file_name);
Calibration read_calibration(const ConfigNode& root);

}  // namespace foreshard
