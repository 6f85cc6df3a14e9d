// One function turns a timeline into durations; summarize() calls it for the central forecast and for every draw of the
// machine's latent factors, and the quantiles of the draws are the intervals. Throughput and MFU are functions of the
// step's duration alone, so their intervals are the step's, turned round. Where the stack is not said, draws and memory
// are mixtures over the codes that may run the job.
#include <fmt/format.h>
#include <oneapi/tbb/enumerable_thread_specific.h>
#include <oneapi/tbb/parallel_for.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>

#include "reports/accuracy/evidence.h"
#include "reports/accuracy/intervals.h"
#include "reports/report.h"
#include "reports/report_parts.h"
#include "reports/sizing/long_step.h"
#include "reports/view/event_names.h"
#include "reports/view/findings.h"
#include "sim/base/quantile.h"
#include "sim/base/unit_strings.h"
#include "sim/graph/pipeline/stages.h"
#include "sim/memory/memory_alternatives.h"
#include "sim/simulate/folded.h"
#include "sim/simulate/forecast.h"
#include "sim/simulate/repeats.h"
#include "sim/simulate/simulate.h"
#include "sim/spec/checks/plan_check.h"
#include "sim/spec/open_stack.h"

namespace foreshard {
namespace {

constexpr double kLowQuantile = 0.05;
constexpr double kHighQuantile = 0.95;
// The allocator's rules were recorded from PyTorch; what the recordings do not cover comes on top.
constexpr double kAllocatedHigh = 1.02;
// Above this share of the memory the allocator may have to give back and ask again.
constexpr double kNearCapacity = 0.9;

double peak_flops(const Cluster& cluster, DType dtype) {
  return dtype == DType::kFp32 ? cluster.gpu.peak_fp32.value() : cluster.gpu.peak_bf16.value();
}

// Of one rank; all ranks do the same.
double recomputed_flops(const EventGraph& graph) {
  Flops sum;
  for (const Row& row : graph.rows)
    if (row.kind == EventKind::kRecompute) sum += graph.works[row.work].flops;
  return sum.count();
}

// Of a step of all ranks. Parts that are frozen from the front on have no backward at all, which only the graph knows.
double model_flops(const Forecast& forecast) {
  const Plan& plan = forecast.plan;
  const double flops =
      forecast.model.training_flops_per_sequence(plan.batch.sequence).count() * as_double(global_batch(plan));
  const auto is_trained = [](const LayerSpec& kind) {
    return std::ranges::all_of(kind.parameters, &ParameterSpec::trainable);
  };
  if (!plan.frozen.any() && std::ranges::all_of(forecast.model.kinds, is_trained)) return flops;
  Flops done;
  for (const Row& row : forecast.graph.rows)
    if (row.kind != EventKind::kRecompute) done += forecast.graph.works[row.work].flops;
  return std::min(flops, done.count() * as_double(plan.mesh.world()));
}

// A code that may run the job, and its forecast.
struct Code {
  const Forecast& forecast;
  const CostModel& costs;
  RepeatedRows repeats = find_repeats(forecast.graph);
};

// Durations of what a step is drawn to be.
struct Drawn {
  explicit Drawn(std::size_t draws) : seconds(draws), communication(draws), exposed(draws) {}
  void set(int draw, const StepMetrics& metrics, double of_plan) {
    const auto i = at(draw);
    seconds[i] = metrics.seconds * of_plan;
    communication[i] = metrics.communication;
    exposed[i] = metrics.exposed_communication;
  }
  std::vector<double> seconds, communication, exposed;
};

StepMetrics measure(const EventGraph& graph, const Timeline& timeline, const CutRuns& cut) {
  std::vector<Interval> compute, communication, waiting;
  const Time period = timeline.period - cut.time;
  const auto rows = static_cast<EventId>(graph.rows.size());
  for (EventId i = 0; i < rows; ++i) {
    if (i == cut.begin) i = cut.end;
    const Row& row = graph.rows[at(i)];
    const Span& span = timeline.spans[at(i)];
    const std::int64_t earlier = i < cut.end ? 0 : cut.time.nanoseconds();
    // (In nanoseconds: this is asked of every row of every draw.)
    const auto add = [&](std::vector<Interval>& list, Time from, Time to) {
      const std::int64_t begin = std::max<std::int64_t>(0, from.nanoseconds() - earlier);
      const std::int64_t end = std::min(to.nanoseconds() - earlier, period.nanoseconds());
      if (end <= begin) return;
      const bool joins =
          !list.empty() && list.back().begin.nanoseconds() <= begin && begin <= list.back().end.nanoseconds();
      if (!joins) return list.push_back({Time::ns(begin), Time::ns(end)});
      if (list.back().end.nanoseconds() < end) list.back().end = Time::ns(end);
    };
    if (is_collective(row.kind)) {
      add(communication, span.arrive, span.end);
      add(waiting, span.start, span.arrive);
    } else if (computes(row)) {
      add(compute, span.start, span.end);
    }
  }
  compute = united(std::move(compute));
  communication = united(std::move(communication));
  const Time computing = total_length(compute);
  const Time communicating = total_length(communication);
  const Time exposed = communicating - overlap(compute, communication);
  return StepMetrics{.seconds = period.seconds(),
      .communication = communicating.seconds(),
      .exposed_communication = exposed.seconds(),
      .waiting = total_length(united(std::move(waiting))).seconds(),
      .compute = computing.seconds(),
      .idle = (period - computing - exposed).seconds()};
}

void set_times(const StepMetrics& central, Drawn drawn, const StepEvidence& evidence,
    const std::vector<StackOutcome>& outcomes, Report& report) {
  report.seconds = covering(with_interval(central.seconds, drawn.seconds, evidence.seconds), outcomes);
  if (outcomes.size() > 1)
    report.open_stack = open_stack(outcomes, drawn.seconds, report.seconds.high - report.seconds.low);
  report.communication = with_interval(central.communication, std::move(drawn.communication), evidence.communication);
  report.exposed_communication =
      with_interval(central.exposed_communication, std::move(drawn.exposed), evidence.exposed_communication);
}

// `outcomes`: of the codes. `fewer`: where it is asked for, the times of the same with `cut`
// micro-batches less; nothing where the timelines do not show them.
void summarize_time(const std::vector<Code>& codes, std::vector<StackOutcome> outcomes, int draws, Report& report,
    std::optional<Report>* fewer) {
  const Forecast& forecast = codes.front().forecast;
  const CostModel& costs = codes.front().costs;
  const std::vector<double> weights = weights_of(outcomes);
  const auto count = at(draws);
  Drawn drawn(count), drawn_of_fewer(fewer == nullptr ? 0 : count);
  std::atomic<bool> is_shown = fewer != nullptr;
  auto mfu = list_of<double>(codes, [&](const Code& code) { return mfu_of(code.forecast, costs.cluster()); });
  const auto cut = [&](const Code& code, const CostTable& table, const Timeline& timeline) {
    const auto found =
        cut_runs(code.forecast.graph, table, timeline, code.repeats, static_cast<std::int32_t>(kLaidOut - kFewer));
    if (!found) is_shown = false;
    return found;
  };
  oneapi::tbb::enumerable_thread_specific<Simulator> simulators;
  oneapi::tbb::parallel_for(0, draws, [&](int k) {
    const std::size_t of = alternative_of_draw(weights, k);
    const Code& code = codes[of];
    const double plan_draw = code.costs.plan_draw(k, mfu[of]);
    const EventGraph& graph = code.forecast.graph;
    CostTable table = code.costs.price(graph, code.costs.draw(k));
    table.delays = code.forecast.costs.delays;
    const Timeline& timeline = simulators.local().steady_step(graph, table, code.repeats);
    drawn.set(k, measure_step(graph, timeline), plan_draw);
    if (!is_shown) return;
    if (const auto less = cut(code, table, timeline)) drawn_of_fewer.set(k, measure(graph, timeline, *less), plan_draw);
  });
  const StepEvidence evidence = weigh_evidence(forecast, costs);
  set_times(measure_step(forecast.graph, forecast.timeline), std::move(drawn), evidence, outcomes, report);
  std::optional<CutRuns> less;
  for (std::size_t i = codes.size(); i-- > 0 && is_shown;) {
    const Forecast& of = codes[i].forecast;
    less = cut(codes[i], of.costs, of.timeline);
    if (less) outcomes[i].seconds = (of.timeline.period - less->time).seconds();
    if (!of.reserved.stalls.empty()) is_shown = false;
  }
  if (is_shown) {
    set_times(measure(forecast.graph, forecast.timeline, *less), std::move(drawn_of_fewer), evidence, outcomes,
        fewer->emplace());
  }

  const StepRates rates = step_rates(forecast, costs.cluster());
  report.tokens_per_s_per_gpu = rate(rates.tokens_per_gpu, report.seconds);
  report.mfu = rate(rates.model_peak_seconds, report.seconds);
  report.hfu = rate(rates.hardware_peak_seconds, report.seconds);
  report.first_step_seconds = forecast.timeline.first_step.seconds();
  report.steady_step = forecast.timeline.steady_step;
}

Report::DriverCalls driver_calls(const StepReserved& step, const std::vector<HostStall>& stalls) {
  Report::DriverCalls calls{step.device_allocs, step.device_frees, step.retries, 0};
  for (const HostStall& stall : stalls) calls.seconds += stall_time(stall).seconds();
  return calls;
}

// From the least to the most that any code's own interval says of it.
Quantity over_all(const std::vector<StackOutcome>& outcomes, const std::function<Quantity(const Fit&)>& own) {
  Quantity all = own(outcomes.front().fit);
  for (const StackOutcome& each : outcomes) {
    const Quantity one = own(each.fit);
    all.low = std::min(all.low, one.low);
    all.high = std::max(all.high, one.high);
  }
  return all;
}

void summarize_memory(
    const Forecast& forecast, const Cluster& cluster, const std::vector<StackOutcome>& outcomes, Report& report) {
  const MemoryProfile& memory = forecast.memory;
  report.outside = memory_outside(forecast.graph, cluster, forecast.plan.runtime);
  report.fit = outcomes.front().fit;
  report.peak_allocated = over_all(outcomes, [](const Fit& fit) {
    const auto allocated = as_double(fit.allocated.count());
    const auto kept = as_double(kept_besides(fit, kHighQuantile).count());
    return Quantity{allocated, allocated, std::round(allocated * kAllocatedHigh + kept), Evidence::kInterpolated};
  });
  report.peak_reserved = over_all(
      outcomes,
      [](const Fit& fit) {
        const ReservedError error = reserved_error(fit);
        const double spread = kStandardDeviations * error.log_sd;
        const auto reserved = as_double(fit.reserved.count());
        const auto allocated = as_double(fit.allocated.count());
        const auto kept = as_double(kept_besides(fit, kHighQuantile).count());
        return Quantity{reserved, std::max(allocated, std::round(reserved * std::exp(error.log_mean - spread))),
            std::round(reserved * std::exp(error.log_mean + spread) + kept), Evidence::kInterpolated};
      });
  report.outside_allocator = over_all(outcomes, [](const Fit& fit) { return outside_quantity(fit.outside); });
  report.fit_probability = fit_probability(outcomes);
  report.host_peak = memory.host_peak;
  report.first_calls = driver_calls(forecast.reserved.first, forecast.reserved.first_stalls);
  report.steady_calls = driver_calls(forecast.reserved.steady, forecast.reserved.stalls);
  report.driver_calls_repeat = forecast.reserved.repeats;
  report.peak_event = event_name(forecast, memory.peak_event);
  report.at_peak = categories_at_peak(memory);
}

// Figures of the machine that nobody has measured.
std::vector<std::pair<std::string, std::string>> assumed_figures(
    const CostModel& costs, const OutsideItems& outside, const HostCode& host) {
  const Calibration& c = costs.calibration();
  std::vector<std::pair<std::string, std::string>> list;
  const auto why = [](const std::string& source) { return source.empty() ? std::string() : " (" + source + ")"; };
  if (host.python && c.host.calls != HostCurve().calls) {
    list.emplace_back("host", fmt::format("takes {:.3g} times as long as the processor that "
                                          "PyTorch's calls were timed on{}",
                                  c.host.processor, why(c.host.processor_source)));
  } else if (c.host.evidence == Evidence::kAssumed) {
    list.emplace_back("host", fmt::format("{} per hook, {} per launch{}", format_time(Time::seconds(c.host.per_hook)),
                                  format_time(Time::seconds(c.host.per_launch)), why(c.host.source)));
  }
  if (c.contention.evidence == Evidence::kAssumed) {
    list.emplace_back("overlap", fmt::format("slows compute x{:.3g}, communication x{:.3g}{}", c.contention.compute,
                                     c.contention.communication, why(c.contention.source)));
  }
  for (const OutsideItem& item : outside) {
    if (item.evidence != SizeEvidence::kAssumed && item.evidence != SizeEvidence::kDeclared) continue;
    list.emplace_back("outside the allocator: " + item.name, format_bytes(item.bytes) + why(item.source));
  }
  return list;
}

}

Quantity rate(double numerator, const Quantity& seconds) {
  const auto over = [&](double divisor) { return divisor > 0 ? numerator / divisor : 0; };
  return {over(seconds.value), over(seconds.high), over(seconds.low), seconds.evidence};
}

Quantity outside_quantity(Bytes outside) {
  const auto bytes = as_double(outside.count());
  return {
      bytes, std::round(bytes * (1 - kOutsideSpread)), std::round(bytes * (1 + kOutsideSpread)), Evidence::kAssumed};
}

Quantity total_memory(const Report& report) {
  const Quantity& a = report.peak_reserved;
  const Quantity& b = report.outside_allocator;
  const double value = a.value + b.value;
  return {value, value - std::hypot(a.value - a.low, b.value - b.low),
      value + std::hypot(a.high - a.value, b.high - b.value), weaker(a.evidence, b.evidence)};
}

std::vector<std::pair<std::string, Bytes>> categories_at_peak(const MemoryProfile& memory) {
  std::vector<std::pair<std::string, Bytes>> list;
  for (std::size_t c = 0; c < kMemoryCategories; ++c)
    if (memory.at_peak[c] > Bytes()) list.emplace_back(to_string(static_cast<MemoryCategory>(c)), memory.at_peak[c]);
  std::ranges::stable_sort(list, [](const auto& a, const auto& b) { return a.second > b.second; });
  return list;
}

Quantity covering(Quantity quantity, const std::vector<StackOutcome>& outcomes) {
  for (const StackOutcome& each : outcomes) {
    quantity.low = std::min(quantity.low, each.seconds);
    quantity.high = std::max(quantity.high, each.seconds);
  }
  return quantity;
}

Quantity with_interval(double value, std::vector<double> draws, Evidence evidence) {
  Quantity result{value, value, value, evidence};
  if (draws.empty()) return result;
  std::ranges::sort(draws);
  result.low = std::min(value, quantile(draws, kLowQuantile));
  result.high = std::max(value, quantile(draws, kHighQuantile));
  return result;
}

StepMetrics measure_step(const EventGraph& graph, const Timeline& timeline) { return measure(graph, timeline, {}); }

// Of published steps (calibration/published/training_steps.csv) that a crude estimate puts at 80 to
// 100 % of the memory one in five was more than 10 % slow, of those at 50 to 80 % one in a hundred.
void warn_near_capacity(Report& report) {
  const auto capacity = as_double(report.fit.capacity.count());
  const double used = capacity - as_double(report.fit.margin().count());
  if (!report.fit.fits() || capacity <= 0 || used < kNearCapacity * capacity) return;
  report.warnings.push_back(
      fmt::format("near capacity ({:.0f} % of the memory): the allocator may have to retry, so time is unreliable",
          100 * used / capacity));
}

// A step that waits for its host is not made faster by a faster GPU.
void warn_of_host(const Forecast& forecast, Report& report) {
  const HostFindings host = host_findings(forecast);
  if (host.remedies.empty()) return;
  report.warnings.push_back(
      fmt::format("the host binds this step: the GPU waits {} for it. What helps: {} (foreshard explain has the rest)",
          format_time(host.held_up), host.remedies.front()));
}

Report describe(const Forecast& forecast, const Cluster& cluster) {
  Report report = {.fingerprint = forecast.graph.fingerprint(),
      .plan = forecast.plan,
      .cluster = cluster,
      .parameters = forecast.model.parameters()};
  report.sharding.dtype = forecast.plan.param_dtype;
  std::int64_t whole = 0, shard = 0, padding = 0;
  for (const Unit& unit : forecast.graph.units) {
    whole += unit.numel;
    shard += unit.shard_numel;
    padding += unit.shard_numel - unit.numel / unit.shards;  // spread evenly: numel / shards
  }
  // A unit is a rank's part where layers are cut, too.
  if (!forecast.plan.mesh.is_plain()) whole = report.parameters;
  const std::int64_t size = size_of(forecast.plan.param_dtype);
  report.sharding.whole = Bytes(whole * size);
  report.sharding.per_gpu = Bytes(shard * size);
  report.sharding.padding = Bytes(padding * size);
  return report;
}

StepRates step_rates(const Forecast& forecast, const Cluster& cluster) {
  const Plan& plan = forecast.plan;
  const auto world = as_double(plan.mesh.world());
  const auto sequences = as_double(global_batch(plan));
  const double flops = model_flops(forecast);
  const double peak = world * peak_flops(cluster, plan.compute_dtype());
  const auto at_peak = [&](double count) { return peak > 0 ? count / peak : 0; };
  return StepRates{.tokens_per_gpu = sequences * as_double(plan.batch.sequence) / world,
      .model_peak_seconds = at_peak(flops),
      .hardware_peak_seconds = at_peak(flops + recomputed_flops(forecast.graph) * world)};
}

double mfu_of(const Forecast& forecast, const Cluster& cluster) {
  const double seconds = forecast.timeline.period.seconds();
  return seconds > 0 ? step_rates(forecast, cluster).model_peak_seconds / seconds : 0;
}

StackOutcome outcome_of(const Forecast& forecast, const Cluster& cluster, const StackCase* of) {
  Fit fit = fit_in(cluster, forecast.memory.peak, forecast.reserved.peak,
      total(memory_outside(forecast.graph, cluster, forecast.plan.runtime)));
  if (of != nullptr && is_unread(of->name)) fit = with_alternatives(fit, forecast.model, forecast.plan);
  return {of == nullptr ? "" : of->name, of == nullptr ? 1 : of->weight, forecast.timeline.period.seconds(), fit};
}

namespace {

std::vector<Report::PipelineRank> pipeline_ranks(const Forecast& forecast) {
  std::vector<Report::PipelineRank> list;
  if (forecast.graph.pipeline.empty()) return list;
  const std::vector<int> ranks = stage_ranks(stage_pipeline(forecast.plan));
  for (std::size_t r = 0; r < forecast.graph.pipeline.size(); ++r) {
    const EventGraph* const other = forecast.graph.pipeline[r].get();
    const EventGraph& graph = other != nullptr ? *other : forecast.graph;
    const Timeline& timeline = other != nullptr ? forecast.timeline.pipeline.at(r) : forecast.timeline;
    Report::PipelineRank& rank = list.emplace_back();
    for (std::size_t s = 0; s < ranks.size(); ++s)
      if (at(ranks[s]) == r) rank.stages.push_back(static_cast<int>(s));
    Time busy;
    for (std::size_t i = 0; i < graph.rows.size(); ++i) {
      if (graph.rows[i].stream != Stream::kCompute) continue;
      busy += timeline.spans[i].end - timeline.spans[i].arrive;
    }
    rank.idle = 1 - busy.seconds() / forecast.timeline.period.seconds();
    rank.peak = peak_allocated(graph);
  }
  return list;
}

Report summarize(const Forecast& forecast, const CostModel& costs, int draws, const std::vector<StackCase>& cases,
    std::optional<Report>* fewer) {
  std::vector<Code> codes = {{forecast, costs}};
  std::vector<StackOutcome> outcomes = {
      outcome_of(forecast, costs.cluster(), cases.empty() ? nullptr : &cases.front())};
  std::vector<Forecast> others(cases.size());  // but for the first
  oneapi::tbb::parallel_for(std::size_t{1}, std::max<std::size_t>(1, cases.size()),
      [&](auto i) { others[i] = forecast_figures(cases[i].model, cases[i].plan, cases[i].costs); });
  for (std::size_t i = 1; i < cases.size(); ++i) {
    codes.push_back({others[i], cases[i].costs});
    outcomes.push_back(outcome_of(others[i], costs.cluster(), &cases[i]));
  }
  Report report = describe(forecast, costs.cluster());
  summarize_time(codes, outcomes, draws, report, fewer);
  summarize_memory(forecast, costs.cluster(), outcomes, report);
  report.assumed = assumed_figures(costs, report.outside, forecast.graph.host);
  warn_of_host(forecast, report);
  report.pipeline = pipeline_ranks(forecast);
  if (!costs.cluster().host_computes) warn_near_capacity(report);
  return report;
}

}

Report summarize(const Forecast& forecast, const CostModel& costs, int draws, const std::vector<StackCase>& cases) {
  return summarize(forecast, costs, draws, cases, nullptr);
}

ShortSteps summarize_short(
    const Forecast& laid_out, const CostModel& costs, int draws, const std::vector<StackCase>& cases) {
  ShortSteps steps;
  steps.laid_out = summarize(laid_out, costs, draws, cases, &steps.fewer);
  return steps;
}

}
