// Where profiles of measured machines lie, and what this machine is.
#pragma once

#include <filesystem>
#include <optional>

#include "calibration/local_profile.h"

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

}  // namespace foreshard
