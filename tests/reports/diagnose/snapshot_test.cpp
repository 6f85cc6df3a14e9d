// Memory snapshots of PyTorch: read as data, compared with the forecast.
#include "reports/diagnose/snapshot.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "reports/validate/memory_snapshot.h"
#include "reports/validate/pickle_read.h"
#include "sim/base/error.h"
#include "sim/base/lookup.h"
#include "sim/simulate/forecast.h"
#include "tests/support/fixtures.h"

namespace foreshard::snapshot_test {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

struct Block {
  std::int64_t mib = 0;
  std::string state = "active_allocated";
};

// One segment with these blocks, and what was allocated (above zero) and freed before.
std::string snapshot_of(const std::vector<Block>& blocks, const std::vector<std::int64_t>& trace) {
  PickleWriter out;
  std::int64_t total = 0;
  for (const Block& block : blocks) total += block.mib * kMiB;
  out.begin_dict();
  out.key("segments");
  out.begin_list();
  out.begin_dict();
  out.entry("device", 0);
  out.entry("total_size", total);
  out.key("blocks");
  out.begin_list();
  for (const Block& block : blocks) {
    out.begin_dict();
    out.entry("size", block.mib * kMiB);
    out.entry("requested_size", block.mib * kMiB - 4);
    out.entry("state", block.state);
    out.key("frames");
    out.begin_list();
    for (const auto& [file, name] :
        {std::pair("/env/torch/nn/functional.py", "linear"), std::pair("/home/me/train.py", "keep_outputs")}) {
      out.begin_dict();
      out.entry("filename", file);
      out.entry("line", 42);
      out.entry("name", name);
      out.end_dict();
    }
    out.end_list();
    out.end_dict();
  }
  out.end_list();
  out.end_dict();
  out.end_list();
  out.key("device_traces");
  out.begin_list();
  out.begin_list();
  for (const std::int64_t mib : trace) {
    out.begin_dict();
    out.entry("action", mib > 0 ? "alloc" : "free_completed");
    out.entry("size", std::abs(mib) * kMiB);
    out.end_dict();
  }
  out.end_list();
  out.end_list();
  out.end_dict();
  return out.finish();
}

Forecast small_forecast() {
  return forecast(tiny_model(2), tiny_plan(), CostModel(round_cluster(8), round_calibration()));
}

bool says(const std::vector<std::string>& findings, const std::string& text) {
  return std::ranges::any_of(findings, [&](const std::string& finding) { return contains(finding, text); });
}

TEST(Snapshot, BlocksAndTraceAreAddedUp) {
  const SnapshotMemory memory =
      read_snapshot(snapshot_of({{100}, {50}, {30, "inactive"}}, {200, -200, 20}), "s.pickle");
  EXPECT_EQ(memory.allocated, Bytes(150 * kMiB));
  EXPECT_EQ(memory.reserved, Bytes(180 * kMiB));
  EXPECT_EQ(memory.peak, Bytes(330 * kMiB));  // 130 before the last 20, and 200 at once
  ASSERT_EQ(memory.live.size(), 2U);
  EXPECT_EQ(memory.live[0].each, Bytes(100 * kMiB - 4));
  EXPECT_EQ(memory.live[0].where, "train.py:42 keep_outputs");
}

TEST(Snapshot, TensorsThatTheForecastDoesNotHaveAreNamed) {
  const Forecast right = small_forecast();
  const std::vector<std::string> findings =
      snapshot_findings({read_snapshot(snapshot_of({{512}, {512}}, {}), "s.pickle")}, right);
  EXPECT_TRUE(says(findings, "the forecast has none of that size: 2 of"));
  EXPECT_TRUE(says(findings, "train.py:42 keep_outputs"));
}

// The forecast's own snapshot has nothing that the forecast does not have, and does not grow.
TEST(Snapshot, TheForecastsOwnHasNothingElse) {
  const Forecast right = small_forecast();
  const SnapshotMemory own =
      read_snapshot(memory_snapshot(right, right.plan.allocator, DeviceMemory::unlimited()), "own.pickle");
  EXPECT_GT(own.allocated, Bytes());
  EXPECT_EQ(own.peak, right.memory.peak);
  EXPECT_FALSE(grows({own}));
  EXPECT_FALSE(says(snapshot_findings({own}, right), "none of that size"));
}

TEST(Snapshot, GrowthIsOfTheLeastNotOfWhatComesAndGoes) {
  std::vector<std::int64_t> steady, leaking;
  for (int step = 0; step < 9; ++step) {
    for (const std::int64_t mib : {500, -500}) steady.push_back(mib);
    for (const std::int64_t mib : {500, 40, -500}) leaking.push_back(mib);
  }
  EXPECT_FALSE(grows({read_snapshot(snapshot_of({{400}}, steady), "s")}));
  const SnapshotMemory leak = read_snapshot(snapshot_of({{400}}, leaking), "s");
  EXPECT_TRUE(grows({leak}));
  EXPECT_GE(leak.growth, Bytes(160 * kMiB));
  // Two snapshots: what the later one has more of.
  const SnapshotMemory early = read_snapshot(snapshot_of({{64}}, {}), "s");
  const SnapshotMemory late = read_snapshot(snapshot_of({{64}, {64}, {64}}, {}), "s");
  EXPECT_TRUE(grows({early, late}));
  EXPECT_TRUE(says(snapshot_findings({early, late}, small_forecast()), "more than before: 2 of"));
  EXPECT_FALSE(grows({late, early}));
}

// What would run code, and what is cut off or refers to nothing, is refused; nothing is run.
TEST(PickleRead, RefusesWhatIsNoData) {
  for (const std::string& bad : {std::string("\x80\x02"
                                             "cos\nsystem\nX\x02\0\0\0lsq\0\x85R.",
                                     26),
           std::string("\x80\x04"), std::string(), std::string("\x80\x02j\x09\0\0\0.", 8), std::string("\x80\x02u.", 4),
           std::string("\x80\x02(K\x01u.", 6), std::string("\x80\x02."), std::string("(.")}) {
    EXPECT_THROW(read_pickle(bad, "bad.pickle"), Error) << bad.size();
  }
  EXPECT_THROW(read_snapshot(std::string("\x80\x02}."), "empty.pickle"), Error);
}

// Protocol 4, as PyTorch writes it: {"a": [1, -2, 300], "b": ("x", None, 0.5)}.
TEST(PickleRead, ReadsFramesAndTheMemo) {
  const std::string bytes(
      "\x80\x04\x95\x2b\0\0\0\0\0\0\0}\x94(\x8c\x01"
      "a\x94]\x94(K\x01J\xfe\xff\xff\xffM\x2c\x01"
      "e\x8c\x01"
      "b\x94\x8c\x01x\x94NG?\xe0\0\0\0\0\0\0\x87\x94u.",
      54);
  const PickleDocument document = read_pickle(bytes, "p");
  const PickleValue* a = document.root->find("a");
  const PickleValue* b = document.root->find("b");
  ASSERT_NE(a, nullptr);
  ASSERT_NE(b, nullptr);
  ASSERT_EQ(a->list().size(), 3U);
  EXPECT_EQ(a->list()[1]->integer(), -2);
  EXPECT_EQ(a->list()[2]->integer(), 300);
  ASSERT_EQ(b->list().size(), 3U);
  EXPECT_EQ(b->list()[0]->text(), "x");
  EXPECT_EQ(std::get<double>(b->list()[2]->is), 0.5);
  EXPECT_EQ(document.root->find("c"), nullptr);
}

}
}
