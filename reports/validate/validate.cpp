// Both sides go through the same functions: measure_step for the whole step, event_parts for single
// events. Where clocks are not shared, arrivals are unknown, so the forecast's are dropped as well:
// communication then counts from start to end on both sides.
#include "reports/validate/validate.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "reports/validate/measured.h"
#include "reports/view/event_names.h"
#include "reports/view/layout.h"
#include "reports/view/plan_words.h"
#include "sim/base/lookup.h"

namespace foreshard {
namespace {

constexpr std::size_t kWorst = 10;
constexpr double kProfilersShare = 0.02;  // of a step, under which it is not worth a note
// Stacks, sockets and allocator slack of a process are a few MiB, whatever the plan.
constexpr double kSmallestJudgedGrowth = 32.0 * (1 << 20);

Timeline without_arrivals(Timeline timeline) {
  for (Span& span : timeline.spans) span.arrive = span.start;
  return timeline;
}

std::vector<EventParts> measured_parts(const Forecast& forecast, const RunRecord& record) {
  std::vector<std::vector<EventParts>> samples;
  for (const RankRecord& rank : record.ranks)
    for (const MeasuredStep* step : steady_steps(record, rank))
      samples.push_back(event_parts(forecast.graph, timeline_of(rank, *step), forecast.plan.host));
  return median_parts(samples);
}

std::vector<KindComparison> compare_kinds(
    const EventGraph& graph, const std::vector<EventParts>& predicted, const std::vector<EventParts>& measured) {
  std::array<KindComparison, kEventKinds> kinds{};
  for (std::size_t i = 0; i < graph.rows.size(); ++i) {
    KindComparison& kind = kinds[at(graph.rows[i].kind)];
    kind.kind = graph.rows[i].kind;
    ++kind.count;
    kind.seconds.predicted += predicted[i].duration;
    kind.seconds.measured += measured[i].duration;
    kind.waiting.predicted += predicted[i].queue + predicted[i].peers;
    kind.waiting.measured += measured[i].queue + measured[i].peers;
  }
  return list_where<KindComparison>(kinds, [&](const KindComparison& kind) { return kind.count > 0; });
}

std::vector<EventComparison> worst_events(
    const Forecast& forecast, const std::vector<EventParts>& predicted, const std::vector<EventParts>& measured) {
  const auto difference = [&](EventId event) {
    const auto i = at(event);
    return std::abs(measured[i].total() - predicted[i].total());
  };
  std::vector<EventId> order;
  for (std::size_t i = 0; i < predicted.size(); ++i)
    if (difference(static_cast<EventId>(i)) > 0) order.push_back(static_cast<EventId>(i));
  std::ranges::stable_sort(order, [&](EventId a, EventId b) { return difference(a) > difference(b); });
  if (order.size() > kWorst) order.resize(kWorst);
  const EventNames names(forecast.graph, forecast.model);
  std::vector<EventComparison> worst;
  for (EventId event : order) {
    const EventParts& p = predicted[at(event)];
    const EventParts& m = measured[at(event)];
    const EventKind kind = forecast.graph.rows[at(event)].kind;
    worst.push_back({event, names.of(event), {p.total(), m.total()}, {p.host, m.host},
        {p.queue + p.peers, m.queue + m.peers}, {p.duration, m.duration}, cause_of_difference(p, m, kind)});
  }
  return worst;
}

std::vector<MemoryComparison> compare_traced_memory(const Forecast& forecast, const RunRecord& record) {
  Bytes peak;
  for (const RankRecord& rank : record.ranks) peak = std::max(peak, rank.peak_allocated);
  MemoryComparison memory{"peak", {as_double(forecast.memory.peak.count()), as_double(peak.count())}, true, ""};
  if (peak <= Bytes()) {
    memory.judged = false;
    memory.note = "not in the trace: profile_memory=True of torch.profiler records it on GPUs";
  }
  return {memory};
}

std::vector<MemoryComparison> compare_memory(const Forecast& forecast, const RunRecord& record) {
  if (record.source == RunSource::kTrace) return compare_traced_memory(forecast, record);
  Bytes arena, activations, peak, growth;
  bool knows_growth = true;
  for (const RankRecord& rank : record.ranks) {
    arena = std::max(arena, rank.arena);
    activations = std::max(activations, rank.activations_peak);
    peak = std::max(peak, rank.arena + rank.activations_peak);
    growth = std::max(growth, rank.rss_after_init - rank.rss_before_init);
    knows_growth &= rank.rss_before_init > Bytes() && rank.rss_after_init > Bytes();
  }
  const auto both = [](Bytes predicted, Bytes measured) {
    return Comparison{as_double(predicted.count()), as_double(measured.count())};
  };
  const MemoryProfile& memory = forecast.memory;
  std::vector<MemoryComparison> list = {
      {"peak", both(memory.peak, peak), true, ""},
      {"persistent buffers", both(memory.at_start, arena), true, ""},
      {"activations", both(memory.peak - memory.at_start, activations), true, ""},
      {"process growth at init", both(memory.at_start, growth), true, ""},
  };
  MemoryComparison& process = list.back();
  if (!knows_growth) {
    process.judged = false;
    process.bytes.measured = 0;
    process.note = "not known: several ranks in one process";
  } else if (process.bytes.predicted < kSmallestJudgedGrowth) {
    process.judged = false;
    process.note = "too small to judge: " + bytes_text(kSmallestJudgedGrowth) + " is the least";
  }
  return list;
}

std::vector<std::string> notes_on(const Validation& v, const RunRecord& record) {
  std::vector<std::string> notes;
  if (!record.complete) notes.emplace_back("the run was interrupted; what it recorded counts");
  append(notes, record.notes);
  if (record.source == RunSource::kTrace && v.steps < 3) {
    notes.push_back(
        fmt::format("only {} traced step{}; three or more tell how far they repeat", v.steps, v.steps == 1 ? "" : "s"));
  }
  const double traced = median_step(record, record.ranks.front()).duration.seconds() / v.step.measured - 1;
  if (record.source == RunSource::kTrace && traced > kProfilersShare) {
    notes.push_back(
        fmt::format("the profiler makes a step {} longer, and single events that wait for the host; the step is that "
                    "of steps without it",
            percent_text(traced)));
  }
  if (record.source == RunSource::kEngine && v.steps <= 3)
    notes.push_back(fmt::format("only {} step{}: warm-up counts; run at least 10", v.steps, v.steps == 1 ? "" : "s"));
  if (record.source == RunSource::kEngine && !clocks_shared(record)) {
    notes.emplace_back(
        "ranks on several machines share no clock: waiting for peers counts as communication, in forecast and "
        "measurement");
  }
  if (v.spread > v.tolerances.step) {
    notes.push_back(
        fmt::format("the repeats spread by {} (quartiles): more than the tolerance", percent_text(v.spread)));
  }
  return notes;
}

}

double Comparison::error() const {
  if (measured > 0) return predicted / measured - 1;
  return predicted == measured ? 0 : 1;
}

Validation validate(
    const Forecast& forecast, const Report& predicted, const RunRecord& record, const Tolerances& tolerances) {
  const std::string fingerprint = forecast.graph.fingerprint();
  if (record.fingerprint != fingerprint) {
    throw invalid_input(
        "the run is of another step: its fingerprint is {}, the forecast's {}", record.fingerprint, fingerprint);
  }
  check_record(forecast.graph, record);
  const RunRecord joined = derive_arrivals(forecast.graph, record);
  const Timeline timeline = clocks_shared(joined) ? forecast.timeline : without_arrivals(forecast.timeline);
  const StepMetrics metrics = measure_step(forecast.graph, timeline);

  Validation v = {.predicted = predicted, .tolerances = tolerances};
  const Forecast view = measured_view(forecast.model, forecast.plan, forecast.graph, joined);
  v.measured = summarize_run(view, predicted.cluster, joined);
  v.step = {metrics.seconds, v.measured.seconds.value};
  v.exposed = {metrics.exposed_communication, v.measured.exposed_communication.value};
  v.step_error = v.step.error();
  v.exposed_communication_error = (v.exposed.predicted - v.exposed.measured) / v.step.measured;
  v.spread = (v.measured.seconds.high - v.measured.seconds.low) / v.step.measured;
  v.steps = static_cast<int>(steady_durations(joined).size());

  const std::vector<EventParts> expected = event_parts(forecast.graph, timeline, forecast.plan.host);
  const std::vector<EventParts> happened = measured_parts(forecast, joined);
  v.by_kind = compare_kinds(forecast.graph, expected, happened);
  v.worst = worst_events(forecast, expected, happened);
  for (const KindComparison& kind : v.by_kind) {
    v.waiting.predicted += kind.waiting.predicted;
    v.waiting.measured += kind.waiting.measured;
  }
  v.memory = compare_memory(forecast, joined);
  v.memory_known = v.memory.front().judged;
  v.memory_error = v.memory_known ? v.memory.front().bytes.error() : 0;
  v.notes = notes_on(v, joined);
  v.passed = std::abs(v.step_error) <= tolerances.step &&
             std::abs(v.exposed_communication_error) <= tolerances.exposed &&
             std::ranges::all_of(v.memory, [&](const MemoryComparison& memory) {
               return !memory.judged || std::abs(memory.bytes.error()) <= tolerances.memory;
             });
  return v;
}

// Keys that only change numbers (learning rate, seed, evaluation) or only prices (cluster) cannot change a fingerprint.
// The model is named by path, which may differ for the same model, so it counts only where nothing else does.
namespace {

bool changes_the_step(const std::string& key) {
  if (key == "model" || key == "cluster" || key == "seed") return false;
  if (key.starts_with("evaluation.")) return false;
  if (!key.starts_with("optimizer.")) return true;
  return key == "optimizer.kind" || key == "optimizer.implementation" || key == "optimizer.state" ||
         key == "optimizer.clip_norm";
}

std::string version_of(const RunRecord& record) {
  for (const auto& [name, version] : record.versions)
    if (name == "foreshard") return version;
  return "";
}

}

std::string mismatch_sentence(
    const Forecast& forecast, const Plan& ran, const RunRecord& record, std::string_view version) {
  std::vector<std::string> causes;
  std::string model;
  for (const PlanDifference& d : plan_differences(forecast.plan, ran)) {
    if (d.key == "model") model = fmt::format("model (plan {}, run {})", d.a, d.b);
    if (changes_the_step(d.key)) causes.push_back(fmt::format("{} (plan {}, run {})", d.key, d.a, d.b));
  }
  const std::string other = version_of(record);
  std::string why;
  if (!causes.empty()) why = fmt::format("they differ in {}", fmt::join(causes, ", "));
  else if (!model.empty()) why = "they differ in " + model;
  else if (!other.empty() && other != version)
    why = fmt::format("the plans are equal; the run is of foreshard {}, this is {}", other, version);
  else why = "the plans are equal: the model's file has changed since, or the programs are of different builds";
  return fmt::format("the run is of another step: its fingerprint is {}, the plan's {}; {}", record.fingerprint,
      forecast.graph.fingerprint(), why);
}

}
