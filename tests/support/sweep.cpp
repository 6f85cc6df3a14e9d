#include "tests/support/sweep.h"

#include <algorithm>
#include <array>
#include <vector>

#include "sim/base/error.h"
#include "sim/simulate/rank_steps.h"
#include "sim/simulate/simulate.h"

namespace foreshard {
namespace {

struct SweptRank {
  RankScratch& rank;
  std::int64_t host;
  std::array<std::int64_t, kStreams> tail;
  std::array<std::int64_t, kFifos> fifo;
  std::size_t next = 0;  // row
  std::size_t exchange = 0, delay = 0;
  bool is_open = false;  // its exchange is begun, and its peer has not

  SweptRank(RankScratch& of, Carry carry) : rank(of), host(carry.host) {
    tail.fill(carry.device);
    fifo.fill(carry.device);
  }
  const Row& row() const { return rank.graph->rows[next]; }
  const FlatCost& cost() const { return rank.costs[row().work]; }
  Span& span() const { return rank.timeline.spans[next]; }
  std::int64_t end_of(EventId id) const { return rank.timeline.spans[at(id)].end.nanoseconds(); }
  bool is_over() const { return next == rank.graph->rows.size(); }
  bool is_exchange() const { return exchange < rank.exchanges.size() && at(rank.exchanges[exchange].row) == next; }
  std::size_t peer() const { return at(rank.exchanges[exchange].peer); }

  void begin() {
    const std::vector<HostDelay>& delays = rank.table->delays;
    if (row().host_wait != kNoEvent) host = std::max(host, end_of(row().host_wait));
    if (delay < delays.size() && at(delays[delay].row) == next) {
      if (delays[delay].drains) host = std::max(host, *std::ranges::max_element(tail));
      host += delays[delay++].time.nanoseconds();
    }
    const std::int64_t issue = host + cost().before;
    host = issue + cost().during;
    std::int64_t start = std::max(issue, tail[at(row().stream)]);
    for (const EventId id : rank.graph->waits_of(static_cast<EventId>(next))) start = std::max(start, end_of(id));
    const bool queues = row().communicator != kNoCommunicator;
    const std::int64_t arrive = queues ? std::max(start, fifo[row().communicator]) : start;
    span() = {Time::ns(issue), Time::ns(start), Time::ns(arrive), {}};
  }

  void end(Time arrive) {
    const std::int64_t ended = std::max(arrive.nanoseconds() + cost().duration, host + cost().last_kernel);
    fifo[row().communicator] = tail[at(row().stream)] = ended;
    span().arrive = arrive;
    span().end = Time::ns(ended);
    ++next;
  }

  Carry carry() const {
    const EventId awaited = rank.graph->final_host_wait;
    return {awaited == kNoEvent ? host : std::max(host, end_of(awaited)), tail[at(Stream::kCompute)]};
  }
};

void sweep_step(Ranks ranks, std::span<Carry> carries) {
  std::vector<SweptRank> swept;
  for (std::size_t r = 0; r < ranks.size(); ++r) swept.emplace_back(*ranks[r], carries[r]);
  for (bool moved = true; moved;) {
    moved = false;
    for (SweptRank& own : swept) {
      for (; !own.is_over() && !own.is_open; moved = true) {
        own.begin();
        if (!own.is_exchange()) {
          own.end(own.span().arrive);
          continue;
        }
        FORESHARD_CHECK(
            own.rank.exchanges[own.exchange].side == Exchange::Side::kBoth, "what goes one way is simulated");
        own.is_open = true;
        SweptRank& peer = swept[own.peer()];
        if (!peer.is_open || &swept[peer.peer()] != &own) continue;
        const Time arrive = std::max(own.span().arrive, peer.span().arrive);
        for (SweptRank* side : {&own, &peer}) {
          side->end(arrive);
          side->is_open = false;
          ++side->exchange;
        }
      }
    }
  }
  for (std::size_t r = 0; r < swept.size(); ++r) {
    FORESHARD_CHECK(swept[r].is_over(), "the pipeline would deadlock");
    carries[r] = swept[r].carry();
  }
}

}

Timeline sweep(const EventGraph& graph, const CostTable& costs) {
  return Simulator().simulate(graph, costs, sweep_step);
}

Timeline sweep_once(const EventGraph& graph, const CostTable& costs) {
  return Simulator().simulate_once(graph, costs, sweep_step);
}

}
