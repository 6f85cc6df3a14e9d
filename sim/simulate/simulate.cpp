// sweep is the recurrence of the header over flat arrays.
//
// simulate keeps, per stream, the row at its head. Rows that neither slow nor are slowed (copies
// between host and device, what takes nothing of the GPU) get their times as soon as everything
// they wait for has one, even if that lies in the future. Compute rows, collectives and kernels on
// streams of their own that say what they take (copies around collectives, additions to gradients)
// take part in contention: they are started and ended in time order, and between two such moments
// every running row does work at a rate that depends on who else runs. Work is counted in 1/1024
// ns, so that a rate of 1 is exact and no rounding accumulates. When a row ends, only the streams
// in its `wakes` are looked at.
//
// Order never depends on contention: streams and communicators are FIFOs in issue order. So every
// end is a monotone function of the durations, slower rows can only make a step longer, and sweep
// is a lower bound.
//
// Note [The steady step]. A host whose work for a step, H, takes no longer than the device needs
// for it gains on the device with every step until nothing waits for it any more. So one step with
// the host a whole step ahead gives the period P, and it is the steady one if P >= H. Only
// otherwise (a host-bound plan, or one whose host waits for the device) are steps played one after
// the other until the period repeats.
#include "sim/simulate/simulate.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "sim/base/error.h"

namespace foreshard {
namespace {

constexpr std::int64_t kUnknown = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kOne = Contention::kOne;
constexpr std::size_t kFifos = 256;  // by communicator; kNoCommunicator's is never read
constexpr int kMostSteps = 8;
constexpr auto kCompute = at(Stream::kCompute);

// What one step leaves behind for the next, in the time of the step.
struct Carry {
  std::int64_t host = 0;
  std::int64_t device =
      0;  // end of the compute stream; every other stream of the next step starts behind it
};

// ceil(work / rate) for work >= 0, rate >= 1: a 64-bit division costs more than everything else at
// an event.
std::int64_t ceil_divide(std::int64_t work, std::int64_t rate) {
  if (rate == kOne) return (work + kOne - 1) / kOne;
  auto quotient = static_cast<std::int64_t>(as_double(work) / as_double(rate));
  while (quotient * rate < work) ++quotient;
  while (quotient > 0 && (quotient - 1) * rate >= work) --quotient;
  return quotient;
}

struct FlatCost {
  std::int64_t before, during, duration, last_kernel;
  // Excesses over kOne of a collective on compute rows, and how a compute row weighs them.
  std::int32_t on_compute, on_memory, memory_share;
  LinkUse uses{};
};

}  // namespace

struct Simulator::Scratch {
  Timeline timeline;
  std::vector<FlatCost> costs;
  std::array<std::int64_t, kFifos> fifo;
  std::int64_t host_work = 0;    // of a step
  std::int64_t last_kernel = 0;  // longest
  bool host_waits = false;
  // simulate only
  std::array<EventId, kStreams> first_on_stream;
  std::array<EventId, kFifos> first_on_communicator;
  std::vector<EventId> next_on_stream, next_on_communicator;  // per row
  std::vector<std::int64_t> end;                              // kUnknown until it is known
  std::vector<std::int64_t> floor;  // end of the last kernel by the host's clock
  std::vector<HostDelay> delays;
  std::size_t next_delay = 0;
  std::size_t done = 0;         // rows that have ended
  std::int64_t latest_end = 0;  // of those
  // Where a step stands for more micro-batches than its graph has (Fold::kRuns).
  RepeatedRows repeats;
  std::int64_t more = 0;                      // runs that are not laid out
  std::int64_t host_of_run = 0;               // its work
  bool shows_runs = true;                     // every step so far showed that they repeat
  std::vector<std::int64_t> standing, stood;  // where streams stand in a run, relative to it

  void load(const EventGraph& graph, const CostTable& table) {
    FORESHARD_CHECK(table.works.size() == graph.works.size(), "costs of another graph");
    costs.resize(table.works.size());
    for (std::size_t w = 0; w < costs.size(); ++w) {
      const Cost& c = table.works[w];
      costs[w] = {c.before.nanoseconds(),   c.during.nanoseconds(),
                  c.duration.nanoseconds(), c.last_kernel.nanoseconds(),
                  c.takes.compute,          c.takes.memory,
                  c.memory_share,           c.uses};
    }
    timeline.spans.resize(graph.rows.size());
    delays = table.delays;
    more = 0;
  }

  void count_host_work(const EventGraph& graph) {
    host_work = last_kernel = 0;
    host_waits = graph.final_host_wait != kNoEvent;
    for (const HostDelay& delay : delays) {
      host_work += delay.time.nanoseconds();
      host_waits |= delay.drains;
    }
    for (const FlatCost& c : costs) last_kernel = std::max(last_kernel, c.last_kernel);
    for (const Row& row : graph.rows) {
      const FlatCost& c = costs[row.work];
      host_work += c.before + c.during;
      host_waits |= row.host_wait != kNoEvent;
    }
  }

  void fold(const EventGraph& graph, const RepeatedRows& runs) {
    repeats = runs;
    host_of_run = 0;
    for (EventId row = runs.begin; row < runs.begin + runs.rows; ++row) {
      const FlatCost& c = costs[graph.rows[at(row)].work];
      host_of_run += c.before + c.during;
    }
  }

  Carry sweep_step(const EventGraph& graph, Carry carry);
  // kSpans: the host's clock and every span. kDevice: the end of the step alone, with a host that
  // is always ahead.
  enum class Detail { kSpans, kDevice };
  // kRuns: runs that are not laid out are added. kSkips: those that are and pass as the one before
  // them are not played again.
  enum class Fold { kNone, kRuns, kSkips };
  template <Detail detail, Fold fold = Fold::kNone>
  Carry simulate_step(const EventGraph& graph, const CostTable& table, Carry carry);
  void index_streams(const EventGraph& graph);
  bool host_issues(const EventGraph& graph, std::size_t& next, std::int64_t& host);

  template <typename Ahead, typename Step>
  Time steady(const EventGraph& graph, Ahead&& ahead, Step&& step);
  template <typename Step>
  void full(const EventGraph& graph, Step&& step);
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
  const std::size_t count = graph.rows.size();
  auto delay = delays.begin();
  for (std::size_t i = 0; i < count; ++i) {
    const Row& row = rows[i];
    const FlatCost& c = cost[row.work];
    if (row.host_wait != kNoEvent) {
      host = std::max(host, spans[row.host_wait].end.nanoseconds());
    }
    if (delay != delays.end() && at(delay->row) == i) {
      if (delay->drains) host = std::max(host, *std::ranges::max_element(tail));
      host += delay->time.nanoseconds();
      ++delay;
    }
    const std::int64_t issue = host + c.before;
    host = issue + c.during;
    const auto s = at(row.stream);
    std::int64_t start = std::max(issue, tail[s]);
    for (std::uint32_t w = row.waits_begin; w < row.waits_begin + row.wait_count; ++w) {
      start = std::max(start, spans[waits[w]].end.nanoseconds());
    }
    std::int64_t arrive = start;
    if (row.communicator != kNoCommunicator) arrive = std::max(arrive, fifo[row.communicator]);
    const std::int64_t ended = std::max(arrive + c.duration, host + c.last_kernel);
    fifo[row.communicator] = ended;
    tail[s] = ended;
    spans[i] = {Time::ns(issue), Time::ns(start), Time::ns(arrive), Time::ns(ended)};
  }
  if (graph.final_host_wait != kNoEvent) {
    host = std::max(host, spans[graph.final_host_wait].end.nanoseconds());
  }
  return {host, tail[kCompute]};
}

void Simulator::Scratch::index_streams(const EventGraph& graph) {
  const std::size_t count = graph.rows.size();
  next_on_stream.resize(count);
  next_on_communicator.resize(count);
  end.resize(count);
  floor.resize(count);
  first_on_stream.fill(kNoEvent);
  first_on_communicator.fill(kNoEvent);
  for (std::size_t i = count; i-- > 0;) {
    const Row& row = graph.rows[i];
    EventId& stream = first_on_stream[at(row.stream)];
    next_on_stream[i] = stream;
    stream = static_cast<EventId>(i);
    EventId& queue = first_on_communicator[row.communicator];
    next_on_communicator[i] = queue;
    queue = static_cast<EventId>(i);
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
      const std::int64_t awaited = end[at(row.host_wait)];
      if (awaited == kUnknown) break;
      host = std::max(host, awaited);
    }
    const bool is_delayed = next_delay < delays.size() && at(delays[next_delay].row) == next;
    if (is_delayed) {
      const HostDelay& delay = delays[next_delay];
      if (delay.drains && done < next) break;
      if (delay.drains) host = std::max(host, latest_end);
      host += delay.time.nanoseconds();
      ++next_delay;
    }
    const FlatCost& c = costs[row.work];
    const std::int64_t issue = host + c.before;
    host = issue + c.during;
    timeline.spans[next].issue = Time::ns(issue);
    floor[next] = host + c.last_kernel;
  }
  return next > first;
}

template <Simulator::Scratch::Detail detail, Simulator::Scratch::Fold fold>
Carry Simulator::Scratch::simulate_step(const EventGraph& graph, const CostTable& table,
                                        Carry carry) {
  constexpr bool kSpans = detail == Detail::kSpans;
  constexpr bool kFolds = fold != Fold::kNone;
  constexpr std::uint32_t kComputeBit = 1U << kCompute;
  constexpr std::uint32_t kAllStreams = (1U << kStreams) - 1;
  std::ranges::fill(end, kUnknown);
  next_delay = done = 0;
  latest_end = carry.device;
  struct Head {
    EventId row = kNoEvent;
    std::int64_t tail = 0;   // end of the stream's previous row
    std::int64_t when = 0;   // scheduled: start of work; running: end of it at the present rate
    std::int64_t since = 0;  // running: when `work` was last brought up to date
    std::int64_t work = 0;   // left then, in 1/1024 ns
    std::int64_t rate = 0;
    LinkUse uses{};               // of a collective
    std::int32_t on_compute = 0;  // a collective's excess on compute rows bound by compute
    std::int32_t on_memory = 0;   // ... by memory
    std::int32_t memory_share = 0;
  };
  std::array<Head, kStreams> heads;
  for (std::size_t s = 0; s < kStreams; ++s) {
    heads[s].row = first_on_stream[s];
    heads[s].tail = carry.device;
  }
  std::array<EventId, kFifos> queue = first_on_communicator;
  fifo.fill(carry.device);
  const Row* rows = graph.rows.data();
  const EventId* waits = graph.waits.data();
  Span* spans = timeline.spans.data();
  const auto count = static_cast<EventId>(graph.rows.size());
  std::size_t issued = 0;
  std::int64_t host = carry.host;
  std::int64_t now = std::numeric_limits<std::int64_t>::min();
  std::uint32_t scheduled = 0;       // bits of streams whose head has a start
  std::uint32_t running = 0;         // ... whose head is at work
  std::uint32_t look = kAllStreams;  // ... whose head may have become startable

  bool host_bound = false;  // some row waited for the host since the last run was reached
  std::optional<std::int64_t> run_time;  // of a run that the next one repeats

  auto finish = [&](std::size_t s, std::int64_t ended) {
    Head& head = heads[s];
    const EventId id = head.row;
    const Row& row = rows[id];
    if constexpr (kSpans) spans[id].end = Time::ns(ended);
    end[at(id)] = ended;
    latest_end = std::max(latest_end, ended);
    ++done;
    head.tail = ended;
    head.row = next_on_stream[at(id)];
    fifo[row.communicator] = ended;
    queue[row.communicator] = next_on_communicator[at(id)];
    look |= row.wakes;
  };

  // Gives the head of a stream its start if everything it waits for has an end.
  auto resolve = [&](std::size_t s) {
    Head& head = heads[s];
    const EventId id = head.row;
    if (id == kNoEvent) return;
    if constexpr (kSpans) {
      if (at(id) >= issued) return;
    }
    const Row& row = rows[id];
    const bool queues = row.communicator != kNoCommunicator;
    if (queues && queue[row.communicator] != id) return;
    std::int64_t ready = head.tail;
    for (std::uint32_t w = row.waits_begin; w < row.waits_begin + row.wait_count; ++w) {
      ready = std::max(ready, end[at(waits[w])]);
    }
    if (ready == kUnknown) return;
    std::int64_t start = ready;
    if constexpr (kSpans) start = std::max(spans[id].issue.nanoseconds(), ready);
    if constexpr (kSpans && kFolds) host_bound |= start > ready;
    const std::int64_t arrive = queues ? std::max(start, fifo[row.communicator]) : start;
    if constexpr (kSpans) {
      spans[id].start = Time::ns(start);
      spans[id].arrive = Time::ns(arrive);
    }
    const FlatCost& cost = costs[row.work];
    const std::int64_t duration = cost.duration;
    const bool collective = is_collective(row.kind);
    if (s != kCompute && !collective && cost.on_compute <= 0) {
      std::int64_t ended = arrive + duration;
      if constexpr (kSpans) ended = std::max(ended, floor[at(id)]);
      if constexpr (kSpans && kFolds) host_bound |= ended > arrive + duration;
      finish(s, ended);
      return;
    }
    head.work = duration * kOne;
    head.rate = 0;
    head.on_compute = cost.on_compute;
    head.on_memory = cost.on_memory;
    head.memory_share = cost.memory_share;
    head.uses = cost.uses;
    const std::uint32_t bit = 1U << s;
    if (arrive <= now) {
      head.since = now;
      running |= bit;
    } else {
      head.when = arrive;
      scheduled |= bit;
    }
  };

  // Brings work up to date where the rate changes and says when it will be done.
  auto set_rate = [&](std::size_t s, std::int64_t rate) {
    Head& head = heads[s];
    if (head.rate == rate) return;
    head.work = std::max<std::int64_t>(0, head.work - (now - head.since) * head.rate);
    head.since = now;
    head.rate = rate;
    head.when = now + ceil_divide(head.work, rate);
    if constexpr (kSpans) {
      const std::int64_t least = floor[at(head.row)];
      if constexpr (kFolds) host_bound |= head.when < least;
      head.when = std::max(head.when, least);
    }
  };

  // Of the compute row at work beside these collectives. What they take adds up; those that do not
  // say what they take slow it down by the table's factor, however many they are.
  auto compute_rate = [&](std::uint32_t communicating) {
    if (communicating == 0) return kOne;
    std::int64_t on_compute = 0;
    std::int64_t on_memory = 0;
    std::int64_t excess = 0;
    for (; communicating != 0; communicating &= communicating - 1) {
      const Head& other = heads[at(std::countr_zero(communicating))];
      if (other.on_compute < 0) {
        excess = table.contention.compute - kOne;
      } else {
        on_compute += other.on_compute;
        on_memory += other.on_memory;
      }
    }
    const std::int64_t share = heads[kCompute].memory_share;
    excess = std::max(excess, ((kOne - share) * on_compute + share * on_memory) / kOne);
    return std::max<std::int64_t>(1, kOne * kOne / (kOne + excess));
  };

  // Of the collectives at work, by what they take of one link: those that ask for less than their
  // share get it, the others share the rest.
  std::array<std::int64_t, kStreams> link_rate;  // in 1/kOne
  const auto share_link = [&](std::uint32_t communicating, std::size_t link) {
    std::int64_t left = kOne;
    std::int64_t asked = 0;
    std::int64_t sharers = 0;
    for (std::uint32_t c = communicating; c != 0; c &= c - 1) {
      const std::int64_t use = heads[at(std::countr_zero(c))].uses[link];
      asked += use;
      sharers += use > 0 ? 1 : 0;
    }
    std::uint32_t open = communicating;
    for (bool served = true; asked > left && served;) {
      served = false;
      for (std::uint32_t c = open; c != 0; c &= c - 1) {
        const auto s = at(std::countr_zero(c));
        const std::int64_t use = heads[s].uses[link];
        if (use * sharers > left) continue;
        left -= use;
        asked -= use;
        sharers -= use > 0 ? 1 : 0;
        open &= ~(1U << s);
        served = true;
      }
    }
    if (asked <= left) return;
    for (std::uint32_t c = open; c != 0; c &= c - 1) {
      const auto s = at(std::countr_zero(c));
      link_rate[s] = std::min(link_rate[s], left / sharers * kOne / heads[s].uses[link]);
    }
  };

  // Since when, relative to now, the head of a stream waits for nothing but its communicator; 0 if
  // it still waits for another row.
  const auto ready_before = [&](std::size_t s) -> std::int64_t {
    std::int64_t ready = heads[s].tail;
    for (const EventId awaited : graph.waits_of(heads[s].row)) {
      ready = std::max(ready, end[at(awaited)]);
    }
    return ready == kUnknown ? 0 : ready - now;
  };

  // Where all streams stand, relative to the run of rows that the compute stream has reached: what
  // decides how it goes on. What ended in the past decides nothing any more. Empty where a stream
  // is not yet in the runs, whose rows are no others' like, or already looks beyond them.
  const auto stand = [&](EventId run) {
    std::vector<std::int64_t>& list = standing;
    list.clear();
    const auto ahead = [&](std::int64_t time) {
      return time == kUnknown ? -1 : std::max<std::int64_t>(0, time - now);
    };
    EventId oldest = run - repeats.rows;
    for (std::size_t s = 0; s < kStreams; ++s) {
      const Head& head = heads[s];
      const bool is_at_work = ((scheduled | running) >> s & 1U) != 0;
      const bool is_beyond = head.row == kNoEvent || head.row >= repeats.end();
      const bool is_before = !is_beyond && head.row < repeats.begin;
      if (is_before || (is_beyond && is_at_work)) return list.clear();
      list.push_back(is_beyond ? -1 : head.row - run);
      list.push_back(ahead(head.tail));
      if (!is_beyond) oldest = std::min(oldest, head.row);
      if constexpr (fold == Fold::kSkips) {
        // Of what queues behind another stream's row the past shows, too: since when.
        if (!is_beyond && !is_at_work) list.push_back(ready_before(s));
      }
      if (!is_at_work) continue;
      const bool runs = (running >> s & 1U) != 0;
      const std::int64_t left =
          runs ? std::max<std::int64_t>(0, head.work - (now - head.since) * head.rate) : head.work;
      const bool tells_when = !runs || fold == Fold::kSkips;
      list.insert(list.end(), {runs, left, runs ? head.rate : 0, tells_when ? head.when - now : 0});
    }
    for (std::size_t c = 0; c < graph.communicators.size(); ++c) {
      const EventId next = queue[c];
      list.push_back(ahead(fifo[c]));
      list.push_back(next == kNoEvent || next >= repeats.end() ? -1 : next - run);
    }
    list.push_back(run - oldest);
    for (EventId row = std::max(oldest, 0); row < repeats.end(); ++row) {
      const std::int64_t ended = ahead(end[at(row)]);
      if (ended != 0 && (ended > 0 || row < run)) list.insert(list.end(), {row - run, ended});
    }
  };
  EventId next_run = kNoEvent;
  std::int64_t run_began = 0;
  if constexpr (kFolds) {
    standing.clear();
    next_run = repeats.begin;
    while (next_run < repeats.end() && rows[next_run].stream != Stream::kCompute) ++next_run;
  }
  // Where streams stand as they stood a run ago, `run_time` ago, and nothing is laid out behind
  // that could change it, they pass what follows as they passed the last run; the host, which has
  // issued it all and is no slower than they are, stays ahead of them.
  const auto skip_runs = [&](std::int64_t run_time) {
    const auto is_inside = [&](EventId row) { return row != kNoEvent && row < repeats.end(); };
    EventId first = repeats.end(), last = 0;
    const auto span_over = [&](EventId row) {
      if (!is_inside(row)) return;
      first = std::min(first, row);
      last = std::max(last, row);
    };
    if (issued < graph.rows.size()) return;
    for (const Head& head : heads) span_over(head.row);
    for (std::size_t c = 0; c < graph.communicators.size(); ++c) span_over(queue[c]);
    if (first - repeats.rows < repeats.begin) return;
    const std::int32_t runs = (repeats.end() - 1 - last) / repeats.rows;
    const EventId by = runs * repeats.rows;
    std::array<EventId, kStreams> reached;
    for (std::size_t s = 0; s < kStreams; ++s) {
      reached[s] = is_inside(heads[s].row) ? heads[s].row + by : heads[s].row;
    }
    const auto still_awaited = [&](EventId row) {
      const EventId next = reached[at(rows[row].stream)];
      return next != kNoEvent && row >= next;
    };
    for (const Head& head : heads) {
      if (head.row == kNoEvent || is_inside(head.row)) continue;
      const auto awaited = graph.waits_of(head.row);
      if (std::ranges::none_of(awaited, still_awaited)) return;
    }
    const auto later = [&](Time time) { return time + Time::ns(run_time); };
    for (EventId row = first; row <= last + by; ++row) {
      const auto s = at(rows[row].stream);
      if (!is_inside(heads[s].row) || row < heads[s].row || row > reached[s]) continue;
      const bool is_at_work = ((scheduled | running) >> s & 1U) != 0;
      const Span& before = spans[row - repeats.rows];
      if (is_at_work ? row > heads[s].row : row < reached[s]) {
        spans[row].start = later(before.start);
        spans[row].arrive = later(before.arrive);
      }
      if (row == reached[s]) continue;
      spans[row].end = later(before.end);
      end[at(row)] = spans[row].end.nanoseconds();
      ++done;
    }
    const std::int64_t passed = runs * run_time;
    now += passed;
    for (std::size_t s = 0; s < kStreams; ++s) {
      Head& head = heads[s];
      if (!is_inside(head.row)) continue;
      head.row = reached[s];
      head.tail += passed;
      head.when += passed;
      head.since += passed;
    }
    for (std::size_t c = 0; c < graph.communicators.size(); ++c) {
      if (!is_inside(queue[c])) continue;
      queue[c] += by;
      fifo[c] += passed;
    }
  };
  const auto reach_run = [&] {
    stood.swap(standing);
    stand(next_run);
    const bool repeated = !standing.empty() && standing == stood && !host_bound;
    // A host that is not slower than the device stays ahead of it.
    if (repeated && host_of_run <= now - run_began) run_time = now - run_began;
    host_bound = false;
    run_began = now;
    next_run += repeats.rows;
    if (run_time || next_run >= repeats.end()) next_run = kNoEvent;
    if constexpr (fold == Fold::kSkips) {
      if (run_time) skip_runs(*run_time);
    }
  };

  if constexpr (kSpans) host_issues(graph, issued, host);
  while (true) {
    while (look != 0) {
      const auto s = at(std::countr_zero(look));
      look &= look - 1;
      if (((scheduled | running) >> s & 1U) == 0) resolve(s);
    }
    if constexpr (kFolds) {
      if (next_run != kNoEvent && heads[kCompute].row == next_run) reach_run();
    }
    if constexpr (kSpans) {
      if (issued < at(count) && host_issues(graph, issued, host)) {
        look = kAllStreams;
        continue;
      }
    }
    if (done == graph.rows.size()) break;
    const std::uint32_t communicating = running & ~kComputeBit;
    if ((running & kComputeBit) != 0) set_rate(kCompute, compute_rate(communicating));
    const bool computing = (running & kComputeBit) != 0;
    link_rate.fill(kOne);
    if ((communicating & (communicating - 1)) != 0) {  // more than one
      for (std::size_t link = 0; link < kSharedLinks; ++link) share_link(communicating, link);
    }
    for (std::uint32_t left = communicating; left != 0; left &= left - 1) {
      const auto s = at(std::countr_zero(left));
      const std::int64_t slowed = computing ? table.contention.communication : kOne;
      set_rate(s, std::max<std::int64_t>(1, kOne * link_rate[s] / slowed));
    }
    // The next moment at which somebody starts or ends.
    std::int64_t next = kUnknown;
    for (std::uint32_t left = scheduled | running; left != 0; left &= left - 1) {
      next = std::min(next, heads[at(std::countr_zero(left))].when);
    }
    FORESHARD_CHECK(next != kUnknown, "the simulation stalled: a dependency points forward");
    now = next;
    for (std::uint32_t left = scheduled | running; left != 0; left &= left - 1) {
      const auto s = at(std::countr_zero(left));
      if (heads[s].when != now) continue;
      const std::uint32_t bit = 1U << s;
      if ((running & bit) != 0) {
        running &= ~bit;
        finish(s, now);
      } else {
        scheduled &= ~bit;
        running |= bit;
        heads[s].since = now;
      }
    }
  }
  std::int64_t not_laid_out = 0;
  if constexpr (kFolds) {
    shows_runs &= run_time.has_value() && !host_bound;
    not_laid_out = more * run_time.value_or(0);
    host += more * host_of_run;
  }
  if (graph.final_host_wait != kNoEvent) {
    const std::int64_t awaited = end[at(graph.final_host_wait)];
    host = std::max(host, awaited + not_laid_out);
  }
  return {host, heads[kCompute].tail + not_laid_out};
}

// See Note [The steady step].
// `ahead` plays a step whose host is a whole step ahead, `step` one from the carry it is given.
template <typename Ahead, typename Step>
Time Simulator::Scratch::steady(const EventGraph& graph, Ahead&& ahead, Step&& step) {
  count_host_work(graph);
  host_work += more * host_of_run;
  if (!host_waits) {
    const std::int64_t period = ahead(Carry{-host_work - last_kernel, 0}).device;
    if (period >= host_work) return Time::ns(period);
  }
  Carry carry = step(Carry{});
  std::int64_t period = carry.device;
  std::int64_t began = 0;
  for (int k = 2; k <= kMostSteps; ++k) {
    const std::int64_t previous = period;
    if (carry.host - carry.device == began) break;  // as the step before it
    began = carry.host - carry.device;
    carry = step(Carry{began, 0});
    period = carry.device;
    if (period == previous) break;
  }
  return Time::ns(period);
}

template <typename Step>
void Simulator::Scratch::full(const EventGraph& graph, Step&& step) {
  Carry carry = step(Carry{});
  timeline.first_step = Time::ns(carry.device);
  timeline.period = steady(graph, step, step);
  const Timeline steady_timeline = timeline;
  int k = 1;
  while (k < kMostSteps && !graph.rows.empty()) {
    ++k;
    carry = step(Carry{carry.host - carry.device, 0});
    if (carry.device == steady_timeline.period.nanoseconds()) break;
  }
  timeline = steady_timeline;
  timeline.steady_step = k;
}

Simulator::Simulator() : scratch_(std::make_unique<Scratch>()) {}
Simulator::~Simulator() = default;
Simulator::Simulator(Simulator&&) noexcept = default;
Simulator& Simulator::operator=(Simulator&&) noexcept = default;

const Timeline& Simulator::sweep(const EventGraph& graph, const CostTable& costs) {
  scratch_->load(graph, costs);
  scratch_->full(graph, [&](Carry carry) { return scratch_->sweep_step(graph, carry); });
  return scratch_->timeline;
}

const Timeline& Simulator::simulate(const EventGraph& graph, const CostTable& costs) {
  scratch_->load(graph, costs);
  scratch_->index_streams(graph);
  scratch_->full(graph, [&](Carry carry) {
    return scratch_->simulate_step<Scratch::Detail::kSpans>(graph, costs, carry);
  });
  return scratch_->timeline;
}

const Timeline& Simulator::steady_step(const EventGraph& graph, const CostTable& costs,
                                       const RepeatedRows& repeats) {
  using enum Scratch::Detail;
  Scratch& s = *scratch_;
  s.load(graph, costs);
  s.index_streams(graph);
  const bool skips = repeats.count > 0 && costs.delays.empty();
  if (skips) s.fold(graph, repeats);
  const auto step = [&](Carry carry) {
    return skips ? s.simulate_step<kSpans, Scratch::Fold::kSkips>(graph, costs, carry)
                 : s.simulate_step<kSpans>(graph, costs, carry);
  };
  s.timeline.period = s.steady(graph, step, step);
  return s.timeline;
}

Time Simulator::period(const EventGraph& graph, const CostTable& costs) {
  scratch_->load(graph, costs);
  scratch_->index_streams(graph);
  return scratch_->steady(
      graph,
      [&](Carry carry) {
        return scratch_->simulate_step<Scratch::Detail::kDevice>(graph, costs, carry);
      },
      [&](Carry carry) {
        return scratch_->simulate_step<Scratch::Detail::kSpans>(graph, costs, carry);
      });
}

std::optional<Time> Simulator::period(const EventGraph& graph, const CostTable& costs,
                                      const RepeatedRows& repeats, std::int64_t more) {
  using enum Scratch::Detail;
  using enum Scratch::Fold;
  Scratch& s = *scratch_;
  const bool waits_inside =
      std::ranges::any_of(graph.rows, [](const Row& row) { return row.host_wait != kNoEvent; });
  if (repeats.count == 0 || !costs.delays.empty() || waits_inside) return std::nullopt;
  s.load(graph, costs);
  s.index_streams(graph);
  s.fold(graph, repeats);
  s.more = more;
  s.shows_runs = true;
  const Time period = s.steady(
      graph, [&](Carry carry) { return s.simulate_step<kDevice, kRuns>(graph, costs, carry); },
      [&](Carry carry) { return s.simulate_step<kSpans, kRuns>(graph, costs, carry); });
  return s.shows_runs ? std::optional(period) : std::nullopt;
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
  const Carry carry = scratch_->simulate_step<Scratch::Detail::kSpans>(graph, costs, Carry{});
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
