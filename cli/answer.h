// The forecast that a job's options ask for, and what is said where it does not fit.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "planner/job.h"
#include "reports/report.h"

namespace foreshard {

// A forecast with what is said about it. Where it does not fit: by how much and what would help,
// among the report's warnings, as one sentence and as JSON.
struct Answer {
  Job job;
  Forecast forecast;
  Report report;
  std::string shortfall;  // "" where it fits
  Json infeasible;

  ExitCode exit_code() const { return shortfall.empty() ? ExitCode::kOk : ExitCode::kInfeasible; }
};

// Whether the forecast has every row of the step, or, of a step of many
// micro-batches, few of them: what its figures need (reports/sizing/long_step.h).
enum class AnswerRows : std::uint8_t { kAll, kFew };

// Throws as load_job.
Answer answer(const JobOptions& options, AnswerRows rows = AnswerRows::kAll);

}
