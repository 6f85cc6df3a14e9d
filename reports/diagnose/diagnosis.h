// Why a measured job is not as forecast: a posterior over causes (reports/diagnose/causes.yaml).
//
// Each cause has a prior, forecasts of what would be measured under it at several severities, and
// signs in what a log says; without figures the words of published threads count, too (threads.h).
// Figures that were not measured do not count.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "reports/report.h"
#include "reports/view/layout.h"
#include "sim/base/json.h"

namespace foreshard {

// What one looks at. Times in seconds of a step, memory in bytes; absent: not measured.
struct Signals {
  std::optional<double> step;           // whole
  std::optional<double> compute;        // some kernel of compute runs
  std::optional<double> communication;  // some collective runs
  std::optional<double> exposed;        // of it, without compute
  std::optional<double> waiting;        // collectives wait for other ranks
  std::optional<double> idle;           // nothing runs
  std::optional<double> data;           // of it, before the first kernel: the next batch
  std::optional<double> retries;        // of the allocator, per step
  std::optional<double> memory;         // peak that PyTorch allocated
  std::optional<double> reserved;       // peak that it took from the driver
  std::optional<double> in_use;         // of the GPU's memory, by all of its processes
  bool operator==(const Signals&) const = default;
  void take(const StepMetrics& measured);  // what a timeline has of them
};

// What would be measured if `cause` were the case, at one severity.
struct CauseForecast {
  std::string cause;  // a name of causes.yaml; "as_forecast": nothing is wrong
  Signals signals;
};

struct Measured {
  Signals signals;
  std::string words;        // of the log
  bool ran_out = false;     // of memory: so much was needed at the least
  std::string said = {};    // by a person, of whose words threads.h knows
  std::string thread = {};  // of threads.yaml, that said so: it has no say
};

struct DiagnosedCause {
  std::string name, text;
  double probability = 0;
  std::string test, fix;
  std::string like;  // a published thread of this cause whose words are like these; may be empty
};

struct Diagnosis {
  std::vector<DiagnosedCause> causes;  // the most probable first; those of causes.yaml
  double as_forecast = 0;              // that nothing is wrong
  bool explained = false;              // whether a cause, or none at all, fits what was measured
  // Measured over forecast; of a job that ran out of memory only where that is above one.
  std::optional<double> step_ratio, memory_ratio;
  bool ran_out = false;
  std::vector<std::string> findings;  // what a message or a log says by itself
};

// `forecasts`: one of "as_forecast" first, then any number of each cause; empty where there is no
// plan: then the words alone count. `step_log_sd`, `memory_log_sd`: of a forecast that is right.
Diagnosis diagnose(const Measured& measured, const std::vector<CauseForecast>& forecasts, double step_log_sd,
    double memory_log_sd = 0.04);

std::string diagnosis_text(const Diagnosis& diagnosis, Color color);
// {causes: [{name, text, probability, test, fix, like}], explained, as_forecast, step_ratio, memory_ratio, ran_out,
// findings}
Json to_json(const Diagnosis& diagnosis);

}
