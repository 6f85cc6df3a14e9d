// What each call of an eager Python step takes (calibration/evidence/host_calls.json, made by
// reports/host_calls.py from steps on the null GPU), and how fast the hosts of GPUs are.
#pragma once

#include <string_view>

#include "sim/spec/calibration.h"

namespace foreshard {

// calls, processor and per_driver_launch with their source, for a key of the machine catalogue; the
// engine's own numbers are zero.
HostCurve published_host_calls(std::string_view machine);

}  // namespace foreshard
