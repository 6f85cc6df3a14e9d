#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "reports/view/views.h"
#include "tests/reports/random_plans.h"

namespace foreshard {
namespace {

std::int64_t nanoseconds(const Json& microseconds) { return std::llround(microseconds.get<double>() * 1e3); }

struct Slice {
  std::int64_t begin, end;
};

std::map<int, std::vector<Slice>> slices_by_thread(const Json& events) {
  std::map<int, std::vector<Slice>> slices;
  for (const Json& e : events) {
    if (e["ph"] != "X") continue;
    const std::int64_t begin = nanoseconds(e["ts"]);
    slices[e["tid"]].push_back({begin, begin + nanoseconds(e["dur"])});
  }
  return slices;
}

TEST(ChromeTrace, NeverPutsTwoSlicesOfOneThreadAtTheSameTime) {
  RandomPlans plans(5);
  for (int i = 0; i < 30; ++i) {
    const Json trace = Json::parse(chrome_trace(plans.next_forecast()));
    for (auto& [tid, slices] : slices_by_thread(trace["traceEvents"])) {
      std::ranges::sort(
          slices, [](const Slice& a, const Slice& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
      EXPECT_GE(slices.front().begin, 0);
      for (std::size_t s = 0; s + 1 < slices.size(); ++s) {
        ASSERT_LE(slices[s].end, slices[s + 1].begin) << "thread " << tid;
      }
    }
  }
}

TEST(ChromeTrace, NamesEveryThreadItUsesAndPairsItsFlows) {
  RandomPlans plans(6);
  const Forecast f = plans.next_forecast();
  const Json trace = Json::parse(chrome_trace(f));
  std::set<int> named, used;
  std::map<int, int> starts, finishes;
  std::size_t counters = 0;
  for (const Json& e : trace["traceEvents"]) {
    if (e["name"] == "thread_name") named.insert(e["tid"].get<int>());
    if (e["ph"] == "X") used.insert(e["tid"].get<int>());
    if (e["ph"] == "s") ++starts[e["id"]];
    if (e["ph"] == "f") ++finishes[e["id"]];
    counters += e["ph"] == "C" && e["name"] == "memory_bytes";
  }
  EXPECT_TRUE(std::includes(named.begin(), named.end(), used.begin(), used.end()));
  EXPECT_EQ(starts, finishes);
  EXPECT_EQ(starts.size(), f.graph.waits.size());
  EXPECT_GT(counters, 0U);
}

}
}
