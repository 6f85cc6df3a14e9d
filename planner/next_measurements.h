// What to measure next on a machine: which of its latent factors leaves the most of a usual job's
// interval open, and the command that measures it; among them the training code, where a job does
// not say it.
#pragma once

#include <string>
#include <vector>

#include "sim/base/json.h"

namespace foreshard {

struct NextMeasurement {
  std::string factor;   // "matrix products", "training code"
  double share = 0;     // half of its 90 % interval's effect on the step, over the step
  std::string command;  // that measures it
};

// Of the profile of GPU `gpu` (a catalogue key) in file `profile`, the widest first, for
// Llama-3.1-8B on eight nodes of it.
std::vector<NextMeasurement> next_measurements(const std::string& profile, const std::string& gpu);
std::string next_text(const std::vector<NextMeasurement>& next);
Json next_json(const std::vector<NextMeasurement>& next);

}  // namespace foreshard
