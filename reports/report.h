// What we say about a step: derived from a graph, a timeline and a memory profile, predicted or measured, by one
// function. Keys of the JSON form: DESIGN section 11, schema cli/schemas/report.txt.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "reports/open_stack.h"
#include "sim/base/json.h"
#include "sim/cost/cost_model.h"
#include "sim/memory/capacity.h"
#include "sim/memory/outside_allocator.h"
#include "sim/simulate/forecast.h"

namespace foreshard {

// A 90 % interval around a forecast (measured: quartiles of the repeats).
struct Quantity {
  double value = 0;
  double low = 0;
  double high = 0;
  Evidence evidence = Evidence::kAssumed;
};

// The 5 % and 95 % quantiles of the draws around `value`, which is always inside; without draws the value alone.
Quantity with_interval(double value, std::vector<double> draws, Evidence evidence);
// A step's seconds with the forecast of every code inside.
Quantity covering(Quantity seconds, const std::vector<StackOutcome>& outcomes);
Json to_json(const Quantity& quantity);

// Durations of one timeline. Communication is the union of all [arrive, end] of collectives; exposed is the part of it
// in which no compute-stream row runs; waiting is the union of [start, arrive].
struct StepMetrics {
  double seconds = 0;
  double communication = 0;
  double exposed_communication = 0;
  double waiting = 0;
  double compute = 0;  // union of compute-stream rows
  double idle = 0;     // neither compute nor communication: the host, or a dependency between streams
};
StepMetrics measure_step(const EventGraph& graph, const Timeline& timeline);

// Parameters in the compute dtype, whole and as one GPU's shard; padding is what dim-0 sharding
// adds (native: alignment).
struct Sharding {
  DType dtype = DType::kBf16;
  Bytes whole;
  Bytes per_gpu;
  Bytes padding;  // within per_gpu
};

// Of a measured run only.
struct RunFigures {
  std::vector<double> losses;  // NaN where the run diverged
  std::string parameter_hash;
  double tokens_per_s = 0;  // of all ranks
};

struct Report {
  std::string origin = "predicted";
  std::string fingerprint;
  Plan plan;
  Cluster cluster;
  std::int64_t parameters = 0;
  Sharding sharding;
  Quantity seconds, tokens_per_s_per_gpu, mfu, hfu, communication, exposed_communication;
  double first_step_seconds = 0;
  int steady_step = 2;
  // Each rank of a pipeline: its stages, what of the step its compute stream has nothing to do, the
  // peak of what it allocates. Empty without.
  struct PipelineRank {
    std::vector<int> stages;
    double idle = 0;
    Bytes peak;
  };
  std::vector<PipelineRank> pipeline;
  Fit fit;
  double fit_probability = 1;  // by what forecasts of reserved memory are usually off
  Bytes host_peak;             // pinned and pageable memory of the host, per rank
  // What the caching allocator asks of the driver in step 1 and in a steady step.
  struct DriverCalls {
    std::int64_t allocs = 0, frees = 0, retries = 0;
    double seconds = 0;  // that they hold the host up
  };
  DriverCalls first_calls, steady_calls;
  bool driver_calls_repeat = true;  // else steady_calls is a step of several different ones
  OutsideItems outside;             // what fit.outside is the sum of; empty for a measured run
  Quantity peak_allocated, peak_reserved, outside_allocator;  // bytes
  std::string peak_event;                                     // "backward layers.1"
  std::vector<std::pair<std::string, Bytes>> at_peak;         // category, descending
  OpenStack open_stack;  // the figures above are of its first outcome, their intervals of all
  std::vector<std::pair<std::string, std::string>> assumed;  // key or figure, value and why
  std::vector<std::string> warnings;
  std::optional<RunFigures> run;
};

// What holds whoever timed the step: fingerprint, plan, cluster, parameters and their sharding.
Report describe(const Forecast& forecast, const Cluster& cluster);

// What a step does, so that rates are one of these over the step's seconds.
struct StepRates {
  double tokens_per_gpu = 0;
  double model_peak_seconds = 0;     // model FLOPs / the peak of all GPUs; 0 where no peak is known
  double hardware_peak_seconds = 0;  // with recomputed FLOPs
};
StepRates step_rates(const Forecast& forecast, const Cluster& cluster);
double mfu_of(const Forecast& forecast, const Cluster& cluster);

// Seconds and memory of a forecast; `of`: the case that it is of, nullptr where the stack is said.
StackOutcome outcome_of(const Forecast& forecast, const Cluster& cluster, const StackCase* of);

// Intervals come from `draws` re-simulations with the latent factors of the machine drawn from their spreads (0: none).
// `cases`: the codes that may run the job, of which the forecast is the first; none: its stack is said.
Report summarize(const Forecast& forecast, const CostModel& costs, int draws, const std::vector<StackCase>& cases = {});
Json to_json(const Report& report);

}
