#include "sim/simulate/forecast.h"

#include "sim/graph/training_step.h"
#include "sim/memory/memory_actions.h"
#include "sim/simulate/simulate.h"

namespace foreshard {

namespace {

// What the driver is asked for holds the host up. The order of allocations is the host's, whatever
// the times, so one replay and one simulation are enough unless streams are recorded.
std::vector<HostDelay> delays_of(const std::vector<HostStall>& stalls) {
  std::vector<HostDelay> delays;
  for (const HostStall& stall : stalls) {
    if (stall.row == kNoEvent) continue;  // before the step
    delays.push_back({stall.row, stall_time(stall), stall.retries > 0});
  }
  return delays;
}

// But for what is allocated. `simulate`: the costs' timeline.
Forecast forecast_by(
    const ModelSpec& model, const Plan& plan, const CostModel& costs, ReservedMemory* replays, const auto& simulate) {
  Forecast result = {.model = model, .plan = plan, .graph = build_training_step(model, plan)};
  take_fullest_rank(result.graph, result.plan);
  result.costs = costs.price(result.graph);
  if (!records_streams(result.graph)) {
    result.reserved = replays != nullptr ? replays->forecast(result.graph, result.plan, costs.cluster())
                                         : forecast_reserved(result.graph, result.plan, costs.cluster());
    result.costs.delays = delays_of(result.reserved.stalls);
    result.timeline = simulate(result.graph, result.costs);
  } else {
    // When blocks come back is a matter of times, which the calls to the driver move in turn: until
    // the calls stay the same.
    constexpr int kMostRounds = 3;
    bool settled = false;
    for (int round = 0; round < kMostRounds && !settled; ++round) {
      result.timeline = simulate(result.graph, result.costs);
      const RowTimes times = row_times(result.timeline);
      result.reserved = forecast_reserved(result.graph, result.plan, costs.cluster(), &times);
      std::vector<HostDelay> delays = delays_of(result.reserved.stalls);
      settled = delays == result.costs.delays;
      result.costs.delays = std::move(delays);
    }
    if (!settled) result.timeline = simulate(result.graph, result.costs);
  }
  return result;
}

}

void take_fullest_rank(EventGraph& graph, Plan& plan) {
  if (graph.pipeline.empty() || plan.named_rank) return;
  std::size_t fullest = at(graph.pipeline_rank);
  Bytes most = peak_allocated(graph);
  for (std::size_t r = 0; r < graph.pipeline.size(); ++r) {
    if (!graph.pipeline[r]) continue;
    const Bytes peak = peak_allocated(*graph.pipeline[r]);
    if (peak > most) fullest = r;
    most = std::max(most, peak);
  }
  if (fullest == at(graph.pipeline_rank)) return;
  EventGraph own = *graph.pipeline[fullest];
  std::vector<std::shared_ptr<const EventGraph>> ranks = std::move(graph.pipeline);
  const auto place = at(graph.pipeline_rank);
  graph.pipeline.clear();
  ranks[place] = std::make_shared<const EventGraph>(std::move(graph));
  ranks[fullest] = nullptr;
  own.pipeline = std::move(ranks);
  graph = std::move(own);
  plan = at_pipeline_rank(plan, static_cast<std::int64_t>(fullest));
}

RowTimes row_times(const Timeline& timeline) {
  RowTimes times = {.period = timeline.period};
  times.issues.reserve(timeline.spans.size());
  times.ends.reserve(timeline.spans.size());
  for (const Span& span : timeline.spans) {
    times.issues.push_back(span.issue);
    times.ends.push_back(span.end);
  }
  return times;
}

Forecast forecast(const ModelSpec& model, const Plan& plan, const CostModel& costs, ReservedMemory* replays) {
  Simulator simulator;
  Forecast result = forecast_by(
      model, plan, costs, replays, [&](const auto& graph, const auto& c) { return simulator.simulate(graph, c); });
  result.memory = replay_allocations(result.graph);
  if (!result.reserved.first_stalls.empty()) {
    CostTable first = result.costs;
    first.delays = delays_of(result.reserved.first_stalls);
    result.timeline.first_step = simulator.simulate_once(result.graph, first).first_step;
  }
  return result;
}

Forecast forecast_figures(const ModelSpec& model, const Plan& plan, const CostModel& costs) {
  Simulator simulator;
  Forecast result = forecast_by(model, plan, costs, nullptr,
      [&](const auto& graph, const auto& c) { return simulator.steady_step(graph, c, find_repeats(graph)); });
  result.memory.peak = peak_allocated(result.graph);
  return result;
}

}
