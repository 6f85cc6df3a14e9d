// What a recording's settings mean: the model and the plan that make the same step.
#pragma once

#include <string>
#include <vector>

#include "interop/recordings/recordings.h"
#include "models/recorded.h"
#include "reports/conform/conform.h"
#include "sim/spec/plan.h"

namespace foreshard {

struct RecordedJob {
  RecordedSettings settings;
  ModelSpec model;
  Plan plan;
  // Of the rotary table, which the model keeps as a buffer.
  std::int64_t constant_bytes = 0;
};

// Settings that neither the index nor configs.json has are the recorder's defaults. Throws Error(kMissingCapability)
// that names the setting that no plan expresses, ConfigError for a cell that is no value of its setting.
RecordedJob read_recorded_job(const RecordingFolder& folder, std::size_t row);

// GPUs enough for the plan; nothing that is recorded depends on their kind.
Cluster recorded_cluster(const Plan& plan);

// Builds both steps. Throws what check(plan, ...) throws.
ForecastSteps forecast_steps(const RecordedJob& job);

// Our name of a unit in the recorder's words: its modules joined with '+'.
std::string recorded_unit_name(const std::string& unit, const RecordedSettings& settings);

// Every configuration of the folder in the index's order, then what skipped.csv lists. `only`: ids
// to look at; empty: all. Throws ConfigError for what cannot be read.
ConformanceFolder conform_folder(
    RecordingLibrary& library, const RecordingFolder& folder, const std::vector<std::string>& only);

// Recordings of torchtitan's own models and parallelize functions over several axes
// (tests/recordings/nd): what a configuration's settings mean.

// Whether the folder's index tells axes.
bool has_axes(const RecordingFolder& folder);

// As read_recorded_job().
RecordedJob read_axes_job(const RecordingFolder& folder, std::size_t row);

}
