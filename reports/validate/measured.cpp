// Arrivals: ranks stamp a collective's start on their own count from their own step's begin. Adding the begin puts them
// on one clock; the latest over the group, and over the ends of what its ranks had before it on the same communicator,
// is when the collective could move, and goes back into each rank's count.
#include "reports/validate/measured.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "reports/report_parts.h"
#include "sim/base/error.h"
#include "sim/base/quantile.h"

namespace foreshard {
namespace {

// The same step of every rank; nullptr where a rank has none.
using StepOfRanks = std::vector<MeasuredStep*>;

StepOfRanks step_of_ranks(RunRecord& record, std::int64_t number) {
  StepOfRanks steps(at(record.world), nullptr);
  for (RankRecord& rank : record.ranks) {
    if (!rank.clocks_shared) continue;
    for (MeasuredStep& step : rank.timelines)
      if (step.step == number) steps[at(rank.rank)] = &step;
  }
  return steps;
}

// Per row, what was issued before it to the same communicator.
std::vector<EventId> communicator_predecessors(const EventGraph& graph) {
  std::vector<EventId> predecessors(graph.rows.size(), kNoEvent);
  std::vector<EventId> last(kNoCommunicator + std::size_t{1}, kNoEvent);
  for (std::size_t i = 0; i < graph.rows.size(); ++i) {
    const std::uint8_t communicator = graph.rows[i].communicator;
    if (communicator == kNoCommunicator) continue;
    predecessors[i] = last[communicator];
    last[communicator] = static_cast<EventId>(i);
  }
  return predecessors;
}

void set_arrivals(const EventGraph& graph, const StepOfRanks& steps) {
  const std::vector<EventId> before = communicator_predecessors(graph);
  const auto world = std::ssize(steps);
  for (std::size_t i = 0; i < graph.rows.size(); ++i) {
    const Work& work = graph.works[graph.rows[i].work];
    if (!is_collective(graph.rows[i].kind) || work.communicator == kNoCommunicator) continue;
    const GroupShape& group = graph.communicators[work.communicator].group;
    for (std::int64_t rank = 0; rank < world; ++rank) {
      // Each group once, by its first rank.
      if ((rank / group.stride) % group.size != 0) continue;
      Time latest = Time::ns(std::numeric_limits<std::int64_t>::min());
      bool all = true;
      for (std::int64_t m = 0; m < group.size && all; ++m) {
        const std::int64_t member = rank + m * group.stride;
        const MeasuredStep* step = member < world ? steps[at(member)] : nullptr;
        all = step != nullptr;
        if (!all) break;
        latest = std::max(latest, step->begin + step->spans[i].start);
        if (before[i] == kNoEvent) continue;
        latest = std::max(latest, step->begin + step->spans[at(before[i])].end);
      }
      for (std::int64_t m = 0; m < group.size && all; ++m) {
        MeasuredStep& step = *steps[at(rank + m * group.stride)];
        Span& span = step.spans[i];
        span.arrive = std::min(latest - step.begin, span.end);
      }
    }
  }
}

Quantity measured_quantity(std::vector<double> values) {
  const Quartiles q = quartiles(std::move(values));
  return {q.median, q.low, q.high, Evidence::kMeasured};
}

Quantity measured(Bytes bytes) {
  const auto value = as_double(bytes.count());
  return {value, value, value, Evidence::kMeasured};
}

void summarize_traced_memory(const Cluster& cluster, const RunRecord& record, Report& report) {
  Bytes allocated, reserved;
  for (const RankRecord& rank : record.ranks) {
    allocated = std::max(allocated, rank.peak_allocated);
    reserved = std::max(reserved, rank.peak_reserved);
  }
  report.peak_allocated = measured(allocated);
  report.peak_reserved = measured(reserved);
  report.outside_allocator = measured(Bytes());
  report.fit.capacity = cluster.gpu.memory;
  report.fit.allocated = allocated;
  report.fit.reserved = reserved;
}

// Precondition: report.peak_allocated is known.
void summarize_device_memory(const RunRecord& record, const Cluster& cluster, Report& report) {
  Bytes reserved, used, arena, activations;
  for (const RankRecord& rank : record.ranks) {
    reserved = std::max(reserved, rank.device_reserved);
    used = std::max(used, rank.device_used);
    arena = std::max(arena, rank.arena);
    activations = std::max(activations, rank.activations_peak);
  }
  const Bytes outside = std::max(Bytes(), used - reserved);
  report.peak_reserved = measured(reserved);
  report.outside_allocator = measured(outside);
  report.fit.capacity = cluster.gpu.memory;
  report.fit.allocated = Bytes(static_cast<std::int64_t>(report.peak_allocated.value));
  report.fit.reserved = reserved;
  report.fit.outside = outside;
  report.at_peak = {{"persistent", arena}, {"activation", activations}};
}

void summarize_memory(const Cluster& cluster, const RunRecord& record, Report& report) {
  if (record.source == RunSource::kTrace) return summarize_traced_memory(cluster, record, report);
  Bytes arena, activations;
  std::vector<double> peaks, resident;
  for (const RankRecord& rank : record.ranks) {
    peaks.push_back(as_double((rank.arena + rank.activations_peak).count()));
    resident.push_back(as_double(rank.peak_rss.count()));
    arena = std::max(arena, rank.arena);
    activations = std::max(activations, rank.activations_peak);
  }
  const auto largest = [](const std::vector<double>& values) {
    const auto [low, high] = std::minmax_element(values.begin(), values.end());
    return Quantity{*high, *low, *high, Evidence::kMeasured};
  };
  report.peak_allocated = largest(peaks);
  if (!record.device.empty()) return summarize_device_memory(record, cluster, report);
  // What the process holds; where several ranks share one, what they allocated.
  report.peak_reserved = *std::ranges::min_element(resident) > 0 ? largest(resident) : report.peak_allocated;
  const double outside = std::max(0.0, report.peak_reserved.value - report.peak_allocated.value);
  report.outside_allocator = {outside, outside, outside, Evidence::kMeasured};
  report.fit.capacity = cluster.gpu.memory;
  report.fit.allocated = Bytes(static_cast<std::int64_t>(report.peak_allocated.value));
  report.fit.outside = Bytes(static_cast<std::int64_t>(outside));
  report.fit.reserved = report.fit.allocated;
  report.at_peak = {{"persistent", arena}, {"activation", activations}};
}

}

void check_record(const EventGraph& graph, const RunRecord& record) {
  if (record.ranks.size() != at(record.paced ? 1 : record.world))
    throw invalid_input("the run has records of {} of its {} ranks", record.ranks.size(), record.world);
  for (const RankRecord& rank : record.ranks) {
    if (rank.timelines.empty() || rank.step_durations.empty())
      throw invalid_input("the run ended before rank {} had finished a recorded step", rank.rank);
    for (const MeasuredStep& step : rank.timelines) {
      if (step.duration <= Time()) throw invalid_input("step {} of rank {} took no time", step.step, rank.rank);
      if (step.spans.size() == graph.rows.size()) continue;
      throw invalid_input("step {} of rank {} has {} events, the plan's step has {}", step.step, rank.rank,
          step.spans.size(), graph.rows.size());
    }
  }
}

bool clocks_shared(const RunRecord& record) { return std::ranges::all_of(record.ranks, &RankRecord::clocks_shared); }

RunRecord derive_arrivals(const EventGraph& graph, RunRecord record) {
  // No peers to wait for: what the device told is all there is.
  if (record.paced || (record.world == 1 && !record.device.empty())) return record;
  std::vector<std::int64_t> numbers;
  for (RankRecord& rank : record.ranks) {
    for (MeasuredStep& step : rank.timelines) {
      for (Span& span : step.spans) span.arrive = span.start;
      numbers.push_back(step.step);
    }
  }
  std::ranges::sort(numbers);
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  for (std::int64_t number : numbers) set_arrivals(graph, step_of_ranks(record, number));
  return record;
}

std::vector<const MeasuredStep*> steady_steps(const RunRecord& record, const RankRecord& rank) {
  std::vector<const MeasuredStep*> steady, all;
  for (const MeasuredStep& step : rank.timelines) {
    all.push_back(&step);
    if (step.step >= record.first_step + static_cast<std::int64_t>(record.warm_up)) steady.push_back(&step);
  }
  return steady.empty() ? all : steady;
}

const MeasuredStep& median_step(const RunRecord& record, const RankRecord& rank) {
  const std::vector<const MeasuredStep*> steps = steady_steps(record, rank);
  FORESHARD_CHECK(!steps.empty(), "no recorded step");
  std::vector<double> seconds;
  for (const MeasuredStep* step : steps) seconds.push_back(step->duration.seconds());
  const double median = quartiles(seconds).median;
  return **std::ranges::min_element(steps, [&](const MeasuredStep* a, const MeasuredStep* b) {
    return std::abs(a->duration.seconds() - median) < std::abs(b->duration.seconds() - median);
  });
}

Timeline timeline_of(const RankRecord& rank, const MeasuredStep& step) {
  Timeline timeline = {.spans = step.spans, .period = step.duration};
  if (!rank.step_durations.empty()) timeline.first_step = rank.step_durations.front();
  timeline.steady_step = static_cast<int>(step.step);
  return timeline;
}

Forecast measured_view(const ModelSpec& model, const Plan& plan, const EventGraph& graph, const RunRecord& record) {
  Forecast view = {.model = model, .plan = plan, .graph = graph};
  check_record(graph, record);
  const RunRecord joined = derive_arrivals(graph, record);
  const RankRecord& rank = joined.ranks.front();
  view.timeline = timeline_of(rank, median_step(joined, rank));
  return view;
}

Report summarize_run(const Forecast& view, const Cluster& cluster, const RunRecord& record) {
  Report report = describe(view, cluster);
  report.origin = "measured";
  std::vector<double> seconds, communication, exposed;
  for (Time duration : steady_durations(record)) seconds.push_back(duration.seconds());
  const RunRecord joined = derive_arrivals(view.graph, record);
  for (const RankRecord& rank : joined.ranks) {
    for (const MeasuredStep* step : steady_steps(joined, rank)) {
      const StepMetrics metrics = measure_step(view.graph, timeline_of(rank, *step));
      communication.push_back(metrics.communication);
      exposed.push_back(metrics.exposed_communication);
    }
  }
  report.seconds = measured_quantity(std::move(seconds));
  report.communication = measured_quantity(std::move(communication));
  report.exposed_communication = measured_quantity(std::move(exposed));
  const StepRates rates = step_rates(view, cluster);
  report.tokens_per_s_per_gpu = rate(rates.tokens_per_gpu, report.seconds);
  report.mfu = rate(rates.model_peak_seconds, report.seconds);
  report.hfu = rate(rates.hardware_peak_seconds, report.seconds);
  report.first_step_seconds = step_durations(record).front().seconds();
  report.steady_step = view.timeline.steady_step;
  summarize_memory(cluster, record, report);
  report.run = RunFigures{record.losses, record.parameter_hash, tokens_per_second(record)};
  if (!record.not_finite.empty()) report.warnings.push_back("the run was stopped: " + record.not_finite);
  else if (!record.complete) report.warnings.emplace_back("the run was interrupted");
  return report;
}

}
