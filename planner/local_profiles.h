// Where profiles of measured machines lie, and what this machine is.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "calibration/local_profile.h"
#include "sim/base/json.h"

namespace foreshard {

// $XDG_DATA_HOME/foreshard/profiles, or that under ~/.local/share. Throws Error(kMissingCapability)
// where neither variable names a folder.
std::filesystem::path profile_folder();

// Beside it: the forecasts that were held against runs (reports/validate/history.h).
std::filesystem::path history_file();

// The newest *.json of the folder: by the time of measurement at the end of its name
// ("<host>-<created>.json"), then by name. std::nullopt: there is none.
std::optional<std::filesystem::path> newest_profile();

// Its name is "this machine" where the system does not tell.
MeasuredHost this_machine();

// What to measure next on a machine: which of its latent factors leaves the most of a usual job's interval open, and
// the command that measures it; among them the training code, where a job does not say it.

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

}
