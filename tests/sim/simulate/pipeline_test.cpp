// Ranks of a pipeline timed together, against steps that a dependency simulation of the library's
// tables gave, and against the plain recurrence.
#include "sim/graph/pipeline/pipeline.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <array>
#include <vector>

#include "sim/simulate/simulate.h"
#include "tests/support/generators.h"
#include "tests/support/sweep.h"

namespace foreshard {
namespace {

Cost lasting(Time duration) { return Cost{.duration = duration}; }

// A rank's graph and costs, row by row.
struct RankOf {
  EventGraph graph;
  CostTable costs;

  EventId add(EventKind kind, Stream stream, Cost cost, const std::vector<EventId>& waits = {}) {
    const auto id = static_cast<EventId>(graph.rows.size());
    std::size_t work = 0;
    while (work < costs.works.size() && (costs.works[work] != cost || graph.works[work].kind != kind)) ++work;
    if (work == costs.works.size()) {
      graph.works.emplace_back().kind = kind;
      costs.works.push_back(cost);
    }
    Row row;
    row.kind = kind;
    row.stream = stream;
    row.work = static_cast<std::uint16_t>(work);
    row.communicator = is_collective(kind) ? static_cast<std::uint8_t>(stream) : kNoCommunicator;
    row.waits_begin = static_cast<std::uint32_t>(graph.waits.size());
    row.wait_count = static_cast<std::uint8_t>(waits.size());
    row.wakes = only(stream);
    for (const EventId awaited : waits) {
      graph.waits.push_back(awaited);
      graph.rows[at(awaited)].wakes |= only(stream);
    }
    graph.rows.push_back(row);
    graph.details.emplace_back();
    return id;
  }
  EventId compute(std::int64_t ns, const std::vector<EventId>& waits = {}) {
    return add(EventKind::kForward, Stream::kCompute, lasting(Time::ns(ns)), waits);
  }
  EventId exchange(std::int32_t peer, std::int64_t ns, const std::vector<EventId>& waits = {}) {
    graph.exchanges.push_back({static_cast<EventId>(graph.rows.size()), peer});
    return add(EventKind::kSendRecv, Stream::kPipeline, lasting(Time::ns(ns)), waits);
  }
};

// The graph of rank `own` with all others'.
RankOf joined(std::vector<RankOf> ranks, std::size_t own = 0) {
  RankOf all = ranks[own];
  all.graph.pipeline_rank = static_cast<std::int32_t>(own);
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const bool is_own = r == own;
    all.graph.pipeline.push_back(is_own ? nullptr : std::make_shared<EventGraph>(ranks[r].graph));
    all.costs.pipeline.push_back(is_own ? CostTable() : ranks[r].costs);
  }
  return all;
}

// What an action and a batch of transfers take; stages differ.
struct Durations {
  std::int64_t forward, input, weight, transfer;
  double first = 1, last = 1;  // what stages of both ends take, against others
  int rows = 1;                // of an action

  std::int64_t of(const PipelineAction& action, int stages) const {
    using enum PipelineAction::Kind;
    const double scale = action.stage == stages - 1 ? last : action.stage == 0 ? first : 1;
    const std::int64_t one = action.kind == kForward      ? forward
                             : action.kind == kInputGrad  ? input
                             : action.kind == kWeightGrad ? weight
                             : action.kind == kBackward   ? input + weight
                                                          : 0;
    return static_cast<std::int64_t>(as_double(one) * scale);
  }
};

// What NCCL makes of it: each batch is one kernel on the rank's one stream of transfers, behind all
// that was issued on the compute stream before it.
RankOf rank_of(const PipelineRows& rows, int stages, const Durations& durations) {
  RankOf rank;
  std::vector<EventId> batches, awaited;
  EventId last = kNoEvent;
  for (const PipelineRow& row : rows) {
    if (row.kind == PipelineRow::Kind::kBatch) {
      // What the compute stream waits for are batches, which come before this one anyway.
      std::vector<EventId> waits;
      if (last != kNoEvent) waits.push_back(last);
      batches.resize(std::max(batches.size(), at(row.batch) + 1));
      batches[at(row.batch)] = rank.exchange(row.transfers.front().peer, durations.transfer, waits);
    } else if (row.kind == PipelineRow::Kind::kWait) {
      awaited.push_back(batches[at(row.batch)]);
    } else if (row.kind == PipelineRow::Kind::kAction) {
      const std::int64_t time = durations.of(row.action, stages);
      if (time == 0) continue;
      for (int i = 0; i < durations.rows; ++i) {
        last = rank.compute(time / durations.rows, awaited);
        awaited.clear();
      }
    }
  }
  rank.compute(0, awaited);
  return rank;
}

RankOf pipeline_of(const StagePipeline& pipeline, const Durations& durations) {
  std::vector<RankOf> ranks;
  for (const PipelineRows& rows : pipeline_rows(pipeline)) ranks.push_back(rank_of(rows, pipeline.stages(), durations));
  return joined(std::move(ranks));
}

struct Golden {
  StagePipeline pipeline;
  std::array<double, 4> steps;
};

// One unit is 16 us, so that eighths of halves are whole.
constexpr std::int64_t kUnit = 16'000;
const std::array kGoldenDurations = {Durations{kUnit, kUnit, kUnit, 0}, Durations{kUnit, kUnit, kUnit, kUnit / 4},
    Durations{kUnit, kUnit * 3 / 2, kUnit / 2, 0},
    Durations{kUnit, kUnit * 3 / 2, kUnit / 2, kUnit / 8, 9.0 / 8, 3.0 / 2}};

class PipelineStep : public testing::TestWithParam<Golden> {};

TEST_P(PipelineStep, TakesWhatTheDependencySimulationOfTheTablesTells) {
  for (std::size_t i = 0; i < kGoldenDurations.size(); ++i) {
    const RankOf rank = pipeline_of(GetParam().pipeline, kGoldenDurations[i]);
    const Time step = Time::ns(static_cast<std::int64_t>(GetParam().steps[i] * kUnit));
    EXPECT_EQ(sweep_once(rank.graph, rank.costs).period, step) << i;
    EXPECT_EQ(Simulator().simulate_once(rank.graph, rank.costs).period, step) << i;
  }
}

using enum PipelineSchedule;
INSTANTIATE_TEST_SUITE_P(Tables, PipelineStep,
    testing::Values(Golden{{kGPipe, 4, 8, 1}, {33, 41.5, 33, 47}}, Golden{{k1F1B, 4, 8, 1}, {33, 37.75, 33, 47}},
        Golden{{k1F1B, 4, 9, 1}, {36, 41.25, 36, 51.625}}, Golden{{kInterleaved1F1B, 4, 8, 2}, {70, 79.5, 70, 85.75}},
        Golden{{kInterleaved1F1B, 2, 8, 4}, {99, 104.5, 99, 114.375}},
        Golden{{kLoopedBfs, 4, 8, 2}, {77, 98, 77, 98.125}},
        Golden{{kInterleavedZeroBubble, 4, 5, 1}, {18, 21, 21, 28.625}},
        Golden{{kInterleavedZeroBubble, 4, 8, 4}, {124, 144, 130, 152.25}},
        Golden{{kZbvZeroBubble, 4, 9, 2}, {61, 65.5, 64, 75.375}},
        Golden{{kDualPipeV, 4, 8, 2}, {69, 79.25, 73.5, 80.375}}));

// Rank 0: 10 of compute, an exchange of 4, done. Rank 1: the exchange, 30 of compute. The first step takes 10 + 4 + 30.
// Later rank 0 begins when it is done, 30 before rank 1 is, and waits for it with what rank 1 needs: 4 + 30.
TEST(PipelineSteady, ARankThatIsDoneBeginsTheNextStep) {
  std::vector<RankOf> ranks(2);
  const EventId sent = ranks[0].exchange(1, 4, {ranks[0].compute(10)});
  ranks[0].compute(0, {sent});
  ranks[1].compute(30, {ranks[1].exchange(0, 4)});
  for (std::size_t own = 0; own < 2; ++own) {
    const RankOf both = joined(ranks, own);
    for (const Timeline& t : {simulate(both.graph, both.costs), sweep(both.graph, both.costs)}) {
      EXPECT_EQ(t.first_step, Time::ns(44));
      EXPECT_EQ(t.period, Time::ns(34));
      EXPECT_EQ(t.steady_step, 2);
      ASSERT_EQ(t.pipeline.size(), 2U);
      EXPECT_TRUE(t.pipeline[own].spans.empty());
      const Timeline& peer = t.pipeline[1 - own];
      EXPECT_EQ(peer.period, Time::ns(own == 0 ? 34 : 4));
      EXPECT_EQ(peer.first_step, Time::ns(own == 0 ? 44 : 14));
      const std::vector<Span>& first = own == 0 ? t.spans : peer.spans;
      EXPECT_EQ(first[0].start, Time::ns(-30));
      EXPECT_EQ(first[1].start, Time::ns(-20));
      EXPECT_EQ(first[1].arrive, Time::ns(0));
      EXPECT_EQ(first[1].end, Time::ns(4));
    }
    EXPECT_EQ(Simulator().period(both.graph, both.costs), Time::ns(34));
    EXPECT_EQ(Simulator().steady_step(both.graph, both.costs).period, Time::ns(34));
  }
}

// The same with a host of rank 1 that takes 50 a step: it is what a step takes.
TEST(PipelineSteady, TheSlowestHostHasItsSay) {
  std::vector<RankOf> ranks(2);
  const EventId sent = ranks[0].exchange(1, 4, {ranks[0].compute(10)});
  ranks[0].compute(0, {sent});
  const EventId received = ranks[1].exchange(0, 4);
  Cost slow = lasting(Time::ns(30));
  slow.during = Time::ns(50);
  ranks[1].add(EventKind::kForward, Stream::kCompute, slow, {received});
  const RankOf both = joined(ranks);
  EXPECT_EQ(simulate(both.graph, both.costs).period, Time::ns(50));
  EXPECT_EQ(Simulator().period(both.graph, both.costs), Time::ns(50));
}

// On rank 0 compute beside an exchange takes twice as long, an exchange beside compute four times.
// It has begun its exchange at 0, but nothing moves, nor slows, before rank 1 has computed 40. Then
// the exchange's 20 take 80, to 120, while of the 60 of compute that are left 40 are done; the last
// 20 are alone, to 140. On rank 1 nothing runs beside: 60.
TEST(PipelineContention, IsEachRanksOwn) {
  std::vector<RankOf> ranks(2);
  ranks[0].costs.contention = {2 * Contention::kOne, 4 * Contention::kOne};
  ranks[0].exchange(1, 20);
  ranks[0].compute(100);
  ranks[1].exchange(0, 20, {ranks[1].compute(40)});
  const RankOf both = joined(ranks);
  const Timeline t = Simulator().simulate_once(both.graph, both.costs);
  EXPECT_EQ(t.spans[0], (Span{Time(), Time(), Time::ns(40), Time::ns(120)}));
  EXPECT_EQ(t.spans[1].end, Time::ns(140));
  EXPECT_EQ(t.pipeline[1].spans[1].end, Time::ns(60));
}

TEST(PipelineDeadlock, NamesWhoWaitsForWhom) {
  std::vector<RankOf> ranks(3);
  for (std::int32_t r = 0; r < 3; ++r) {
    ranks[at(r)].compute(5);
    ranks[at(r)].exchange((r + 1) % 3, 1);
    ranks[at(r)].exchange((r + 2) % 3, 1);
  }
  const RankOf all = joined(ranks);
  try {
    simulate(all.graph, all.costs);
    FAIL() << "no deadlock";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::kInvalidInput);
    EXPECT_STREQ(error.what(),
        "the pipeline would deadlock: rank 0 waits for rank 1 in exchange 1 with it (row 1), rank 1 waits for rank 2 "
        "in exchange 1 with it (row 1), rank 2 waits for rank 0 in exchange 1 with it (row 1)");
  }
}

RC_GTEST_PROP(PipelineProperty, OneRankIsNoPipeline, ()) {
  RandomStep step = random_step();
  step.costs.contention = random_contention();
  EventGraph one = step.graph;
  one.pipeline.push_back(nullptr);
  CostTable costs = step.costs;
  costs.pipeline.emplace_back();
  const auto same = [](const Timeline& a, const Timeline& b) {
    return a.spans == b.spans && a.period == b.period && a.first_step == b.first_step && a.steady_step == b.steady_step;
  };
  RC_ASSERT(same(simulate(one, costs), simulate(step.graph, step.costs)));
  RC_ASSERT(same(sweep(one, costs), sweep(step.graph, step.costs)));
  RC_ASSERT(Simulator().period(one, costs) == Simulator().period(step.graph, step.costs));
}

// Ranks whose exchanges can be ordered; everything else at random.
std::vector<RankOf> random_ranks() {
  const int count = *rc::gen::inRange(2, 5);
  std::vector<RankOf> ranks(at(count));
  const auto waits = [](const RankOf& rank) {
    std::vector<EventId> list;
    const auto rows = static_cast<EventId>(rank.graph.rows.size());
    const int tries = rows == 0 ? 0 : *rc::gen::inRange(0, 3);
    for (int i = 0; i < tries; ++i) list.push_back(*rc::gen::inRange(0, rows));
    return list;
  };
  const auto cost = [] {
    const auto host = [] { return Time::ns(*rc::gen::element(0, 0, 7, 120)); };
    Cost c = lasting(Time::ns(*rc::gen::inRange(0, 200)));
    c.before = host();
    c.during = host();
    c.last_kernel = Time::ns(*rc::gen::inRange<std::int64_t>(0, c.duration.nanoseconds() + 1));
    return c;
  };
  const int rounds = *rc::gen::inRange(1, 30);
  for (int i = 0; i < rounds; ++i) {
    const int a = *rc::gen::inRange(0, count);
    const int b = (a + *rc::gen::inRange(1, count)) % count;
    for (const int r : {a, b}) {
      RankOf& rank = ranks[at(r)];
      const int before = *rc::gen::inRange(0, 4);
      for (int k = 0; k < before; ++k) {
        const bool gathers = *rc::gen::inRange(0, 3) == 0;
        const EventId id = rank.add(gathers ? EventKind::kAllGather : EventKind::kForward,
            gathers ? Stream::kAllGather : Stream::kCompute, cost(), waits(rank));
        if (id > 0 && *rc::gen::inRange(0, 8) == 0) rank.graph.rows[at(id)].host_wait = id - 1;
      }
      rank.graph.exchanges.push_back({static_cast<EventId>(rank.graph.rows.size()), r == a ? b : a});
      rank.add(EventKind::kSendRecv, Stream::kPipeline, cost(), waits(rank));
    }
  }
  for (RankOf& rank : ranks) rank.compute(1, waits(rank));
  return ranks;
}

// Of the first step, in any order that gives every row its time.
std::vector<std::vector<Span>> recurrence(const std::vector<RankOf>& ranks) {
  struct Place {
    std::size_t next = 0;
    std::int64_t host = 0;
    std::array<std::int64_t, kStreams> tail{};  // a communicator has one stream: its FIFO, too
    Span span;
    std::vector<std::int32_t> met;  // exchanges by peer
  };
  std::vector<Place> places(ranks.size());
  std::vector<std::vector<Span>> spans(ranks.size());
  for (Place& place : places) place.met.resize(ranks.size());
  const auto begin = [&](std::size_t r) {
    const EventGraph& graph = ranks[r].graph;
    const Place& place = places[r];
    const Row& row = graph.rows[place.next];
    const Cost& cost = ranks[r].costs.works[row.work];
    std::int64_t host = place.host;
    if (row.host_wait >= 0) host = std::max(host, spans[r][at(row.host_wait)].end.nanoseconds());
    const std::int64_t issue = host + cost.before.nanoseconds();
    std::int64_t start = std::max(issue, place.tail[at(row.stream)]);
    for (const EventId id : graph.waits_of(static_cast<EventId>(place.next))) {
      start = std::max(start, spans[r][at(id)].end.nanoseconds());
    }
    return Span{Time::ns(issue), Time::ns(start), Time::ns(start), {}};
  };
  const auto end = [&](std::size_t r, Span span) {
    Place& place = places[r];
    const Row& row = ranks[r].graph.rows[place.next];
    const Cost& cost = ranks[r].costs.works[row.work];
    place.host = (span.issue + cost.during).nanoseconds();
    span.end = std::max(span.arrive + cost.duration, Time::ns(place.host) + cost.last_kernel);
    place.tail[at(row.stream)] = span.end.nanoseconds();
    spans[r].push_back(span);
    ++place.next;
  };
  const auto peer_of = [&](std::size_t r) -> std::int32_t {
    const auto& list = ranks[r].graph.exchanges;
    const auto found = std::ranges::find(list, static_cast<EventId>(places[r].next), &Exchange::row);
    return found == list.end() ? -1 : found->peer;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      if (places[r].next == ranks[r].graph.rows.size()) continue;
      const std::int32_t peer = peer_of(r);
      if (peer < 0) {
        end(r, begin(r));
        moved = true;
      } else if (peer_of(at(peer)) == static_cast<std::int32_t>(r)) {
        Span a = begin(r), b = begin(at(peer));
        a.arrive = b.arrive = std::max(a.arrive, b.arrive);
        end(r, a);
        end(at(peer), b);
        moved = true;
      }
    }
  }
  return spans;
}

RC_GTEST_PROP(PipelineProperty, TimesAreThoseOfTheRecurrence, ()) {
  const std::vector<RankOf> ranks = random_ranks();
  const auto own = *rc::gen::inRange<std::size_t>(0, ranks.size());
  const RankOf all = joined(ranks, own);
  const auto expected = recurrence(ranks);
  Time period;
  for (std::size_t r = 0; r < ranks.size(); ++r) period = std::max(period, expected[r].back().end);
  Simulator simulator;
  for (const bool sweeps : {true, false}) {
    const Timeline t = sweeps ? sweep_once(all.graph, all.costs) : simulator.simulate_once(all.graph, all.costs);
    RC_ASSERT(t.period == period);
    for (std::size_t r = 0; r < ranks.size(); ++r) RC_ASSERT((r == own ? t.spans : t.pipeline[r].spans) == expected[r]);
  }
  const Timeline a = sweep(all.graph, all.costs), b = simulate(all.graph, all.costs);
  RC_ASSERT(a.spans == b.spans);
  RC_ASSERT(a.period == b.period);
  RC_ASSERT(a.period <= a.first_step);
  RC_ASSERT(Simulator().period(all.graph, all.costs) == b.period);
}

// With contention, too: a rank alone, whose exchanges wait until a clock says what they waited for
// with their peers, does the same.
RC_GTEST_PROP(PipelineProperty, ARankWithItsPeersTimesDoesTheSameAlone, ()) {
  std::vector<RankOf> ranks = random_ranks();
  for (RankOf& rank : ranks) {
    rank.costs.contention = random_contention();
    for (Cost& cost : rank.costs.works) cost.uses = {Contention::kOne, 0};
  }
  const RankOf all = joined(ranks);
  const Timeline together = Simulator().simulate_once(all.graph, all.costs);
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const std::vector<Span>& spans = r == 0 ? together.spans : together.pipeline[r].spans;
    // The clock's rows come first, and cost the host nothing.
    RankOf alone;
    alone.costs.contention = ranks[r].costs.contention;
    std::vector<EventId> ticks;
    Time before;
    for (const Exchange& exchange : ranks[r].graph.exchanges) {
      const Time until = spans[at(exchange.row)].arrive;
      ticks.push_back(alone.add(EventKind::kHostToDevice, Stream::kExpert, lasting(until - before)));
      before = until;
    }
    const auto first = static_cast<EventId>(ticks.size());
    std::size_t exchange = 0;
    for (EventId id = 0; at(id) < spans.size(); ++id) {
      const EventGraph& graph = ranks[r].graph;
      const Row& row = graph.rows[at(id)];
      std::vector<EventId> waits;
      for (const EventId awaited : graph.waits_of(id)) waits.push_back(first + awaited);
      if (row.kind == EventKind::kSendRecv) waits.push_back(ticks[exchange++]);
      alone.add(row.kind, row.stream, ranks[r].costs.works[row.work], waits);
      if (row.host_wait >= 0) alone.graph.rows.back().host_wait = first + row.host_wait;
    }
    const Timeline same = Simulator().simulate_once(alone.graph, alone.costs);
    for (std::size_t id = 0; id < spans.size(); ++id) {
      const Span& span = same.spans[at(first) + id];
      RC_ASSERT(span.issue == spans[id].issue);
      RC_ASSERT(span.arrive == spans[id].arrive);
      RC_ASSERT(span.end == spans[id].end);
    }
  }
}

}
}
