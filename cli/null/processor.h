// How fast this machine's processor runs a program like Python's interpreter.
#pragma once

namespace foreshard {

// How many times as long a fixed piece of work takes here as on the processor that
// calibration/evidence/host_calls.json was fitted on (HostCurve::processor counts alike). Takes a
// tenth of a second.
double processor_ratio();

}  // namespace foreshard
