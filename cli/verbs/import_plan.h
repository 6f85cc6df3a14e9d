// import of files that say how somebody trains: settings of trainers, config.json, weights.
#pragma once

#include <optional>
#include <string>

#include "planner/options.h"
#include "sim/base/error.h"

namespace foreshard {

// Whether the file is one of them, from its name and its first words; the topology's forms are not.
bool is_training_file(const std::string& path);

// A plan file of what they say, and the ledger. Settings of one trainer at most; config.json and
// weights beside them. Throws as the readers do.
ExitCode import_training_files(const ImportOptions& options);

}  // namespace foreshard
