// Of each stream the row at its head is kept. Rows that neither slow nor are slowed (copies between host and
// device, what takes nothing of the GPU) get their times as soon as everything they wait for has one, even if that lies
// in the future. Compute rows, collectives and kernels on streams of their own that say what they take (copies around
// collectives, additions to gradients) take part in contention: they are started and ended in time order, and between
// two such moments every running row does work at a rate that depends on who else runs. Work is counted in 1/1024 ns,
// so that a rate of 1 is exact and no rounding accumulates. When a row ends, only the streams in its `wakes` are looked
// at.
//
// Order never depends on contention: streams and communicators are FIFOs in issue order. So every end is a monotone
// function of the durations, slower rows can only make a step longer.
//
// Ranks of a pipeline meet in their exchanges alone, which are in order in each of two streams. The one whose next
// moment is the earliest goes on, so that what arrives is never in its past. What is left when none can go on is a
// deadlock.
#include "sim/simulate/rank_steps.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <optional>
#include <string>

#include "sim/base/error.h"
#include "sim/base/lookup.h"

namespace foreshard {
namespace {

constexpr std::int64_t kOpen = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kOne = Contention::kOne;
constexpr auto kCompute = at(Stream::kCompute);
constexpr auto kPipelineSend = at(Stream::kPipelineSend);

// ceil(work / rate) for work >= 0, rate >= 1: a 64-bit division costs more than everything else at an event.
std::int64_t ceil_divide(std::int64_t work, std::int64_t rate) {
  if (rate == kOne) return (work + kOne - 1) / kOne;
  auto quotient = static_cast<std::int64_t>(as_double(work) / as_double(rate));
  while (quotient * rate < work) ++quotient;
  while (quotient > 0 && (quotient - 1) * rate >= work) --quotient;
  return quotient;
}

// Where a rank stands in its exchanges: those of one stream one behind the other.
struct Exchanges {
  using Side = Exchange::Side;
  struct Lane {
    std::vector<Exchange> all;  // that wait for a peer
    std::size_t next = 0;
    bool is_open = false;  // begun, and its peer has not
    std::int64_t begun = 0;

    EventId row() const { return next < all.size() ? all[next].row : kNoEvent; }
    std::int32_t peer() const { return all[next].peer; }
    bool receives() const { return all[next].side == Side::kReceive; }
    bool awaits(std::size_t rank, bool receiving) const {
      return is_open && receives() == receiving && at(peer()) == rank;
    }
    void pass() {
      is_open = false;
      ++next;
    }
  };
  Lane lanes[2];  // of kPipeline and kPipelineSend
  std::span<const Exchange> all;
  std::size_t next_send = 0;                    // of those for which only the peer waits
  std::vector<std::vector<std::int64_t>> sent;  // by peer: when sends to it began
  std::vector<std::size_t> received;            // by peer: how many of its sends have arrived

  Exchanges(std::span<const Exchange> exchanges, const EventGraph& graph) : all(exchanges) {
    for (const Exchange& exchange : exchanges)
      if (exchange.side != Side::kSend) lane(at(graph.rows[at(exchange.row)].stream)).all.push_back(exchange);
  }
  Lane& lane(std::size_t stream) { return lanes[stream == kPipelineSend]; }
  // The one that waits for an exchange with the rank.
  Lane* with(std::size_t rank, bool receiving) {
    const auto found = std::ranges::find_if(lanes, [&](const Lane& each) { return each.awaits(rank, receiving); });
    return found == std::end(lanes) ? nullptr : found;
  }
  // The next send's peer.
  std::size_t send(std::int64_t when) {
    while (all[next_send].side != Side::kSend) ++next_send;
    const auto to = at(all[next_send++].peer);
    if (sent.size() <= to) sent.resize(to + 1);
    sent[to].push_back(when);
    return to;
  }
  // When the send began that a receive from `from` waits for; nothing: it has not yet.
  std::optional<std::int64_t> arriving(const Exchanges& peer, std::size_t from, std::size_t own) {
    if (received.size() <= from) received.resize(from + 1);
    if (peer.sent.size() <= own || peer.sent[own].size() <= received[from]) return std::nullopt;
    return peer.sent[own][received[from]++];
  }
};

// The rank's receive goes on where its peer has begun to send.
template <typename Step>
void receive(std::span<Step> steps, Step& step, Exchanges::Lane& lane) {
  const auto from = at(lane.peer());
  const auto own = at(&step - steps.data());
  const auto sent = step.exchanges.arriving(steps[from].exchanges, from, own);
  if (!sent) return;
  step.exchange_moves(lane.row(), std::max(lane.begun, *sent));
  lane.pass();
}

// The rank has begun to send, for which nobody waits but who receives it.
template <typename Step>
void note_sent(std::span<Step> steps, Step& step, std::int64_t begun) {
  Step& peer = steps[step.exchanges.send(begun)];
  if (Exchanges::Lane* lane = peer.exchanges.with(at(&step - steps.data()), true)) receive(steps, peer, *lane);
}

// `step` has begun the lane's next exchange: where the peer has, too, both move on.
template <typename Step>
void begin_exchange(std::span<Step> steps, Step& step, Exchanges::Lane& lane, std::int64_t begun) {
  lane.begun = begun;
  lane.is_open = true;
  if (lane.receives()) return receive(steps, step, lane);
  Step& peer = steps[at(lane.peer())];
  Exchanges::Lane* other = peer.exchanges.with(at(&step - steps.data()), false);
  if (other == nullptr) return;
  const std::int64_t arrive = std::max(begun, other->begun);
  step.exchange_moves(lane.row(), arrive);
  lane.pass();
  peer.exchange_moves(other->row(), arrive);
  other->pass();
}

template <typename Step>
[[noreturn]] void throw_deadlock(std::span<const Step> steps) {
  std::string text = "the pipeline would deadlock:";
  const char* separator = " ";
  for (std::size_t r = 0; r < steps.size(); ++r) {
    if (steps[r].is_over()) continue;
    const auto& lanes = steps[r].exchanges.lanes;
    FORESHARD_CHECK(std::ranges::any_of(lanes, &Exchanges::Lane::is_open), "a rank is stuck that waits for no other");
    for (const Exchanges::Lane& lane : lanes) {
      if (!lane.is_open) continue;
      const auto with_peer = std::ranges::count(std::span(lane.all).first(lane.next + 1), lane.peer(), &Exchange::peer);
      text += separator + ("rank " + std::to_string(r)) + " waits for rank " + std::to_string(lane.peer()) +
              " in exchange " + std::to_string(with_peer) + " with it (row " + std::to_string(lane.row()) + ")";
      separator = ", ";
    }
  }
  throw Error(ExitCode::kInvalidInput, text);
}

template <Detail detail, Fold fold>
struct SimulatedStep {
  static constexpr bool kSpans = detail == Detail::kSpans;
  static constexpr bool kFolds = fold != Fold::kNone;
  static constexpr std::uint32_t kComputeBit = 1U << kCompute;
  static constexpr std::uint32_t kAllStreams = (1U << kStreams) - 1;
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

  SimulatedStep(RankScratch& of, Carry carry)
      : exchanges(of.exchanges, *of.graph),
        rank(of),
        graph(*of.graph),
        rows(graph.rows.data()),
        waits(graph.waits.data()),
        next_on_stream(of.next_on_stream.data()),
        next_on_communicator(of.next_on_communicator.data()),
        costs(of.costs.data()),
        contention(of.table->contention),
        delays(of.table->delays),
        end(of.end.data()),
        floor(of.floor.data()),
        spans(of.timeline.spans.data()),
        repeats(of.repeats),
        count(static_cast<EventId>(graph.rows.size())),
        latest_end(carry.device),
        host(carry.host),
        queue(of.first_on_communicator) {
    std::ranges::fill(of.end, kOpen);
    for (std::size_t s = 0; s < kStreams; ++s) {
      heads[s].row = of.first_on_stream[s];
      heads[s].tail = carry.device;
    }
    fifo.fill(carry.device);
    if constexpr (kFolds) {
      of.standing.clear();
      next_run = repeats.begin;
      while (next_run < repeats.end() && rows[next_run].stream != Stream::kCompute) ++next_run;
    }
    if constexpr (kSpans) host_issues();
  }

  bool is_over() const { return done == at(count); }

  // Everything that starts or is known by now.
  void settle(std::span<SimulatedStep> steps) {
    changed = false;
    while (true) {
      while (look != 0) {
        const auto s = at(std::countr_zero(look));
        look &= look - 1;
        if (((scheduled | running) >> s & 1U) == 0) resolve(s, steps);
      }
      if constexpr (kFolds) {
        if (next_run != kNoEvent && heads[kCompute].row == next_run) reach_run();
      }
      if constexpr (kSpans) {
        if (issued < count && host_issues()) {
          look = kAllStreams;
          continue;
        }
      }
      return;
    }
  }

  // The next moment at which somebody starts or ends; kOpen: nobody does by himself.
  std::int64_t next_moment() {
    const std::uint32_t communicating = running & ~kComputeBit;
    if ((running & kComputeBit) != 0) set_rate(kCompute, compute_rate(communicating));
    const bool computing = (running & kComputeBit) != 0;
    link_rate.fill(kOne);
    if ((communicating & (communicating - 1)) != 0)  // more than one
      for (std::size_t link = 0; link < kSharedLinks; ++link) share_link(communicating, link);
    for (std::uint32_t left = communicating; left != 0; left &= left - 1) {
      const auto s = at(std::countr_zero(left));
      const std::int64_t slowed = computing ? contention.communication : kOne;
      set_rate(s, std::max<std::int64_t>(1, kOne * link_rate[s] / slowed));
    }
    std::int64_t next = kOpen;
    for (std::uint32_t left = scheduled | running; left != 0; left &= left - 1)
      next = std::min(next, heads[at(std::countr_zero(left))].when);
    return next;
  }

  void advance(std::int64_t next) {
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

  void exchange_moves(EventId row, std::int64_t arrive) {
    changed = true;
    if constexpr (kSpans) spans[row].arrive = Time::ns(arrive);
    start_work(at(rows[row].stream), arrive);
  }

  Carry carry() {
    std::int64_t not_laid_out = 0;
    if constexpr (kFolds) {
      rank.shows_runs &= run_time.has_value() && !host_bound;
      not_laid_out = rank.more * run_time.value_or(0);
      host += rank.more * rank.host_of_run;
    }
    if (graph.final_host_wait != kNoEvent) {
      const std::int64_t awaited = end[at(graph.final_host_wait)];
      host = std::max(host, awaited + not_laid_out);
    }
    return {host, heads[kCompute].tail + not_laid_out};
  }

  Exchanges exchanges;
  bool changed = true;  // since it was settled

 private:
  // Issues rows until one whose host wait has no end yet. Returns whether it issued any.
  bool host_issues() {
    const EventId first = issued;
    for (; issued < count; ++issued) {
      const Row& row = rows[issued];
      if (row.host_wait != kNoEvent) {
        const std::int64_t awaited = end[at(row.host_wait)];
        if (awaited == kOpen) break;
        host = std::max(host, awaited);
      }
      const bool is_delayed = next_delay < delays.size() && delays[next_delay].row == issued;
      if (is_delayed) {
        const HostDelay& delay = delays[next_delay];
        if (delay.drains && done < at(issued)) break;
        if (delay.drains) host = std::max(host, latest_end);
        host += delay.time.nanoseconds();
        ++next_delay;
      }
      const FlatCost& c = costs[row.work];
      const std::int64_t issue = host + c.before;
      host = issue + c.during;
      spans[issued].issue = Time::ns(issue);
      floor[at(issued)] = host + c.last_kernel;
    }
    return issued > first;
  }

  void finish(std::size_t s, std::int64_t ended) {
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
  }

  // Gives the head of a stream its start if everything it waits for has an end.
  void resolve(std::size_t s, std::span<SimulatedStep> steps) {
    Head& head = heads[s];
    const EventId id = head.row;
    if (id == kNoEvent) return;
    if constexpr (kSpans) {
      if (id >= issued) return;
    }
    const Row& row = rows[id];
    const bool queues = row.communicator != kNoCommunicator;
    if (queues && queue[row.communicator] != id) return;
    std::int64_t ready = head.tail;
    for (std::uint32_t w = row.waits_begin; w < row.waits_begin + row.wait_count; ++w)
      ready = std::max(ready, end[at(waits[w])]);
    if (ready == kOpen) return;
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
    if (Exchanges::Lane& lane = exchanges.lane(s); id == lane.row()) {
      if (!lane.is_open) begin_exchange(steps, *this, lane, arrive);
    } else {
      start_work(s, arrive);
      if (s == kPipelineSend) note_sent(steps, *this, arrive);
    }
  }

  void start_work(std::size_t s, std::int64_t arrive) {
    const std::uint32_t bit = 1U << s;
    if (arrive <= now) {
      heads[s].since = now;
      running |= bit;
    } else {
      heads[s].when = arrive;
      scheduled |= bit;
    }
  }

  // Brings work up to date where the rate changes and says when it will be done.
  void set_rate(std::size_t s, std::int64_t rate) {
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
  }

  // Of the compute row at work beside these collectives. What they take adds up; those that do not
  // say what they take slow it down by the table's factor, however many they are.
  std::int64_t compute_rate(std::uint32_t communicating) const {
    if (communicating == 0) return kOne;
    std::int64_t on_compute = 0;
    std::int64_t on_memory = 0;
    std::int64_t excess = 0;
    for (; communicating != 0; communicating &= communicating - 1) {
      const Head& other = heads[at(std::countr_zero(communicating))];
      if (other.on_compute < 0) {
        excess = contention.compute - kOne;
      } else {
        on_compute += other.on_compute;
        on_memory += other.on_memory;
      }
    }
    const std::int64_t share = heads[kCompute].memory_share;
    excess = std::max(excess, ((kOne - share) * on_compute + share * on_memory) / kOne);
    return std::max<std::int64_t>(1, kOne * kOne / (kOne + excess));
  }

  // Of the collectives at work, by what they take of one link: those that ask for less than their
  // share get it, the others share the rest.
  void share_link(std::uint32_t communicating, std::size_t link) {
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
  }

  // Since when, relative to now, the head of a stream waits for nothing but its communicator; 0 if
  // it still waits for another row.
  std::int64_t ready_before(std::size_t s) const {
    std::int64_t ready = heads[s].tail;
    for (const EventId awaited : graph.waits_of(heads[s].row)) ready = std::max(ready, end[at(awaited)]);
    return ready == kOpen ? 0 : ready - now;
  }

  // Where all streams stand, relative to the run of rows that the compute stream has reached: what
  // decides how it goes on. What ended in the past decides nothing any more. Empty where a stream
  // is not yet in the runs, whose rows are no others' like, or already looks beyond them.
  void stand(EventId run) const {
    std::vector<std::int64_t>& list = rank.standing;
    list.clear();
    const auto ahead = [&](std::int64_t time) { return time == kOpen ? -1 : std::max<std::int64_t>(0, time - now); };
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
      append(list, {runs, left, runs ? head.rate : 0, tells_when ? head.when - now : 0});
    }
    for (std::size_t c = 0; c < graph.communicators.size(); ++c) {
      const EventId next = queue[c];
      list.push_back(ahead(fifo[c]));
      list.push_back(next == kNoEvent || next >= repeats.end() ? -1 : next - run);
    }
    list.push_back(run - oldest);
    for (EventId row = std::max(oldest, 0); row < repeats.end(); ++row) {
      const std::int64_t ended = ahead(end[at(row)]);
      if (ended != 0 && (ended > 0 || row < run)) append(list, {row - run, ended});
    }
  }

  // Where streams stand as they stood a run ago, `each` ago, and nothing is laid out behind that
  // could change it, they pass what follows as they passed the last run; the host, which has
  // issued it all and is no slower than they are, stays ahead of them.
  void skip_runs(std::int64_t each) {
    const auto is_inside = [&](EventId row) { return row != kNoEvent && row < repeats.end(); };
    EventId first = repeats.end(), last = 0;
    const auto span_over = [&](EventId row) {
      if (!is_inside(row)) return;
      first = std::min(first, row);
      last = std::max(last, row);
    };
    if (issued < count) return;
    for (const Head& head : heads) span_over(head.row);
    for (std::size_t c = 0; c < graph.communicators.size(); ++c) span_over(queue[c]);
    if (first - repeats.rows < repeats.begin) return;
    const std::int32_t runs = (repeats.end() - 1 - last) / repeats.rows;
    const EventId by = runs * repeats.rows;
    std::array<EventId, kStreams> reached;
    for (std::size_t s = 0; s < kStreams; ++s) reached[s] = is_inside(heads[s].row) ? heads[s].row + by : heads[s].row;
    const auto still_awaited = [&](EventId row) {
      const EventId next = reached[at(rows[row].stream)];
      return next != kNoEvent && row >= next;
    };
    for (const Head& head : heads) {
      if (head.row == kNoEvent || is_inside(head.row)) continue;
      const auto awaited = graph.waits_of(head.row);
      if (std::ranges::none_of(awaited, still_awaited)) return;
    }
    const auto later = [&](Time time) { return time + Time::ns(each); };
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
    const std::int64_t passed = runs * each;
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
  }

  void reach_run() {
    rank.stood.swap(rank.standing);
    stand(next_run);
    const bool repeated = !rank.standing.empty() && rank.standing == rank.stood && !host_bound;
    // A host that is not slower than the device stays ahead of it.
    if (repeated && rank.host_of_run <= now - run_began) run_time = now - run_began;
    host_bound = false;
    run_began = now;
    next_run += repeats.rows;
    if (run_time || next_run >= repeats.end()) next_run = kNoEvent;
    if constexpr (fold == Fold::kSkips) {
      if (run_time) skip_runs(*run_time);
    }
  }

  RankScratch& rank;
  const EventGraph& graph;
  const Row* rows;
  const EventId* waits;
  const EventId* next_on_stream;
  const EventId* next_on_communicator;
  const FlatCost* costs;
  Contention contention;
  std::span<const HostDelay> delays;
  std::int64_t* end;
  std::int64_t* floor;
  Span* spans;
  const RepeatedRows& repeats;

  EventId count;
  EventId issued = 0;
  std::size_t next_delay = 0;
  std::size_t done = 0;     // rows that have ended
  std::int64_t latest_end;  // of those
  std::int64_t host;
  std::int64_t now = std::numeric_limits<std::int64_t>::min();
  std::uint32_t scheduled = 0;       // bits of streams whose head has a start
  std::uint32_t running = 0;         // ... whose head is at work
  std::uint32_t look = kAllStreams;  // ... whose head may have become startable

  bool host_bound = false;               // some row waited for the host since the last run was reached
  std::optional<std::int64_t> run_time;  // of a run that the next one repeats
  EventId next_run = kNoEvent;
  std::int64_t run_began = 0;

  std::array<Head, kStreams> heads;
  std::array<std::int64_t, kStreams> link_rate;  // in 1/kOne
  std::array<EventId, kFifos> queue;
  std::array<std::int64_t, kFifos> fifo;
};

}

void RankScratch::load(const EventGraph& of, const CostTable& priced) {
  FORESHARD_CHECK(priced.works.size() == of.works.size(), "costs of another graph");
  graph = &of;
  table = &priced;
  costs.resize(priced.works.size());
  for (std::size_t w = 0; w < costs.size(); ++w) {
    const Cost& c = priced.works[w];
    costs[w] = {c.before.nanoseconds(), c.during.nanoseconds(), c.duration.nanoseconds(), c.last_kernel.nanoseconds(),
        c.takes.compute, c.takes.memory, c.memory_share, c.uses};
  }
  timeline.spans.resize(of.rows.size());
  more = 0;
  index_streams();
}

void RankScratch::count_host_work() {
  host_work = last_kernel = 0;
  host_waits = graph->final_host_wait != kNoEvent;
  for (const HostDelay& delay : table->delays) {
    host_work += delay.time.nanoseconds();
    host_waits |= delay.drains;
  }
  for (const FlatCost& c : costs) last_kernel = std::max(last_kernel, c.last_kernel);
  for (const Row& row : graph->rows) {
    const FlatCost& c = costs[row.work];
    host_work += c.before + c.during;
    host_waits |= row.host_wait != kNoEvent;
  }
  if (more > 0) host_work += more * host_of_run;
}

void RankScratch::fold(const RepeatedRows& runs) {
  repeats = runs;
  host_of_run = 0;
  for (EventId row = runs.begin; row < runs.begin + runs.rows; ++row) {
    const FlatCost& c = costs[graph->rows[at(row)].work];
    host_of_run += c.before + c.during;
  }
}

void RankScratch::index_streams() {
  const std::size_t count = graph->rows.size();
  next_on_stream.resize(count);
  next_on_communicator.resize(count);
  end.resize(count);
  floor.resize(count);
  first_on_stream.fill(kNoEvent);
  first_on_communicator.fill(kNoEvent);
  for (std::size_t i = count; i-- > 0;) {
    const Row& row = graph->rows[i];
    EventId& stream = first_on_stream[at(row.stream)];
    next_on_stream[i] = stream;
    stream = static_cast<EventId>(i);
    EventId& queue = first_on_communicator[row.communicator];
    next_on_communicator[i] = queue;
    queue = static_cast<EventId>(i);
  }
}

template <Detail detail, Fold fold>
void simulate_step(Ranks ranks, std::span<Carry> carries) {
  using Step = SimulatedStep<detail, fold>;
  if (ranks.size() == 1) {
    Step step(*ranks[0], carries[0]);
    while (true) {
      step.settle({});
      if (step.is_over()) break;
      const std::int64_t next = step.next_moment();
      FORESHARD_CHECK(next != kOpen, "the simulation stalled: a dependency points forward");
      step.advance(next);
    }
    carries[0] = step.carry();
    return;
  }
  std::vector<Step> steps;
  steps.reserve(ranks.size());
  for (std::size_t r = 0; r < ranks.size(); ++r) steps.emplace_back(*ranks[r], carries[r]);
  std::vector<std::int64_t> moments(steps.size(), kOpen);
  while (true) {
    for (bool any = true; any;) {
      any = false;
      for (std::size_t r = 0; r < steps.size(); ++r) {
        if (!steps[r].changed) continue;
        steps[r].settle(steps);
        moments[r] = steps[r].next_moment();
        any = true;
      }
    }
    const auto next = std::ranges::min_element(moments);
    if (*next == kOpen) break;
    Step& step = steps[at(next - moments.begin())];
    step.advance(*next);
    step.changed = true;
  }
  if (!std::ranges::all_of(steps, &Step::is_over)) throw_deadlock<Step>(steps);
  for (std::size_t r = 0; r < steps.size(); ++r) carries[r] = steps[r].carry();
}
template void simulate_step<Detail::kSpans, Fold::kNone>(Ranks, std::span<Carry>);
template void simulate_step<Detail::kSpans, Fold::kSkips>(Ranks, std::span<Carry>);
template void simulate_step<Detail::kSpans, Fold::kRuns>(Ranks, std::span<Carry>);
template void simulate_step<Detail::kDevice, Fold::kNone>(Ranks, std::span<Carry>);
template void simulate_step<Detail::kDevice, Fold::kRuns>(Ranks, std::span<Carry>);

}
