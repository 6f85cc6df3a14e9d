// Steps (rank_steps.h) are played until they repeat.
//
// Note [The steady step]. A host whose work for a step, H, takes no longer than the device needs for it gains on the
// device with every step until nothing waits for it any more. So one step with the host a whole step ahead gives the
// period P, and it is the steady one if P >= H. Only otherwise (a host-bound plan, or one whose host waits for the
// device) are steps played one after the other until the period repeats.
//
// A pipeline's step lasts until the last of its ranks has computed. One that is done earlier begins
// the next step then, at a time before 0: also with hosts ahead, steps are played until all ranks
// end as they began, relative to each other.
#include "sim/simulate/simulate.h"

#include <algorithm>

#include "sim/base/error.h"
#include "sim/simulate/rank_steps.h"

namespace foreshard {
namespace {
constexpr int kMostSteps = 8;
}

struct Simulator::Scratch {
  std::vector<std::unique_ptr<RankScratch>> all;  // as many as there ever were
  std::size_t count = 1;                          // of the graph
  std::size_t own = 0;
  std::vector<Carry> carries, began;

  Ranks ranks() const { return Ranks(all).first(count); }
  RankScratch& rank() const { return *all[own]; }

  void load(const EventGraph& graph, const CostTable& costs) {
    const auto& pipeline = graph.pipeline;
    count = std::max<std::size_t>(1, pipeline.size());
    own = pipeline.empty() ? 0 : at(graph.pipeline_rank);
    FORESHARD_CHECK(own < count && costs.pipeline.size() == pipeline.size(), "costs of another pipeline");
    while (all.size() < count) all.push_back(std::make_unique<RankScratch>());
    for (std::size_t r = 0; r < count; ++r) {
      const EventGraph& of = r == own ? graph : *pipeline[r];
      all[r]->load(of, r == own ? costs : costs.pipeline[r]);
      all[r]->exchanges = {};
      if (pipeline.empty()) continue;
      all[r]->exchanges = of.exchanges;
      EventId last = kNoEvent;
      for (const Exchange& exchange : of.exchanges) {
        const auto peer = at(exchange.peer);
        const bool is_stream = of.rows[at(exchange.row)].stream >= Stream::kPipeline;
        FORESHARD_CHECK(exchange.row > last && peer < count && peer != r && is_stream,
            "exchanges are rows of their streams, in their order, with other ranks");
        last = exchange.row;
      }
    }
  }
  // The graph's own timeline with its peers'.
  const Timeline& result() {
    Timeline& timeline = rank().timeline;
    timeline.pipeline.resize(rank().graph->pipeline.size());
    for (std::size_t r = 0; r < timeline.pipeline.size(); ++r)
      if (r != own) std::swap(timeline.pipeline[r], all[r]->timeline);
    return timeline;
  }

  // The latest end of carries, which becomes the time 0 of the step that follows.
  std::int64_t pass_step() {
    std::int64_t ended = carries[0].device;
    for (const Carry& carry : carries) ended = std::max(ended, carry.device);
    for (Carry& carry : carries) {
      carry.host -= ended;
      carry.device -= ended;
    }
    return ended;
  }

  // Every rank's period is the end of its own compute stream, but that of the graph's is the whole pipeline's.
  void note(Time Timeline::*figure, std::int64_t period) {
    for (std::size_t r = 0; r < count; ++r)
      all[r]->timeline.*figure = Time::ns(period + (r == own ? 0 : carries[r].device));
  }

  std::int64_t steady(StepRule ahead, StepRule step);
  const Timeline& full(StepRule step);
  void once(StepRule step);
};

// See Note [The steady step].
// `ahead` plays a step whose hosts are a whole step ahead, `step` one from the carries it is given.
std::int64_t Simulator::Scratch::steady(StepRule ahead, StepRule step) {
  bool host_waits = false;
  std::int64_t host_work = 0;  // the longest
  for (const auto& rank : ranks()) {
    rank->count_host_work();
    host_waits |= rank->host_waits;
    host_work = std::max(host_work, rank->host_work);
  }
  const auto ends_as_it_began = [&] { return std::ranges::equal(carries, began, {}, &Carry::device, &Carry::device); };
  carries.assign(count, Carry{});
  std::int64_t period = 0;
  for (int k = 0; !host_waits && k < kMostSteps; ++k) {
    began = carries;
    for (std::size_t r = 0; r < count; ++r) {
      const RankScratch& rank = *all[r];
      carries[r].host = carries[r].device - rank.host_work - rank.last_kernel;
    }
    ahead(ranks(), carries);
    period = pass_step();
    if (period < host_work) break;
    if (k + 1 == kMostSteps || ends_as_it_began()) return period;
  }
  carries.assign(count, Carry{});
  began = carries;
  step(ranks(), carries);
  period = pass_step();
  for (int k = 2; k <= kMostSteps; ++k) {
    const std::int64_t previous = period;
    if (carries == began) break;  // as the step before it
    began = carries;
    step(ranks(), carries);
    period = pass_step();
    if (period == previous) break;
  }
  return period;
}

const Timeline& Simulator::Scratch::full(StepRule step) {
  once(step);
  const std::vector<Carry> after_first = carries;
  const std::int64_t period = steady(step, step);
  note(&Timeline::period, period);
  auto timelines = list_of<Timeline>(ranks(), [&](const auto& rank) { return rank->timeline; });
  carries = after_first;
  int k = 1;
  while (k < kMostSteps && !rank().graph->rows.empty()) {
    ++k;
    step(ranks(), carries);
    if (pass_step() == period) break;
  }
  for (std::size_t r = 0; r < count; ++r) {
    all[r]->timeline = std::move(timelines[r]);
    all[r]->timeline.steady_step = k;
  }
  return result();
}

void Simulator::Scratch::once(StepRule step) {
  carries.assign(count, Carry{});
  step(ranks(), carries);
  const std::int64_t period = pass_step();
  note(&Timeline::first_step, period);
  note(&Timeline::period, period);
  for (const auto& rank : ranks()) rank->timeline.steady_step = 1;
}

Simulator::Simulator() : scratch_(std::make_unique<Scratch>()) {}
Simulator::~Simulator() = default;
Simulator::Simulator(Simulator&&) noexcept = default;
Simulator& Simulator::operator=(Simulator&&) noexcept = default;

const Timeline& Simulator::simulate(const EventGraph& graph, const CostTable& costs, StepRule rule) {
  scratch_->load(graph, costs);
  return scratch_->full(rule != nullptr ? rule : simulate_step<Detail::kSpans>);
}

const Timeline& Simulator::steady_step(const EventGraph& graph, const CostTable& costs, const RepeatedRows& repeats) {
  Scratch& s = *scratch_;
  s.load(graph, costs);
  const bool skips = repeats.count > 0 && costs.delays.empty() && graph.pipeline.empty();
  if (skips) s.rank().fold(repeats);
  const auto step = skips ? simulate_step<Detail::kSpans, Fold::kSkips> : simulate_step<Detail::kSpans>;
  s.note(&Timeline::period, s.steady(step, step));
  return s.result();
}

Time Simulator::period(const EventGraph& graph, const CostTable& costs) {
  scratch_->load(graph, costs);
  return Time::ns(scratch_->steady(simulate_step<Detail::kDevice>, simulate_step<Detail::kSpans>));
}

std::optional<Time> Simulator::period(
    const EventGraph& graph, const CostTable& costs, const RepeatedRows& repeats, std::int64_t more) {
  Scratch& s = *scratch_;
  const bool waits_inside = std::ranges::any_of(graph.rows, [](const Row& row) { return row.host_wait != kNoEvent; });
  const bool repeated = repeats.count > 0 && graph.pipeline.empty();
  if (!repeated || !costs.delays.empty() || waits_inside) return std::nullopt;
  s.load(graph, costs);
  RankScratch& rank = s.rank();
  rank.fold(repeats);
  rank.more = more;
  rank.shows_runs = true;
  const std::int64_t period =
      s.steady(simulate_step<Detail::kDevice, Fold::kRuns>, simulate_step<Detail::kSpans, Fold::kRuns>);
  return rank.shows_runs ? std::optional(Time::ns(period)) : std::nullopt;
}

const Timeline& Simulator::simulate_once(const EventGraph& graph, const CostTable& costs, StepRule rule) {
  scratch_->load(graph, costs);
  scratch_->once(rule != nullptr ? rule : simulate_step<Detail::kSpans>);
  return scratch_->result();
}

Timeline simulate(const EventGraph& graph, const CostTable& costs) { return Simulator().simulate(graph, costs); }

}
