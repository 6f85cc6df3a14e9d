// A gap ends when its compute row starts. Walking back from that row, every binding predecessor ends when its successor
// starts or arrives, so the chain covers the gap without holes until it meets the row before the gap or the host; where
// that had waited for an exchange, it goes on there. The gap is cut wherever a link of the chain or a
// collective begins or ends; each piece then has one reason.
#include "reports/view/attribution.h"

#include <algorithm>

#include "sim/base/integers.h"

namespace foreshard {
namespace {

bool is_backward(EventKind kind) {
  return kind == EventKind::kLoss || kind == EventKind::kRecompute || kind == EventKind::kBackward;
}

// One gap being cut into pieces.
class Cutter {
 public:
  Cutter(const EventGraph& graph, const Timeline& timeline)
      : graph_(graph), timeline_(timeline), causes_(graph, timeline) {
    EventId waited = kNoEvent;
    for (std::size_t i = 0; i < graph.rows.size(); ++i) {
      const Row& row = graph.rows[i];
      const Span& span = timeline.spans[i];
      if (row.host_wait != kNoEvent) waited = row.host_wait;
      host_waited_.push_back(waited);
      if (is_collective(row.kind) && span.end > span.arrive)
        collectives_[at(row.stream)].push_back(static_cast<EventId>(i));
    }
  }

  // Gaps are cut in ascending order.
  void cut(const Gap& gap, std::vector<Gap>& pieces) {
    find_running(gap);
    find_chain(gap);
    std::vector<Time> moments = {gap.begin, gap.end};
    for (EventId c : running_) add_moments(gap, span(c).arrive, span(c).end, moments);
    for (const Link& link : chain_) add_moments(gap, link.begin, link.end, moments);
    std::ranges::sort(moments);
    moments.erase(std::unique(moments.begin(), moments.end()), moments.end());
    const std::size_t first = pieces.size();
    for (std::size_t i = 0; i + 1 < moments.size(); ++i) {
      Gap piece = reason_of(moments[i], gap.held_up);
      piece.end = moments[i + 1];
      if (pieces.size() > first && pieces.back().collective == piece.collective &&
          pieces.back().otherwise == piece.otherwise)
        pieces.back().end = piece.end;
      else pieces.push_back(piece);
    }
  }

 private:
  struct Link {
    Time begin, end;
    EventId event = kNoEvent;  // kNoEvent: the host
    bool is_peers = false;     // an exchange that the peer has not begun
  };

  const Span& span(EventId event) const { return timeline_.spans[at(event)]; }

  static void add_moments(const Gap& gap, Time begin, Time end, std::vector<Time>& moments) {
    for (Time t : {begin, end})
      if (t > gap.begin && t < gap.end) moments.push_back(t);
  }

  void find_running(const Gap& gap) {
    running_.clear();
    for (std::size_t s = 0; s < kStreams; ++s) {
      const auto& list = collectives_[s];
      std::size_t& next = next_[s];
      while (next < list.size() && span(list[next]).end <= gap.begin) ++next;
      for (std::size_t i = next; i < list.size() && span(list[i]).arrive < gap.end; ++i) running_.push_back(list[i]);
    }
    std::ranges::sort(running_);
  }

  bool exchanges_at(EventId event) const { return graph_.rows[at(event)].kind == EventKind::kSendRecv; }

  void find_chain(const Gap& gap) {
    chain_.clear();
    EventId event = gap.held_up;
    while (event != kNoEvent && span(event).start > gap.begin) {
      const Causes::Binding binding = causes_.of(event);
      const Time started = span(event).start;
      const EventId waited = host_waited_[at(event)];
      event = binding.predecessor;
      if (binding.cause == Cause::kHost) {
        const bool met = waited != kNoEvent && exchanges_at(waited) && span(waited).end > gap.begin;
        chain_.push_back({met ? span(waited).end : gap.begin, started, kNoEvent});
        if (met) event = waited;
      }
      if (event == kNoEvent) continue;
      const bool exchanges = exchanges_at(event);
      if (exchanges) chain_.push_back({span(event).start, span(event).arrive, event, true});
      chain_.push_back({exchanges ? span(event).arrive : span(event).start, span(event).end, event});
    }
  }

  Gap reason_of(Time moment, EventId held_up) const {
    Gap piece = {.begin = moment, .held_up = held_up};
    const auto link = std::ranges::find_if(
        chain_, [&](const Link& candidate) { return candidate.begin <= moment && moment < candidate.end; });
    const bool host = link != chain_.end() && link->event == kNoEvent;
    for (EventId c : running_) {
      if (span(c).arrive > moment || span(c).end <= moment) continue;
      const bool binding = std::ranges::any_of(chain_, [&](const Link& l) { return l.event == c; });
      if (piece.collective == kNoEvent || binding) piece.collective = c;
      if (binding) break;
    }
    piece.of_peers = link != chain_.end() && link->is_peers;
    piece.otherwise = host && piece.collective == kNoEvent ? Cause::kHost : Cause::kStream;
    return piece;
  }

  const EventGraph& graph_;
  const Timeline& timeline_;
  Causes causes_;
  std::vector<EventId> host_waited_;  // by row: for what the host had waited last when it issued it
  std::array<std::vector<EventId>, kStreams> collectives_;
  std::array<std::size_t, kStreams> next_{};
  std::vector<EventId> running_;
  std::vector<Link> chain_;
};

}

std::vector<Phase> phases_of(const EventGraph& graph) {
  std::vector<Phase> phases;
  phases.reserve(graph.rows.size());
  Phase phase = Phase::kForward;
  std::int32_t microbatch = 0;
  for (std::size_t i = 0; i < graph.rows.size(); ++i) {
    const EventKind kind = graph.rows[i].kind;
    if (graph.details[i].microbatch != microbatch) phase = Phase::kForward;
    microbatch = graph.details[i].microbatch;
    if (is_backward(kind)) phase = Phase::kBackward;
    if (is_of_optimizer(kind)) phase = Phase::kOptimizer;
    phases.push_back(phase);
  }
  return phases;
}

bool computes(const Row& row) { return row.stream == Stream::kCompute && !is_collective(row.kind); }

Causes::Causes(const EventGraph& graph, const Timeline& timeline) : graph_(graph), timeline_(timeline) {
  const std::size_t count = graph.rows.size();
  stream_predecessor_.resize(count, kNoEvent);
  communicator_predecessor_.resize(count, kNoEvent);
  std::array<EventId, kStreams> stream_last;
  stream_last.fill(kNoEvent);
  std::array<EventId, kNoCommunicator + std::size_t{1}> communicator_last;
  communicator_last.fill(kNoEvent);
  for (std::size_t i = 0; i < count; ++i) {
    const Row& row = graph.rows[i];
    const auto id = static_cast<EventId>(i);
    EventId& on_stream = stream_last[at(row.stream)];
    stream_predecessor_[i] = on_stream;
    on_stream = id;
    if (row.communicator == kNoCommunicator) continue;
    communicator_predecessor_[i] = communicator_last[row.communicator];
    communicator_last[row.communicator] = id;
  }
}

Causes::Binding Causes::of(EventId event) const {
  const std::size_t i = at(event);
  const Span& span = timeline_.spans[i];
  const EventId queued = communicator_predecessor_[i];
  if (queued != kNoEvent && span.arrive > span.start && timeline_.spans[at(queued)].end > span.start)
    return {Cause::kCommunicator, queued};
  Binding binding;
  Time latest;  // the step's begin
  const auto offer = [&](Cause cause, EventId predecessor) {
    const Time end = timeline_.spans[at(predecessor)].end;
    if (binding.predecessor != kNoEvent ? end <= latest : end < latest) return;
    latest = end;
    binding = {cause, predecessor};
  };
  const auto waits = graph_.waits_of(event);
  for (auto wait = waits.rbegin(); wait != waits.rend(); ++wait) offer(Cause::kWait, *wait);
  if (stream_predecessor_[i] != kNoEvent) offer(Cause::kStream, stream_predecessor_[i]);
  if (span.issue > latest) return {Cause::kHost, kNoEvent};
  return binding;
}

std::vector<Gap> compute_gaps(const EventGraph& graph, const Timeline& timeline) {
  std::vector<Gap> pieces;
  Cutter cutter(graph, timeline);
  Time now;
  const auto gap_until = [&](Time end, EventId held_up) {
    end = std::min(end, timeline.period);
    if (end <= now) return;
    Gap gap = {.begin = now, .end = end, .held_up = held_up};
    cutter.cut(gap, pieces);
  };
  for (std::size_t i = 0; i < graph.rows.size(); ++i) {
    if (!computes(graph.rows[i])) continue;
    gap_until(timeline.spans[i].start, static_cast<EventId>(i));
    now = std::max(now, timeline.spans[i].end);
  }
  const std::size_t last = pieces.size();
  gap_until(timeline.period, kNoEvent);
  // Ranks of a pipeline end with the last of them.
  for (std::size_t i = last; i < pieces.size(); ++i) pieces[i].of_peers = !graph.pipeline.empty();
  return pieces;
}

Excess excess_of(const Span& span, const Cost& cost) {
  Excess excess;
  const Time beyond = span.end - span.arrive - cost.duration;
  if (beyond <= Time()) return excess;
  const bool by_host = span.end == span.issue + cost.during + cost.last_kernel;
  (by_host ? excess.launches : excess.overlap) = beyond;
  return excess;
}

}
