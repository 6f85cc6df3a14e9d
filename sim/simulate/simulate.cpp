// sweep is the recurrence of the header over flat arrays.
//
// simulate keeps, per stream, the row at its head. Rows that cannot be slowed (copies on their own
// streams, additions to gradients) get their times as soon as everything they wait for has one,
// even if that lies in the future. Compute rows and collectives take part in contention: they are
// started and ended in time order, and between two such moments every running row does work at a
// rate that depends on who else runs. Work is counted in 1/1024 ns, so that a rate of 1 is exact
// and no rounding accumulates.
//
// Order never depends on contention: streams and communicators are FIFOs in issue order. So every
// end is a monotone function of the durations, slower rows can only make a step longer, and sweep
// is a lower bound.
#include "sim/simulate/simulate.h"

#include <algorithm>
#include <limits>

#include "sim/base/error.h"

namespace foreshard {
namespace {

constexpr std::int64_t kUnknown = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kOne = Contention::kOne;
constexpr std::size_t kFifos = 256;  // by communicator; kNoCommunicator's is never read
constexpr int kMostSteps = 8;

// What one step leaves behind for the next, in the time of the step.
struct Carry {
  std::int64_t host = 0;
  std::int64_t device =
      0;  // end of the compute stream; every other stream of the next step starts behind it
};

struct FlatCost {
  std::int64_t before, during, duration, last_kernel;
};

}  // namespace

struct Simulator::Scratch {
  Timeline timeline;
  std::vector<FlatCost> costs;
  std::array<std::int64_t, kFifos> fifo;
  // simulate only
  std::array<std::vector<EventId>, kStreams> stream_rows;
  std::vector<EventId> previous_on_communicator;  // per row; kNoEvent: first or none
  std::vector<std::int64_t> end;
  std::vector<std::int64_t> floor;  // end of the last kernel by the host's clock
  bool host_bound = false;          // some row started when the host issued it and not before

  void load(const EventGraph& graph, const CostTable& table) {
    FORESHARD_CHECK(table.works.size() == graph.works.size(), "costs of another graph");
    costs.resize(table.works.size());
    for (std::size_t w = 0; w < costs.size(); ++w) {
      const Cost& c = table.works[w];
      costs[w] = {c.before.nanoseconds(), c.during.nanoseconds(), c.duration.nanoseconds(),
                  c.last_kernel.nanoseconds()};
    }
    timeline.spans.resize(graph.rows.size());
  }

  Carry sweep_step(const EventGraph& graph, Carry carry);
  Carry simulate_step(const EventGraph& graph, const CostTable& table, Carry carry);
  void index_streams(const EventGraph& graph);
  bool host_issues(const EventGraph& graph, std::size_t& next, std::int64_t& host);

  template <typename Step>
  void repeat(const EventGraph& graph, Step&& step);
};

Carry Simulator::Scratch::sweep_step(const EventGraph& graph, Carry carry) {
  const Row* rows = graph.rows.data();
  const EventId* waits = graph.waits.data();
  const FlatCost* cost = costs.data();
  Span* spans = timeline.spans.data();
  std::array<std::int64_t, kStreams> tail;
  tail.fill(carry.device);
  fifo.fill(carry.device);
  std::int64_t host = carry.host;
  bool bound = false;
  const std::size_t count = graph.rows.size();
  for (std::size_t i = 0; i < count; ++i) {
    const Row& row = rows[i];
    const FlatCost& c = cost[row.work];
    if (row.host_wait != kNoEvent) {
      host = std::max(host, spans[row.host_wait].end.nanoseconds());
    }
    const std::int64_t issue = host + c.before;
    host = issue + c.during;
    const auto s = static_cast<std::size_t>(row.stream);
    std::int64_t ready = tail[s];
    for (std::uint32_t w = row.waits_begin; w < row.waits_begin + row.wait_count; ++w) {
      ready = std::max(ready, spans[waits[w]].end.nanoseconds());
    }
    const std::int64_t start = std::max(issue, ready);
    std::int64_t arrive = start;
    if (row.communicator != kNoCommunicator) arrive = std::max(arrive, fifo[row.communicator]);
    const std::int64_t end = std::max(arrive + c.duration, host + c.last_kernel);
    bound |= issue > ready || end > arrive + c.duration;
    fifo[row.communicator] = end;
    tail[s] = end;
    spans[i] = {Time::ns(issue), Time::ns(start), Time::ns(arrive), Time::ns(end)};
  }
  host_bound = bound;
  if (graph.final_host_wait != kNoEvent) {
    host = std::max(host, spans[graph.final_host_wait].end.nanoseconds());
  }
  return {host, tail[static_cast<std::size_t>(Stream::kCompute)]};
}

void Simulator::Scratch::index_streams(const EventGraph& graph) {
  for (auto& list : stream_rows) list.clear();
  std::array<EventId, kFifos> last;
  last.fill(kNoEvent);
  const std::size_t count = graph.rows.size();
  previous_on_communicator.resize(count);
  end.resize(count);
  floor.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    const Row& row = graph.rows[i];
    stream_rows[static_cast<std::size_t>(row.stream)].push_back(static_cast<EventId>(i));
    previous_on_communicator[i] =
        row.communicator == kNoCommunicator ? kNoEvent : last[row.communicator];
    last[row.communicator] = static_cast<EventId>(i);
  }
}

// Issues rows until one whose host wait has no end yet. Returns whether it issued any.
bool Simulator::Scratch::host_issues(const EventGraph& graph, std::size_t& next,
                                     std::int64_t& host) {
  const std::size_t first = next;
  const std::size_t count = graph.rows.size();
  for (; next < count; ++next) {
    const Row& row = graph.rows[next];
    if (row.host_wait != kNoEvent) {
      const std::int64_t awaited = end[static_cast<std::size_t>(row.host_wait)];
      if (awaited == kUnknown) break;
      host = std::max(host, awaited);
    }
    const FlatCost& c = costs[row.work];
    const std::int64_t issue = host + c.before;
    host = issue + c.during;
    timeline.spans[next].issue = Time::ns(issue);
    floor[next] = host + c.last_kernel;
  }
  return next > first;
}

Carry Simulator::Scratch::simulate_step(const EventGraph& graph, const CostTable& table,
                                        Carry carry) {
  constexpr auto kCompute = static_cast<std::size_t>(Stream::kCompute);
  std::fill(end.begin(), end.end(), kUnknown);
  // Work per ns in 1/1024 ns units: 1024 alone. Index: whether the other side runs; collectives
  // also by sharers.
  const std::int64_t compute_rate[2] = {kOne, kOne * kOne / table.contention.compute};
  std::int64_t communication_rate[2][kStreams + 1];
  for (std::int64_t sharers = 1; sharers <= static_cast<std::int64_t>(kStreams); ++sharers) {
    const auto n = static_cast<std::size_t>(sharers);
    communication_rate[0][n] = std::max<std::int64_t>(1, kOne / sharers);
    communication_rate[1][n] =
        std::max<std::int64_t>(1, kOne * kOne / (table.contention.communication * sharers));
  }

  enum class Phase : std::uint8_t { kIdle, kScheduled, kRunning };
  struct Head {
    Phase phase = Phase::kIdle;
    std::uint8_t links = 0;    // of a collective; 0 for compute
    std::size_t position = 0;  // in stream_rows
    EventId row = kNoEvent;
    std::int64_t tail = 0;  // end of the stream's previous row
    std::int64_t at = 0;    // scheduled: start of work; running: see `work`
    std::int64_t work = 0;  // left, in 1/1024 ns
    std::int64_t rate = kOne;
  };
  std::array<Head, kStreams> heads;
  for (Head& head : heads) head.tail = carry.device;
  for (std::size_t s = 0; s < kStreams; ++s) {
    if (!stream_rows[s].empty()) heads[s].row = stream_rows[s].front();
  }
  Span* spans = timeline.spans.data();
  const std::size_t count = graph.rows.size();
  std::size_t issued = 0;
  std::int64_t host = carry.host;
  std::int64_t now = std::numeric_limits<std::int64_t>::min() / 4;
  bool bound = false;
  std::size_t finished = 0;

  auto advance = [&](std::size_t s, std::int64_t ended) {
    Head& head = heads[s];
    spans[head.row].end = Time::ns(ended);
    end[static_cast<std::size_t>(head.row)] = ended;
    head.tail = ended;
    head.phase = Phase::kIdle;
    ++head.position;
    head.row = head.position < stream_rows[s].size() ? stream_rows[s][head.position] : kNoEvent;
    ++finished;
  };

  // Gives the head of a stream its start if everything it waits for has an end. Returns whether it
  // did.
  auto resolve = [&](std::size_t s) {
    Head& head = heads[s];
    const EventId id = head.row;
    if (id == kNoEvent || static_cast<std::size_t>(id) >= issued) return false;
    const Row& row = graph.rows[static_cast<std::size_t>(id)];
    std::int64_t ready = head.tail;
    for (std::uint32_t w = row.waits_begin; w < row.waits_begin + row.wait_count; ++w) {
      const std::int64_t awaited = end[static_cast<std::size_t>(graph.waits[w])];
      if (awaited == kUnknown) return false;
      ready = std::max(ready, awaited);
    }
    std::int64_t queue = carry.device;
    const EventId previous = previous_on_communicator[static_cast<std::size_t>(id)];
    if (previous != kNoEvent) {
      queue = end[static_cast<std::size_t>(previous)];
      if (queue == kUnknown) return false;
    }
    Span& span = spans[id];
    const std::int64_t issue = span.issue.nanoseconds();
    const std::int64_t start = std::max(issue, ready);
    const bool collective = is_collective(row.kind);
    const std::int64_t arrive =
        row.communicator != kNoCommunicator ? std::max(start, queue) : start;
    bound |= issue > ready;
    span.start = Time::ns(start);
    span.arrive = Time::ns(arrive);
    const std::int64_t duration = costs[row.work].duration;
    if (s == kCompute || collective) {
      head.phase = Phase::kScheduled;
      head.at = arrive;
      head.work = duration * kOne;
      head.links = collective ? table.links[graph.works[row.work].communicator] : std::uint8_t{0};
    } else {
      const std::int64_t kernel_floor = floor[static_cast<std::size_t>(id)];
      bound |= kernel_floor > arrive + duration;
      advance(s, std::max(arrive + duration, kernel_floor));
    }
    return true;
  };

  auto set_rates = [&] {
    const bool computing = heads[kCompute].phase == Phase::kRunning;
    bool communicating = false;
    for (std::size_t s = 1; s < kStreams; ++s) {
      Head& head = heads[s];
      if (head.phase != Phase::kRunning) continue;
      communicating = true;
      std::size_t sharers = 1;
      for (std::size_t other = 1; other < kStreams; ++other) {
        sharers += other != s && heads[other].phase == Phase::kRunning &&
                   (heads[other].links & head.links) != 0;
      }
      head.rate = communication_rate[computing][sharers];
    }
    heads[kCompute].rate = compute_rate[communicating];
  };

  host_issues(graph, issued, host);
  while (finished < count) {
    // Everything that can be placed is placed; placing one row can make another's start known.
    for (bool progress = true; progress;) {
      progress = false;
      for (std::size_t s = 0; s < kStreams; ++s) {
        while (heads[s].phase == Phase::kIdle && resolve(s)) progress = true;
      }
      if (issued < count && host_issues(graph, issued, host)) progress = true;
    }
    // The next moment at which somebody starts or ends.
    std::int64_t next = kNever;
    for (const Head& head : heads) {
      if (head.phase == Phase::kIdle) continue;
      std::int64_t moment = head.at;
      if (head.phase == Phase::kRunning) {
        moment = now + (head.work + head.rate - 1) / head.rate;
        moment = std::max(moment, floor[static_cast<std::size_t>(head.row)]);
      }
      next = std::min(next, moment);
    }
    if (next == kNever) break;
    const std::int64_t elapsed = next - now;
    for (std::size_t s = 0; s < kStreams; ++s) {
      Head& head = heads[s];
      if (head.phase == Phase::kRunning) {
        head.work = std::max<std::int64_t>(0, head.work - elapsed * head.rate);
        const std::int64_t kernel_floor = floor[static_cast<std::size_t>(head.row)];
        if (head.work == 0 && next >= kernel_floor) {
          bound |= next == kernel_floor;
          advance(s, next);
        }
      } else if (head.phase == Phase::kScheduled && head.at == next) {
        head.phase = Phase::kRunning;
      }
    }
    now = next;
    set_rates();
  }
  FORESHARD_CHECK(finished == count, "the simulation stalled: a dependency points forward");
  host_bound = bound;
  if (graph.final_host_wait != kNoEvent) {
    host = std::max(host, end[static_cast<std::size_t>(graph.final_host_wait)]);
  }
  return {host, heads[kCompute].tail};
}

// Steps follow each other until one takes as long as the one before. A step in which the host never
// held anything up, with the host no further behind than in the step before, repeats for ever: then
// two are enough.
template <typename Step>
void Simulator::Scratch::repeat(const EventGraph& graph, Step&& step) {
  Carry carry = step(Carry{});
  timeline.first_step = timeline.period = Time::ns(carry.device);
  timeline.steady_step = 1;
  if (graph.rows.empty()) return;
  std::int64_t previous = kUnknown;
  for (int k = 2; k <= kMostSteps; ++k) {
    const Carry begin{carry.host - carry.device, 0};
    carry = step(begin);
    const std::int64_t period = carry.device;
    timeline.period = Time::ns(period);
    timeline.steady_step = k;
    const bool lead_grows = carry.host - carry.device <= begin.host;
    if (!host_bound && lead_grows) return;
    if (period == previous) {
      timeline.steady_step = k - 1;
      return;
    }
    previous = period;
  }
}

Simulator::Simulator() : scratch_(std::make_unique<Scratch>()) {}
Simulator::~Simulator() = default;
Simulator::Simulator(Simulator&&) noexcept = default;
Simulator& Simulator::operator=(Simulator&&) noexcept = default;

const Timeline& Simulator::sweep(const EventGraph& graph, const CostTable& costs) {
  scratch_->load(graph, costs);
  scratch_->repeat(graph, [&](Carry carry) { return scratch_->sweep_step(graph, carry); });
  return scratch_->timeline;
}

const Timeline& Simulator::simulate(const EventGraph& graph, const CostTable& costs) {
  scratch_->load(graph, costs);
  scratch_->index_streams(graph);
  scratch_->repeat(graph,
                   [&](Carry carry) { return scratch_->simulate_step(graph, costs, carry); });
  return scratch_->timeline;
}

const Timeline& Simulator::sweep_once(const EventGraph& graph, const CostTable& costs) {
  scratch_->load(graph, costs);
  const Carry carry = scratch_->sweep_step(graph, Carry{});
  scratch_->timeline.first_step = scratch_->timeline.period = Time::ns(carry.device);
  scratch_->timeline.steady_step = 1;
  return scratch_->timeline;
}

const Timeline& Simulator::simulate_once(const EventGraph& graph, const CostTable& costs) {
  scratch_->load(graph, costs);
  scratch_->index_streams(graph);
  const Carry carry = scratch_->simulate_step(graph, costs, Carry{});
  scratch_->timeline.first_step = scratch_->timeline.period = Time::ns(carry.device);
  scratch_->timeline.steady_step = 1;
  return scratch_->timeline;
}

Timeline sweep(const EventGraph& graph, const CostTable& costs) {
  return Simulator().sweep(graph, costs);
}

Timeline simulate(const EventGraph& graph, const CostTable& costs) {
  return Simulator().simulate(graph, costs);
}

}  // namespace foreshard
