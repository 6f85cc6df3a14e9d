// The folder that foreshard-null writes: capture.json, calls.txt (or calls.txt.gz), and model.json
// where Python described the model. docs/capture.md has their form.
#pragma once

#include <filesystem>

#include "sim/graph/capture/capture.h"

namespace foreshard {

// Throws Error(kInvalidInput) or ConfigError for what is no capture: file, line and what is wrong.
Capture read_capture(const std::filesystem::path& folder);

}  // namespace foreshard
