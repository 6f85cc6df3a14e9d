// Compute rows are added up by kind, the gaps between them by what compute_gaps() says. Both are cut to [0, period],
// and a nanosecond in which two compute rows overlap (a measurement's marker noise) counts once.
#include <algorithm>
#include <array>

#include "reports/view/attribution.h"
#include "sim/base/lookup.h"

namespace foreshard {
namespace {

enum Bar : std::size_t {
  kForward,
  kRecompute,
  kBackward,
  kLoss,
  kCopies,
  kAccumulation,
  kClipping,
  kOptimizer,
  kExposed,  // 5 kinds x 3 phases
  kHostWait = kExposed + 5 * kPhases,
  kStreamWait,
  kPeerWait,
  kBars
};

Bar bar_of(EventKind kind) {
  return value_of(kind,
      {{EventKind::kForward, kForward}, {EventKind::kRecompute, kRecompute}, {EventKind::kBackward, kBackward},
          {EventKind::kLoss, kLoss}, {EventKind::kAccumulate, kAccumulation}, {EventKind::kGradNorm, kClipping},
          {EventKind::kGradScale, kClipping}, {EventKind::kOptimizer, kOptimizer},
          {EventKind::kHostOptimizer, kOptimizer}},
      kCopies);
}

std::size_t exposed_bar(EventKind kind, Phase phase) {
  const std::size_t collective = kind == EventKind::kAllGather       ? 0
                                 : kind == EventKind::kReduceScatter ? 1
                                 : kind == EventKind::kAllToAll      ? 3
                                 : kind == EventKind::kSendRecv      ? 4
                                                                     : 2;
  return kExposed + collective * kPhases + at(phase);
}

std::string bar_name(std::size_t bar) {
  static constexpr std::array<const char*, kExposed> kNames = {
      "forward", "recompute", "backward", "loss", "copies", "gradient accumulation", "gradient clipping", "optimizer"};
  static constexpr std::array<const char*, 5> kCollectives = {
      "all_gather", "reduce_scatter", "all_reduce", "all_to_all", "send_recv"};
  if (bar < kExposed) return kNames[bar];
  if (bar == kHostWait) return "host";
  if (bar == kStreamWait) return "stream dependency";
  if (bar == kPeerWait) return "pipeline bubble";
  const std::size_t exposed = bar - kExposed;
  return std::string("exposed ") + kCollectives[exposed / kPhases] + " (" +
         to_string(static_cast<Phase>(exposed % kPhases)) + ")";
}

}

std::vector<WaterfallBar> waterfall(const EventGraph& graph, const Timeline& timeline) {
  std::array<Time, kBars> bars{};
  Time now;
  for (std::size_t i = 0; i < graph.rows.size(); ++i) {
    if (!computes(graph.rows[i])) continue;
    const Span& span = timeline.spans[i];
    const Time begin = std::max(now, span.start);
    const Time end = std::min(span.end, timeline.period);
    if (end <= begin) continue;
    bars[bar_of(graph.rows[i].kind)] += end - begin;
    now = end;
  }
  const std::vector<Phase> phases = phases_of(graph);
  for (const Gap& gap : compute_gaps(graph, timeline)) {
    std::size_t bar = gap.of_peers ? kPeerWait : gap.otherwise == Cause::kHost ? kHostWait : kStreamWait;
    if (gap.collective != kNoEvent) {
      const auto c = at(gap.collective);
      bar = exposed_bar(graph.rows[c].kind, phases[c]);
    }
    bars[bar] += gap.end - gap.begin;
  }
  std::vector<WaterfallBar> result;
  for (std::size_t bar = 0; bar < kBars; ++bar)
    if (bars[bar] > Time()) result.push_back({bar_name(bar), bars[bar]});
  return result;
}

std::vector<ChainLink> cause_chain(const EventGraph& graph, const Timeline& timeline, EventId event) {
  const Causes causes(graph, timeline);
  std::vector<ChainLink> chain;
  while (event != kNoEvent) {
    const Causes::Binding binding = causes.of(event);
    chain.push_back({event, binding.cause});
    event = binding.predecessor;
  }
  return chain;
}

}
