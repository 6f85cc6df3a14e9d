// A cause is a change of the job: factors of its machine (links, clocks, host) times a severity, a
// key of its plan (attention, norms, dtype, recompute, mesh), or time that the step waits (data,
// another rank, the allocator) added to the forecast. Severities are evenly spread over what people
// meet, as logarithms.
#include "planner/diagnose_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <optional>
#include <stdexcept>

#include "sim/base/error.h"
#include "sim/base/spelling.h"
#include "sim/base/unit_strings.h"
#include "sim/graph/training_step.h"
#include "sim/simulate/simulate.h"

namespace foreshard {
namespace {

struct Machine {
  const char* cause;
  std::vector<Factor> factors;
};
const std::vector<Machine>& machine_causes() {
  static const std::vector<Machine> causes = {
      {"slow_link", {Factor::kIntraNode}},
      {"slow_link", {Factor::kInterNode}},
      {"slow_link", {Factor::kIntraNode, Factor::kInterNode}},
      {"clock_cap", {Factor::kGemm, Factor::kAttention}},
      {"clock_cap", {Factor::kGemm, Factor::kAttention, Factor::kMemoryBound}},
      {"host_bound", {Factor::kHost}},
  };
  return causes;
}
constexpr double kSeverities[] = {1.25, 1.6, 2.2, 3.2, 5, 8};

struct Changed {
  const char* cause;
  std::vector<std::string> changes;
};

std::vector<Changed> changes_of(const Job& job) {
  const Plan& plan = job.resolved.plan;
  std::vector<Changed> list = {{"eager_attention", {"attention=eager"}},
                               {"eager_attention", {"attention=math"}},
                               {"eager_norms", {"kernels.norm=eager"}},
                               {"eager_norms", {"kernels.norm=eager", "compile=none"}},
                               {"eager_norms", {"kernels.norm=eager", "kernels.residual=fp32"}},
                               {"wider_dtype", {"dtype.param=fp32"}},
                               {"kept_logits", {"loss=eager", "logits=held"}},
                               {"kept_logits", {"loss=eager"}}};
  const bool recomputes = plan.recompute.value != Recompute::kNone;
  list.push_back({"recompute_on", {recomputes ? "recompute=none" : "recompute=full"}});
  if (!recomputes) list.push_back({"recompute_on", {"recompute=selective"}});
  if (plan.mesh.world() % 2 == 0) {
    for (const std::int64_t divisor : {std::int64_t{2}, plan.mesh.shard}) {
      if (divisor <= 1 || plan.mesh.shard % divisor != 0) continue;
      list.push_back({"wrong_world",
                      {fmt::format("mesh={{shard: {}, replicate: {}}}", plan.mesh.shard / divisor,
                                   plan.mesh.replicate * divisor)}});
    }
  }
  return list;
}

Signals signals_of(const Forecast& made, const StepMetrics& step) {
  Signals signals;
  signals.step = step.seconds;
  signals.compute = step.compute;
  signals.communication = step.communication;
  signals.exposed = step.exposed_communication;
  signals.waiting = step.waiting;
  signals.idle = step.idle;
  signals.data = 0;
  signals.retries = 0;
  signals.memory = static_cast<double>(made.memory.peak.count());
  signals.reserved = static_cast<double>(made.reserved.peak.count());
  return signals;
}

Signals waits(Signals signals, double seconds, std::optional<double> Signals::*where) {
  *signals.step += seconds;
  *(signals.*where) += seconds;
  return signals;
}

void add_machine(const Forecast& right, const CostModel& costs, std::vector<CauseForecast>& list) {
  Simulator simulator;
  const Signals as_is = list.front().signals;
  for (const Machine& machine : machine_causes()) {
    for (const double severity : kSeverities) {
      FactorDraw draw = costs.center();
      for (const Factor factor : machine.factors) {
        draw[static_cast<std::size_t>(factor)] *= severity;
      }
      const StepMetrics step = measure_step(
          right.graph, simulator.steady_step(right.graph, costs.price(right.graph, draw)));
      const Signals signals = signals_of(right, step);
      // A link that nothing crosses, a host that is never waited for.
      if (std::abs(std::log(*signals.step / *as_is.step)) < 0.01) continue;
      list.push_back({machine.cause, signals});
    }
  }
}

void add_waits(const Job& job, std::vector<CauseForecast>& list) {
  const Signals right = list.front().signals;
  for (const double share : {0.08, 0.2, 0.5, 1.2, 3.0}) {
    const double seconds = share * *right.step;
    Signals data = waits(right, seconds, &Signals::idle);
    data.data = seconds;
    list.push_back({"data_loader", data});
    if (job.resolved.plan.mesh.world() > 1) {
      list.push_back({"slow_rank", waits(right, seconds, &Signals::waiting)});
    }
    Signals retries = waits(right, seconds, &Signals::idle);
    retries.retries = 4;
    // Near the end of memory, or it would not give back.
    retries.reserved =
        std::max(*right.reserved, 0.97 * static_cast<double>(job.cluster.gpu.memory.count()));
    list.push_back({"allocator_retries", retries});
  }
  if (*right.communication > *right.exposed) {
    Signals serial = right;
    const double hidden = *right.communication - *right.exposed;
    *serial.step += hidden;
    serial.exposed = *right.communication;
    list.push_back({"no_overlap", serial});
    serial = right;
    *serial.step += hidden / 2;
    serial.exposed = *right.exposed + hidden / 2;
    list.push_back({"no_overlap", serial});
  }
  for (const double times : {1.15, 1.4, 1.8}) {  // of memory alone
    Signals more = right;
    more.memory = times * *right.memory;
    more.reserved = times * *right.reserved;
    list.push_back({"memory_growth", more});
  }
  const auto parameters = static_cast<double>(job.model.parameters());
  for (const double bytes : {2.0, 4.0}) {
    for (const double shards : {1.0, static_cast<double>(job.resolved.plan.mesh.shard)}) {
      Signals copy = right;
      copy.memory = *right.memory + bytes * parameters / shards;
      copy.reserved = *right.reserved + bytes * parameters / shards;
      list.push_back({"second_copy", copy});
    }
  }
}

// --- what was measured ---

struct Key {
  const char* name;
  std::optional<double> Signals::*field;
};
constexpr Key kTimes[] = {
    {"step", &Signals::step},       {"step_time", &Signals::step},
    {"compute", &Signals::compute}, {"communication", &Signals::communication},
    {"exposed", &Signals::exposed}, {"waiting", &Signals::waiting},
    {"idle", &Signals::idle},       {"data", &Signals::data}};
constexpr Key kBytes[] = {{"memory", &Signals::memory},
                          {"allocated", &Signals::memory},
                          {"reserved", &Signals::reserved}};
constexpr const char* kKeys =
    "step=2.1s, tokens/s=99840, tokens/s/gpu=3120, memory=61GiB, reserved=70GiB, or of a trace "
    "compute, communication, exposed, waiting, idle, data (each with a unit of time), retries=4";

[[noreturn]] void refuse(const std::string& said, const std::string& why) {
  throw Error(ExitCode::kUsage, fmt::format("--measured {}: {}; expected {}", said, why, kKeys));
}

double positive(const std::string& said, const std::string& text) {
  std::size_t used = 0;
  double value = 0;
  try {
    value = std::stod(text, &used);
  } catch (const std::exception&) {
    refuse(said, "is no number");
  }
  if (used != text.size()) refuse(said, "has a unit that the key does not take");
  if (!std::isfinite(value) || value <= 0) refuse(said, "is not above zero");
  return value;
}

}  // namespace

double step_log_sd(const Quantity& seconds) {
  if (seconds.low <= 0 || seconds.high <= seconds.low) return 0.06;
  return std::max(0.03, std::log(seconds.high / seconds.low) / 2 / kStandardDeviations);
}

std::vector<CauseForecast> cause_forecasts(const Job& job) {
  const CostModel costs = cost_model(job);
  const Forecast right = forecast(job.model, job.resolved.plan, costs);
  std::vector<CauseForecast> list = {
      {"as_forecast", signals_of(right, measure_step(right.graph, right.timeline))}};
  add_machine(right, costs, list);
  add_waits(job, list);
  for (const Changed& changed : changes_of(job)) {
    JobOptions options = job.options;
    options.assignments.push_back(changed.changes);
    try {
      const Job other = load_job(options);
      if (other.resolved.plan == job.resolved.plan) continue;
      const Forecast made = forecast(other.model, other.resolved.plan, cost_model(other));
      list.push_back({changed.cause, signals_of(made, measure_step(made.graph, made.timeline))});
    } catch (const Error&) {  // the plan or its runtime cannot have it
      continue;
    }
  }
  return list;
}

Signals read_measured(const std::vector<std::string>& assignments, const Plan& plan) {
  const auto tokens =
      static_cast<double>(plan.batch.sequence * plan.batch.micro_batch * plan.batch.accumulation);
  Signals signals;
  for (const std::string& said : assignments) {
    const std::size_t at = said.find('=');
    if (at == std::string::npos) refuse(said, "has no '='");
    const std::string key = said.substr(0, at), text = said.substr(at + 1);
    const auto is_key = [&](const Key& each) { return key == each.name; };
    try {
      if (const auto* time = std::find_if(std::begin(kTimes), std::end(kTimes), is_key);
          time != std::end(kTimes)) {
        signals.*time->field = parse_time(text).seconds();
      } else if (const auto* size = std::find_if(std::begin(kBytes), std::end(kBytes), is_key);
                 size != std::end(kBytes)) {
        signals.*size->field = static_cast<double>(parse_bytes(text).count());
      } else if (key == "tokens/s/gpu" || key == "tps") {
        signals.step = tokens / positive(said, text);
      } else if (key == "tokens/s") {
        signals.step = tokens * static_cast<double>(plan.mesh.world()) / positive(said, text);
      } else if (key == "retries") {
        signals.retries = positive(said, text);
      } else {
        refuse(said, "no such key");
      }
    } catch (const std::invalid_argument& error) {
      refuse(said, error.what());
    }
  }
  return signals;
}

std::vector<std::string> memory_findings(const Job& job, const CauseForecast& right,
                                         const MessageFacts& facts) {
  constexpr double kGiB = 1024.0 * 1024 * 1024;
  const Plan& plan = job.resolved.plan;
  const double logits = static_cast<double>(plan.batch.micro_batch * plan.batch.sequence) *
                        static_cast<double>(job.model.vocabulary);
  const auto parameters = static_cast<double>(job.model.parameters());
  struct Tensor {
    std::string name;
    double bytes;
  };
  std::vector<Tensor> tensors = {{"the logits in fp32", 4 * logits},
                                 {"the logits in 16 bits", 2 * logits},
                                 {"all parameters in fp32", 4 * parameters},
                                 {"all parameters in 16 bits", 2 * parameters},
                                 {"a rank's shard of the parameters in fp32",
                                  4 * parameters / static_cast<double>(plan.mesh.shard)}};
  std::vector<std::string> findings;
  if (facts.tried > 0) {
    for (const Tensor& tensor : tensors) {
      if (std::abs(facts.tried / tensor.bytes - 1) > 0.03) continue;
      findings.push_back(
          fmt::format("what could not be allocated, {:.2f} GiB, is of the size of {}",
                      facts.tried / kGiB, tensor.name));
    }
  }
  const double forecast = *right.signals.memory;
  if (facts.allocated > 0) {
    findings.push_back(
        fmt::format("PyTorch had allocated {:.2f} GiB; the forecast's peak is {:.2f}",
                    facts.allocated / kGiB, forecast / kGiB));
  }
  if (facts.unallocated > 0.1 * std::max(facts.allocated, 1.0)) {
    findings.push_back(fmt::format("{:.2f} GiB were reserved but unallocated: fragments",
                                   facts.unallocated / kGiB));
  }
  return findings;
}

}  // namespace foreshard
