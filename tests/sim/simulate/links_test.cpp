// Collectives on communicators of their own that run at the same time: what each gets of the links
// they share, worked out by hand.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "sim/graph/event_graph.h"
#include "sim/simulate/simulate.h"

namespace foreshard::links_test {
namespace {

constexpr std::int32_t kAll = Contention::kOne;

// One row a collective, each on a stream and a communicator of its own, 1000 ns alone. Ends, ns.
std::vector<std::int64_t> ends(const std::vector<LinkUse>& uses) {
  constexpr Stream kStreamsOf[] = {Stream::kAllGather, Stream::kReduceScatter, Stream::kAllReduce};
  EventGraph graph;
  CostTable table;
  for (std::size_t i = 0; i < uses.size(); ++i) {
    Row row = {.kind = EventKind::kAllGather, .stream = kStreamsOf[i]};
    row.work = static_cast<decltype(row.work)>(i);
    row.communicator = static_cast<decltype(row.communicator)>(i);
    row.wakes = static_cast<StreamSet>((1U << kStreams) - 1);
    graph.rows.push_back(row);
    graph.works.emplace_back();
    graph.works.back().communicator = row.communicator;
    graph.communicators.emplace_back();
    Cost cost = {.duration = Time::ns(1000), .uses = uses[i]};
    table.works.push_back(cost);
  }
  std::vector<std::int64_t> list;
  const Timeline timeline = Simulator().simulate_once(graph, table);
  for (const Span& span : timeline.spans) list.push_back(span.end.nanoseconds());
  return list;
}

using Ends = std::vector<std::int64_t>;

TEST(Links, TwoThatTakeAllOfALinkHalveIt) { EXPECT_EQ(ends({{kAll, 0}, {kAll, 0}}), (Ends{2000, 2000})); }

TEST(Links, OthersLinksAreNotFelt) { EXPECT_EQ(ends({{kAll, 0}, {0, kAll}}), (Ends{1000, 1000})); }

TEST(Links, WhatFitsIsNotSlowed) { EXPECT_EQ(ends({{kAll / 4, kAll}, {kAll * 3 / 4, 0}}), (Ends{1000, 1000})); }

TEST(Links, WhoAsksForLittleGetsIt) {
  // A quarter is below a half: it is served. The other runs at 3/4 until then, 750 ns of its work; the last 250 alone.
  EXPECT_EQ(ends({{kAll / 4, kAll}, {kAll, 0}}), (Ends{1000, 1250}));
}

TEST(Links, AKernelThatSaysNothingOfLinksTakesNone) { EXPECT_EQ(ends({{kAll, 0}, Cost{}.uses}), (Ends{1000, 1000})); }

TEST(Links, ThreeShareWhatTheSmallestLeaves) {
  // 1/8 is served; 7/16 for each of the others, which is 448 of 1024: 437 of 1000 ns at 1000 ns,
  // then a half each: 1000 + 2 x 562.5.
  EXPECT_EQ(ends({{kAll / 8, 0}, {kAll, 0}, {kAll, 0}}), (Ends{1000, 2125, 2125}));
}

TEST(Links, TheNarrowerOfTwoSetsThePace) {
  // Both want 3/4 of the ports: a half each is 2/3 of their pace. The first alone uses links inside.
  EXPECT_EQ(ends({{kAll, kAll * 3 / 4}, {0, kAll * 3 / 4}}), (Ends{1502, 1502}));
}

}
}
