// A row is forecast with what other families' steps say about its machine, never with its own
// family's. What a row leaves open is forecast with each alternative, what a code without preset
// does besides is a spread. Open choices are independent: the logarithms of how far each reaches to
// either side, and of the interval's own end, add up as the root of their squares.
#include <fmt/format.h>
#include <oneapi/tbb/parallel_for.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <optional>

#include "calibration/first_looks.h"
#include "calibration/training_evidence.h"
#include "interop/steps/measured_tables.h"
#include "interop/steps/step_forecaster.h"
#include "interop/steps/training_job.h"
#include "interop/steps/training_rows.h"
#include "reports/report.h"
#include "sim/base/error.h"
#include "sim/base/quantile.h"
#include "sim/cost/collective.h"
#include "sim/memory/capacity.h"
#include "sim/memory/memory_alternatives.h"
#include "sim/spec/preset.h"

namespace foreshard {
namespace {

constexpr int kDraws = 48;
constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

struct RowForecast {
  Report report;
  Fit fit;  // of the report, with what a code without a preset may keep besides
  std::string failure;
  CodeFacts facts;  // of a code at first sight
};

// How far the alternatives of one open choice reach from the forecast; logarithms, up >= 0 >= down.
struct Reach {
  double up = 0, down = 0;
  void take(const Quantity& forecast, const Quantity& alternative) {
    if (forecast.value <= 0 || alternative.value <= 0) return;
    const double log = std::log(alternative.value / forecast.value);
    up = std::max(up, log);
    down = std::min(down, log);
  }
};

void widen(Quantity& quantity, const Reach& reach) {
  if (quantity.value <= 0 || quantity.low <= 0) return;
  const double up = std::hypot(std::log(quantity.high / quantity.value), reach.up);
  const double down = std::hypot(std::log(quantity.low / quantity.value), reach.down);
  quantity.high = quantity.value * std::exp(up);
  quantity.low = quantity.value * std::exp(-down);
}

// What a training code does that no column says, where nobody read its source for a preset but its family's machines
// are known; a standard deviation, rounded: median errors of 4.6 % (the first set of reports/unseen, without MI300X)
// against 2.5 % of families with presets are 5.7 % apart in squares.
constexpr double kUnreadCode = 0.05;

// Whether what it may keep besides is open (sim/memory/memory_alternatives.h): nobody has read it,
// and it is a loop of PyTorch's, not a program that XLA fuses as a whole (stack maxtext).
bool is_unread_loop(const TrainingRow& row) {
  return find_stack(likely_stack(row)) == nullptr && row.word("runtime") != "xla_fsdp";
}

bool is_in_evidence(const std::string& family) {
  const std::vector<FamilyEvidence>& families = training_evidence().families;
  return std::ranges::any_of(families, [&](const FamilyEvidence& each) { return each.family == family; });
}

// How far what such a code may keep besides reaches above the forecast's memory: a logarithm, as a
// share of which nothing was fitted.
constexpr const char* kKeptFact = "kept_besides";

// What the spread of first looks follows from (calibration/first_looks.h).
CodeFacts code_facts(const TrainingRow& row, const TrainingJob& job, const Report& report) {
  const Plan& plan = job.resolved.plan;
  const std::string_view verdict = row.word("score");
  const std::string stack = likely_stack(row);
  const bool has_preset = find_stack(stack) != nullptr;
  CodeFacts facts = code_facts(plan, job.cluster, has_preset ? stack : "");
  const auto add = [&](const char* name, double size) {
    if (size > 0) facts.emplace_back(name, size);
  };
  add("rests_on_readings", !verdict.empty() && verdict != "yes");
  add(kBelowPeakFact, below_half_peak(report.mfu.value));
  // PyTorch 2.0's day: codes before it wrote their kernels themselves, each its own.
  add("before_torch_2", row.has("commit_date") && row.word("commit_date") < "2023-03-15");
  if (is_unread_loop(row)) add(kKeptFact, log_reach(memory_alternatives(job.model, plan), report.fit.allocated));
  return facts;
}

double size_of(const CodeFacts& facts, std::string_view name) {
  const auto found = std::ranges::find_if(facts, [&](const auto& fact) { return fact.first == name; });
  return found == facts.end() ? 0 : found->second;
}

Reach reach_of(const LogReach& reach) { return {reach.up, -reach.down}; }

void shift(Quantity& quantity, double log_shift) {
  for (double* value : {&quantity.value, &quantity.low, &quantity.high}) *value *= std::exp(log_shift);
}

// A code at first sight: what the columns say, and what first looks of others were off by.
void allow_for_code(const std::string& family, RowForecast& forecast) {
  Report& report = forecast.report;
  const FirstLooks& looks = first_looks();
  const double slower = code_shift(looks, looks.time, forecast.facts, family);
  const double larger = code_shift(looks, looks.memory, forecast.facts, family);
  shift(report.seconds, slower);
  const LogReach time = code_reach(looks, looks.time, forecast.facts, family);
  widen(report.seconds, reach_of(time));
  const Reach memory = reach_of(code_reach(looks, looks.memory, forecast.facts, family));
  const double kept = size_of(forecast.facts, kKeptFact);
  for (Quantity Report::*peak : {&Report::peak_allocated, &Report::peak_reserved}) {
    shift(report.*peak, larger);
    widen(report.*peak, {std::hypot(memory.up, kept), memory.down});
  }
  forecast.facts.emplace_back("time_shift", slower);
  forecast.facts.emplace_back("time_down", time.down);
  forecast.facts.emplace_back("time_up", time.up);
  forecast.facts.emplace_back("memory_shift", larger);
}

// Networks of rows that say theirs, as shares of what their machines have at the most (DGX A100:
// 1,600 Gbit/s a node, DGX H100: 3,200): half of twenty all of it, a quarter the least, 0.64 the
// geometric mean, between 0.5 and 0.76 without any one table (TrainingRows.NetworksThatAreSaid).
constexpr double kLikelyNetwork = 0.64;
constexpr double kOtherNetworks[] = {1, 0.25};

RowForecast forecast_row(TrainingRow row) {
  RowForecast result;
  try {
    TrainingJob job = training_job(row);
    const std::vector<std::string> own = {family_of(row.id)};
    const bool is_first_look = !is_in_evidence(own.front());
    std::vector<TrainingJob> links;  // others that its machines may have
    if (is_first_look && leaves_network_open(row, job.cluster)) {
      for (const double share : kOtherNetworks) links.push_back(training_job(with_network(row, job.cluster, share)));
      row = with_network(row, job.cluster, kLikelyNetwork);
      job = training_job(row);
    }
    if (is_first_look && may_exchange_through_host(job.cluster)) {
      links.push_back(job);
      NodeKind& node = links.back().cluster.node;
      node.peer_access = true;
      node.gpu_link = BytesPerSecond(kSlowestThroughHost * 1e9);
    }
    result.report = StepForecaster(job, own).step(kDraws);
    result.fit = result.report.fit;
    if (is_unread_loop(row)) result.fit = with_alternatives(result.fit, job.model, job.resolved.plan);
    constexpr Quantity Report::*kOpen[] = {&Report::seconds, &Report::peak_allocated, &Report::peak_reserved};
    for (const OpenChoice& open : open_choices(row)) {
      std::array<Reach, std::size(kOpen)> reach;
      for (const std::string& assignment : open.assignments) {
        std::optional<TrainingJob> possible;
        try {
          possible = training_job(row, {assignment});
        } catch (const ConfigError&) {
          continue;  // the row's hardware has no such kernel
        }
        const TrainingJob& other = *possible;
        const Report alternative = StepForecaster(other, own).step(0);
        for (std::size_t i = 0; i < reach.size(); ++i) reach[i].take(result.report.*kOpen[i], alternative.*kOpen[i]);
      }
      for (std::size_t i = 0; i < reach.size(); ++i) widen(result.report.*kOpen[i], reach[i]);
    }
    Reach link;
    for (const TrainingJob& other : links) link.take(result.report.seconds, StepForecaster(other, own).step(0).seconds);
    widen(result.report.seconds, link);
    if (is_first_look) {
      result.facts = code_facts(row, job, result.report);
      allow_for_code(own.front(), result);
    } else if (find_stack(row.word("stack")) == nullptr) {
      widen(result.report.seconds, {kNinetyPercent * kUnreadCode, -kNinetyPercent * kUnreadCode});
    }
  } catch (const Error& error) {
    result.failure = error.what();
  }
  return result;
}

std::vector<RowForecast> forecast_rows(const std::vector<TrainingRow>& rows) {
  std::vector<RowForecast> results(rows.size());
  oneapi::tbb::parallel_for(std::size_t{0}, rows.size(), [&](std::size_t i) { results[i] = forecast_row(rows[i]); });
  return results;
}

// --- rows of the answer ---

struct Measured {
  const char* quantity;
  double value;
};

std::vector<Measured> measured_of(const TrainingRow& row) {
  std::vector<Measured> measured;
  if (const auto seconds = row.number("step_time_s")) {
    measured.push_back({"step_time_s", *seconds});
  } else if (const auto rate = row.number("tokens_per_s_per_gpu")) {
    const double sequences =
        row.has("global_batch_seqs")
            ? *row.number("global_batch_seqs")
            : as_double(row.count("micro_batch_per_gpu") * row.count("grad_accum", 1) * ranks_with_samples(row));
    const double tokens = sequences * as_double(row.count("seq_len"));
    if (tokens > 0) measured.push_back({"step_time_s", tokens / (*rate * as_double(row.count("n_gpus", 1)))});
  }
  for (const char* memory : {"peak_mem_alloc_GiB", "peak_mem_reserved_GiB", "peak_mem_total_GiB"})
    if (const auto gib = row.number(memory)) measured.push_back({memory, *gib});
  return measured;
}

std::string size_class(double parameters) {
  if (parameters < 1e9) return "below 1B";
  if (parameters < 1e10) return "1B to 10B";
  return parameters < 1e11 ? "10B to 100B" : "from 100B";
}

void add_groups(const TrainingRow& row, const RowForecast& forecast, AccuracyRow& out) {
  const std::string family = family_of(row.id);
  const std::string gpu(row.word("gpu"));
  out.groups = {{"family x gpu", family + " " + gpu}, {"family", family}, {"gpu", gpu},
      {"runtime", std::string(row.word("runtime"))},
      {"sight", is_in_evidence(family) ? "family left out" : "first look"}};
  if (forecast.report.parameters > 0) {
    out.groups.emplace_back("size", size_class(as_double(forecast.report.parameters)));
    const std::int64_t nodes = forecast.report.cluster.nodes();
    out.groups.emplace_back("nodes", nodes == 1 ? "one" : nodes <= 8 ? "2 to 8" : "more than 8");
  }
}

// The least reserved memory that a step is sure not to exceed.
Bytes sure_to_reserve(Fit fit) {
  fit.outside = Bytes();  // was not measured
  std::int64_t too_little = 0, enough = std::int64_t{1} << 50;
  while (enough - too_little > 1) {
    const std::int64_t middle = too_little + (enough - too_little) / 2;
    fit.capacity = Bytes(middle);
    (fit_probability(fit) >= kConfidence ? enough : too_little) = middle;
  }
  return Bytes(enough);
}

AccuracyRow accuracy_row(const TrainingRow& row, const RowForecast& forecast, const Measured& measured) {
  AccuracyRow out = {.id = row.id, .line = row.line, .quantity = measured.quantity, .measured = measured.value};
  add_groups(row, forecast, out);
  out.groups.emplace_back("quantity", out.quantity);
  const auto take = [&](const Quantity& quantity, double unit) {
    out.predicted = quantity.value / unit;
    out.low = quantity.low / unit;
    out.high = quantity.high / unit;
  };
  const std::string_view quantity = measured.quantity;
  out.facts = forecast.facts;
  if (!forecast.failure.empty()) {
    out.scored = false;
    out.reason = forecast.failure;
    return out;
  }
  const Report& report = forecast.report;
  if (quantity == "step_time_s") {
    take(report.seconds, 1);
    out.fit_probability = fit_probability(forecast.fit);
  } else {
    take(quantity == "peak_mem_alloc_GiB" ? report.peak_allocated : report.peak_reserved, kGiB);
    if (quantity == "peak_mem_total_GiB")  // what the driver says
      for (double* value : {&out.predicted, &out.low, &out.high})
        *value += as_double(forecast.fit.outside.count()) / kGiB;
    if (quantity == "peak_mem_reserved_GiB")
      out.ran_where_sure = measured.value * kGiB <= as_double(sure_to_reserve(forecast.fit).count());
  }
  const std::string_view verdict = row.word("score");
  if (verdict == "no" && quantity == "step_time_s") {
    out.scored = false;
    out.reason = "score: no";
    if (row.has("score_reason")) out.reason += fmt::format(" ({})", row.word("score_reason"));
  } else if (verdict == "flag" && quantity == "step_time_s") {
    out.reason = "flag";
    if (row.has("score_reason")) out.reason += fmt::format(" ({})", row.word("score_reason"));
  }
  return out;
}

}

std::vector<AccuracyRow> score_training_steps(const CsvTable& table) {
  const std::vector<TrainingRow> rows = read_training_rows(table);
  const std::vector<RowForecast> forecasts = forecast_rows(rows);
  std::vector<AccuracyRow> scored;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::vector<Measured> measured = measured_of(rows[i]);
    for (const Measured& each : measured) scored.push_back(accuracy_row(rows[i], forecasts[i], each));
    if (!measured.empty()) continue;
    AccuracyRow none = {.id = rows[i].id, .line = rows[i].line, .quantity = "step_time_s", .scored = false};
    none.reason = rows[i].problem.empty() ? "nothing that is forecast was measured" : rows[i].problem;
    if (forecasts[i].failure.empty()) none.fit_probability = fit_probability(forecasts[i].fit);
    add_groups(rows[i], forecasts[i], none);
    scored.push_back(std::move(none));
  }
  return scored;
}

std::vector<std::string> grammar_problems(const CsvTable& table) {
  std::vector<std::string> problems;
  for (const TrainingRow& row : read_training_rows(table)) {
    if (row.problem.empty()) continue;
    problems.push_back(fmt::format("{}:{}: {}", table.file_name(), row.line, row.problem));
  }
  return problems;
}

}
