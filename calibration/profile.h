// Calibration profiles as files (`foreshard.profile/1`); the shipped ones are in calibration/profile_store.h. Schema
// and units: calibration/README.md. Profiles of machines that were measured themselves hold such a calibration with its
// `measured` points (calibration/local_profile.h).
#pragma once

#include <string_view>

#include "sim/base/fields.h"
#include "sim/spec/calibration.h"

namespace foreshard {

void fields(auto& io, Calibration& calibration);

Json to_json(const Calibration& calibration);

// Strict: every key there and none besides, ranges checked. Throws ConfigError.
Calibration parse_calibration(std::string_view json, std::string_view file_name);
Calibration read_calibration(const ConfigNode& root);

// What each call of an eager Python step takes (calibration/evidence/host_calls.json, made by
// reports/host_calls.py from steps on the null GPU), and how fast the hosts of GPUs are.

// calls, processor and per_driver_launch with their source, for a key of the machine catalogue; the
// engine's own numbers are zero.
HostCurve published_host_calls(std::string_view machine);

}
