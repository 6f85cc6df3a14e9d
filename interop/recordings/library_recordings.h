// Recordings of DDP, FSDP1 and DeepSpeed ZeRO (tests/recordings/ddp_zero): what the recorder was
// told, as a model and a plan, and what it saw.
//
// index.csv has `lib`, `options` and `facts` (both JSON); configs.json, in the folder or above it,
// has the models and what the index leaves out.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "interop/recordings/recordings.h"
#include "reports/conform/conform.h"
#include "sim/spec/model_spec.h"
#include "sim/spec/plan.h"

namespace foreshard {

// Whether the folder's recordings are of these libraries.
bool has_library_recordings(const RecordingFolder& folder);

struct LibraryJob {
  ModelSpec model;
  Plan plan;
  LibraryWatch watch;
};

// Throws Error(kMissingCapability) that names the option that no plan expresses, ConfigError for what cannot be read.
LibraryJob read_library_job(const RecordingFolder& folder, std::size_t row);

// Throws ConfigError.
LibraryRecording read_library_recording(const RecordingFolder& folder, std::size_t row);

// Every configuration of the folder in the index's order. `only`: ids to look at; empty: all.
ConformanceFolder conform_library_folder(const RecordingFolder& folder, const std::vector<std::string>& only);

}
