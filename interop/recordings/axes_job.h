// Recordings of torchtitan's own models and parallelize functions over several axes
// (tests/recordings/nd): what a configuration's settings mean.
#pragma once

#include "interop/recordings/recorded_job.h"
#include "interop/recordings/recordings.h"

namespace foreshard {

// Whether the folder's index tells axes.
bool has_axes(const RecordingFolder& folder);

// As read_recorded_job().
RecordedJob read_axes_job(const RecordingFolder& folder, std::size_t row);

}  // namespace foreshard
