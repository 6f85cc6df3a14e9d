// A cause is a change of the job: factors of its machine (links, clocks, host) times a severity, a key of its plan
// (attention, norms, dtype, recompute, mesh), or time that the step waits (data, another rank, the allocator) added to
// the forecast. Severities are evenly spread over what people meet, as logarithms.
#include "planner/diagnose_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "planner/remedy.h"
#include "reports/view/attribution.h"
#include "sim/base/error.h"
#include "sim/base/lookup.h"
#include "sim/base/unit_strings.h"
#include "sim/graph/training_step.h"
#include "sim/memory/outside_allocator.h"
#include "sim/simulate/simulate.h"

namespace foreshard {
namespace {

// `count` severities from `least` to `most`, evenly spread as logarithms.
std::vector<double> severities(double least, double most, int count = 9) {
  std::vector<double> list;
  for (int i = 0; i < count; ++i) list.push_back(least * std::pow(most / least, as_double(i) / (count - 1)));
  return list;
}

void add_machine(const Job& job, std::vector<CauseCase>& list) {
  const auto add = [&](const char* cause, const std::vector<Factor>& factors, double most) {
    for (const double times : severities(1.1, most)) {
      CauseCase& one = list.emplace_back(CauseCase{cause});
      for (const Factor factor : factors) one.machine.emplace_back(factor, times);
    }
  };
  // A clock at less than half is a broken card; links and hosts may be far below what they should.
  add("clock_cap", {Factor::kGemm, Factor::kAttention}, 2.2);
  add("clock_cap", {Factor::kGemm, Factor::kAttention, Factor::kMemoryBound}, 2.2);
  add("host_bound", {Factor::kHost}, 12);
  if (job.resolved.plan.mesh.world() == 1) return;
  add("slow_link", {Factor::kIntraNode}, 12);
  if (job.cluster.nodes() > 1) {
    add("slow_link", {Factor::kInterNode}, 16);
    add("slow_link", {Factor::kIntraNode, Factor::kInterNode}, 8);
  }
}

void add_waits(const Job& job, std::vector<CauseCase>& list) {
  for (const double share : severities(0.05, 4)) {
    list.push_back({.cause = "data_loader", .waits = share, .where = &Signals::data});
    for (const double times : {1.0, 4.0})
      list.push_back({.cause = "allocator_retries", .waits = share, .retries = times});
    list.push_back({.cause = "compiling", .waits = share, .where = &Signals::idle});
    if (job.resolved.plan.mesh.world() == 1) continue;
    list.push_back({.cause = "slow_rank", .waits = share, .where = &Signals::waiting});
  }
  for (const double share : {0.4, 0.7, 1.0}) list.push_back({.cause = "no_overlap", .unhidden = share});
  for (const double times : severities(1.1, 2, 5)) list.push_back({.cause = "memory_growth", .memory = times});
  for (const double share : {0.03, 0.1, 0.3, 0.7})
    list.push_back({.cause = "other_process", .others = share * as_double(job.cluster.gpu.memory.count())});
  const auto parameters = as_double(job.model.parameters());
  for (const double bytes : {2.0, 4.0})
    for (const std::int64_t shards : {std::int64_t{1}, job.resolved.plan.mesh.shard})
      list.push_back({.cause = "second_copy", .more_bytes = bytes * parameters / as_double(shards)});
}

void add_changes(const Job& job, std::vector<CauseCase>& list) {
  const Plan& plan = job.resolved.plan;
  const auto add = [&](const char* cause, std::vector<std::string> changes) {
    list.push_back({cause, std::move(changes)});
  };
  add("eager_attention", {"attention=eager"});
  add("eager_attention", {"attention=math"});
  add("eager_norms", {"kernels.norm=eager"});
  add("eager_norms", {"kernels.norm=eager", "compile=none"});
  add("eager_norms", {"kernels.norm=eager", "kernels.residual=fp32"});
  add("wider_dtype", {"dtype.param=fp32"});
  add("offloaded", {"offload=cpu"});
  add("offloaded", {"zero.offload_optimizer=cpu"});
  add("offloaded", {"zero.offload_optimizer=cpu", "zero.offload_param=cpu"});
  add("kept_logits", {"loss=eager", "logits=held"});
  add("kept_logits", {"loss=eager"});
  const bool recomputes = plan.recompute.value != Recompute::kNone;
  add("recompute_on", {recomputes ? "recompute=none" : "recompute=full"});
  if (!recomputes) add("recompute_on", {"recompute=selective"});
  for (const std::int64_t divisor : {std::int64_t{2}, plan.mesh.shard}) {
    if (divisor <= 1 || plan.mesh.shard % divisor != 0) continue;
    add("wrong_world",
        {fmt::format("mesh={{shard: {}, replicate: {}}}", plan.mesh.shard / divisor, plan.mesh.replicate * divisor)});
  }
}

// As a trace's kernels have it: a row that waits for its launches does not compute meanwhile.
StepMetrics measure_kernels(const EventGraph& graph, const Timeline& timeline, const CostTable& costs) {
  StepMetrics step = measure_step(graph, timeline);
  Time launches;
  for (std::size_t i = 0; i < graph.rows.size(); ++i) {
    if (!computes(graph.rows[i])) continue;
    launches += excess_of(timeline.spans[i], costs.works[graph.rows[i].work]).launches;
  }
  step.compute -= launches.seconds();
  step.idle += launches.seconds();
  return step;
}

Signals signals_of(const Forecast& made, const Cluster& cluster, const StepMetrics& step) {
  Signals signals;
  signals.take(step);
  signals.data = 0;
  signals.retries = 0;
  signals.memory = as_double(made.memory.peak.count());
  signals.reserved = as_double(made.reserved.peak.count());
  const Bytes outside = total(memory_outside(made.graph, cluster, made.plan.runtime));
  signals.in_use = *signals.reserved + as_double(outside.count());
  return signals;
}

void add_to(Signals& signals, const CauseCase& one, double step) {
  const double seconds = one.waits * step;
  *signals.step += seconds;
  if (seconds > 0) *(signals.*one.where) += seconds;
  if (one.where == &Signals::data) *signals.idle += seconds;
  const double hidden = std::max(0.0, *signals.communication - *signals.exposed) * one.unhidden;
  *signals.step += hidden;
  *signals.exposed += hidden;
  *signals.retries += one.retries;
  *signals.in_use -= *signals.reserved;
  for (std::optional<double> Signals::*field : {&Signals::memory, &Signals::reserved})
    signals.*field = *(signals.*field) * one.memory + one.more_bytes;
  *signals.in_use += *signals.reserved + one.others;
}

// --- what was measured ---

struct Key {
  const char* name;
  std::optional<double> Signals::*field;
};
constexpr Key kTimes[] = {{"step", &Signals::step}, {"step_time", &Signals::step}, {"compute", &Signals::compute},
    {"communication", &Signals::communication}, {"exposed", &Signals::exposed}, {"waiting", &Signals::waiting},
    {"idle", &Signals::idle}, {"data", &Signals::data}};
constexpr Key kBytes[] = {{"memory", &Signals::memory}, {"allocated", &Signals::memory},
    {"reserved", &Signals::reserved}, {"in_use", &Signals::in_use}};
constexpr const char* kKeys =
    "slower=12%, step=2.1s, tokens/s=99840, tokens/s/gpu=3120, memory=61GiB, reserved=70GiB, in_use=75GiB, or of a "
    "trace compute, "
    "communication, exposed, waiting, idle, data (each with a unit of time), retries=4";

constexpr double kLeastRate = 1e-9;

[[noreturn]] void refuse(const std::string& said, const std::string& why) {
  throw Error(ExitCode::kUsage, fmt::format("--measured {}: {}; expected {}", said, why, kKeys));
}

double number_of(const std::string& said, const std::string& text, double least) {
  std::size_t used = 0;
  double value = 0;
  try {
    value = std::stod(text, &used);
  } catch (const std::exception&) {
    refuse(said, "is no number");
  }
  if (used != text.size()) refuse(said, "has a unit that the key does not take");
  if (!std::isfinite(value) || value < least) refuse(said, least > 0 ? "is not above zero" : "is below zero");
  return value;
}

}

double log_sd(const Quantity& forecast, double least) {
  if (forecast.low <= 0 || forecast.high <= forecast.low) return 2 * least;
  return std::max(least, std::log(forecast.high / forecast.low) / 2 / kStandardDeviations);
}

std::vector<CauseCase> cause_cases(const Job& job) {
  std::vector<CauseCase> list;
  add_machine(job, list);
  add_waits(job, list);
  add_changes(job, list);
  return list;
}

SignalsOf::SignalsOf(const Job& job)
    : job_(job), costs_(cost_model(job)), right_(forecast(job.model, job.resolved.plan, costs_)) {}

Signals SignalsOf::operator()(const std::vector<CauseCase>& at_once) const {
  JobOptions options = job_.options;
  std::vector<std::pair<Factor, double>> machine;
  for (const CauseCase& one : at_once) {
    if (!one.changes.empty()) options.assignments.push_back(one.changes);
    append(machine, one.machine);
  }
  std::optional<CostModel> own_costs;
  std::optional<Forecast> own;
  if (options.assignments.size() > job_.options.assignments.size()) {
    const Job other = load_job(options);
    own_costs = cost_model(other);
    own = forecast(other.model, other.resolved.plan, *own_costs);
  }
  const CostModel& costs = own ? *own_costs : costs_;
  const Forecast& made = own ? *own : right_;
  StepMetrics step = measure_kernels(made.graph, made.timeline, made.costs);
  if (!machine.empty()) {
    FactorDraw draw = costs.center();
    for (const auto& [factor, times] : machine) draw[at(factor)] *= times;
    Simulator simulator;
    const CostTable table = costs.price(made.graph, draw);
    step = measure_kernels(made.graph, simulator.steady_step(made.graph, table), table);
  }
  Signals signals = signals_of(made, costs.cluster(), step);
  const double as_made = *signals.step;
  for (const CauseCase& one : at_once) add_to(signals, one, as_made);
  // At the end of memory, or of what this process may have of it: nobody knows where.
  if (*signals.retries > 0) signals.reserved = signals.in_use = std::nullopt;
  return signals;
}

std::vector<CauseForecast> cause_forecasts(const Job& job) {
  const SignalsOf signals_under(job);
  std::vector<CauseForecast> list = {{"as_forecast", signals_under({})}};
  const Signals right = list.front().signals;
  for (const CauseCase& one : cause_cases(job)) {
    try {
      const Signals signals = signals_under({one});
      const auto differs = [&](std::optional<double> Signals::*field) {
        return std::abs(std::log(*(signals.*field) / *(right.*field))) > 0.01;
      };
      if (differs(&Signals::step) || differs(&Signals::memory) || differs(&Signals::in_use))
        list.push_back({one.cause, signals});
    } catch (const Error&) {  // the plan or its runtime cannot have it
      continue;
    }
  }
  return list;
}

Signals read_measured(const std::vector<std::string>& assignments, const Plan& plan, Time forecast) {
  // Of a step; ranks of cp and tp share theirs.
  const auto tokens =
      as_double(plan.batch.sequence * plan.batch.micro_batch * plan.batch.accumulation * plan.mesh.data_parallel());
  Signals signals;
  for (const std::string& said : assignments) {
    const std::size_t at = said.find('=');
    if (at == std::string::npos) refuse(said, "has no '='");
    const std::string key = said.substr(0, at), text = said.substr(at + 1);
    const auto is_key = [&](const Key& each) { return key == each.name; };
    try {
      if (const auto* time = std::ranges::find_if(kTimes, is_key); time != std::end(kTimes))
        signals.*time->field = parse_time(text).seconds();
      else if (const auto* size = std::ranges::find_if(kBytes, is_key); size != std::end(kBytes))
        signals.*size->field = as_double(parse_bytes(text).count());
      else if (key == "tokens/s/gpu" || key == "tps")
        signals.step = tokens / as_double(plan.mesh.world()) / number_of(said, text, kLeastRate);
      else if (key == "tokens/s") signals.step = tokens / number_of(said, text, kLeastRate);
      else if (key == "slower" && text.ends_with('%'))
        signals.step = forecast.seconds() * (1 + number_of(said, text.substr(0, text.size() - 1), 0) / 100);
      else if (key == "retries") signals.retries = number_of(said, text, 0);
      else refuse(said, "no such key");
    } catch (const std::invalid_argument& error) {
      refuse(said, error.what());
    }
  }
  return signals;
}

Json measured_json(const Signals& signals) {
  Json json = Json::object();
  const auto add = [&](const Key& key, double unit) {
    if (const std::optional<double>& is = signals.*key.field) json[key.name] = std::round(*is / unit) * unit;
  };
  for (const Key& key : kTimes) add(key, 1e-9);
  for (const Key& key : kBytes) add(key, 1);
  add({"retries", &Signals::retries}, 1e-6);
  for (const char* other : {"step_time", "allocated"}) json.erase(other);
  return json;
}

std::vector<std::string> rate_findings(const Diagnosis& diagnosis, const Plan& plan) {
  const auto gpus = as_double(plan.mesh.world());
  if (diagnosis.explained || !diagnosis.step_ratio || gpus < 4) return {};
  // Nearer to the number of GPUs than to one.
  const double times = std::abs(std::log(*diagnosis.step_ratio)) / std::log(gpus);
  if (times < 0.5 || times > 1.5) return {};
  const double as_other = *diagnosis.step_ratio > 1 ? *diagnosis.step_ratio / gpus : *diagnosis.step_ratio * gpus;
  return {
      fmt::format("tokens/s counts those of all {} GPUs, tokens/s/gpu those of one: by the "
                  "other the step would take {:.2f} times its forecast",
          plan.mesh.world(), as_other)};
}

// There was enough for what was asked for, were it in one piece.
bool is_fragmented(const MessageFacts& facts) {
  return facts.unallocated + facts.free > facts.tried && facts.unallocated > 0.1 * facts.allocated;
}

std::vector<std::string> memory_findings(const Job& job, const Fit& fit, const MessageFacts& facts) {
  constexpr double kGiB = 1024.0 * 1024 * 1024;
  const Plan& plan = job.resolved.plan;
  const double logits = as_double(plan.batch.micro_batch * plan.batch.sequence) * as_double(job.model.vocabulary);
  const auto parameters = as_double(job.model.parameters());
  struct Tensor {
    std::string name;
    double bytes;
  };
  std::vector<Tensor> tensors = {{"the logits in fp32", 4 * logits}, {"the logits in 16 bits", 2 * logits},
      {"all parameters in fp32", 4 * parameters}, {"all parameters in 16 bits", 2 * parameters},
      {"a rank's shard of the parameters in fp32", 4 * parameters / as_double(plan.mesh.shard)}};
  std::vector<std::string> findings;
  if (!fit.fits()) {
    const RemedySearch remedy = find_remedy(job, plan, {});
    findings.push_back(
        fmt::format("by its forecast the plan {}; {}", shortfall_text(fit), remedy_text(remedy, job.cluster)));
  }
  const double capacity = as_double(fit.capacity.count());
  if (facts.capacity > 0 && std::abs(facts.capacity / capacity - 1) > 0.03) {
    findings.push_back(fmt::format(
        "the GPU that ran out has {:.1f} GiB, the plan's {:.1f} GiB", facts.capacity / kGiB, capacity / kGiB));
  }
  if (facts.others > 0)
    findings.push_back(fmt::format("other processes hold {:.2f} GiB of the GPU", facts.others / kGiB));
  if (facts.tried > 0) {
    for (const Tensor& tensor : tensors) {
      if (std::abs(facts.tried / tensor.bytes - 1) > 0.03) continue;
      findings.push_back(fmt::format(
          "what could not be allocated, {:.2f} GiB, is of the size of {}", facts.tried / kGiB, tensor.name));
    }
  }
  const auto forecast = as_double(fit.allocated.count());
  if (facts.allocated > 0) {
    findings.push_back(fmt::format(
        "PyTorch had allocated {:.2f} GiB; the forecast's peak is {:.2f}", facts.allocated / kGiB, forecast / kGiB));
  }
  if (is_fragmented(facts))
    findings.push_back(fmt::format("{:.2f} GiB were reserved but unallocated: fragments", facts.unallocated / kGiB));
  return findings;
}

}
