// import DIR --out model.yaml --plan plan.yaml: what is behind a captured run.
#pragma once

#include <string>

#include "planner/options.h"
#include "sim/base/error.h"

namespace foreshard {

struct CaptureImportOptions : ImportOptions {
  std::string plan;  // of a capture: the plan file; `out` is its model
};

// Whether the path is a folder that foreshard-null wrote.
bool is_capture_folder(const std::string& path);

ExitCode import_capture(const CaptureImportOptions& options);

// import of whatever the files are.
ExitCode run_any_import(const CaptureImportOptions& options);

}  // namespace foreshard
