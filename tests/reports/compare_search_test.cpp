#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "reports/view/views.h"
#include "tests/support/fixtures.h"

namespace foreshard {
namespace {

struct Told {
  Forecast forecast;
  Report report;
};

// With enough work per row for the host not to be the bottleneck.
Told tell(Plan plan) {
  plan.batch = {1024, 16, 1};
  Told told{forecast(tiny_model(2), plan, round_costs(8)), {}};
  told.report = summarize(told.forecast, round_costs(8), 0);
  return told;
}

Plan with_recompute() {
  Plan plan = tiny_plan();
  plan.recompute.value = Recompute::kFull;
  return plan;
}

TEST(Compare, NamesWhatDiffersAndByHowMuch) {
  const Told a = tell(tiny_plan()), b = tell(with_recompute());
  const Json json = compare_json(a.forecast, a.report, b.forecast, b.report);
  ASSERT_EQ(json["plan"].size(), 1U);
  EXPECT_EQ(json["plan"][0]["key"], "recompute");
  EXPECT_EQ(json["plan"][0]["a"], "none");
  EXPECT_EQ(json["plan"][0]["b"], "full");
  double difference = 0;
  for (const Json& bar : json["waterfall"]) difference += bar["difference_s"].get<double>();
  EXPECT_NEAR(difference, json["step"]["seconds"]["difference"], 1e-12);
  EXPECT_GT(difference, 0);
  const std::string text = compare_text(a.forecast, a.report, b.forecast, b.report, Color::kNever);
  EXPECT_NE(text.find("recompute"), std::string::npos);
}

TEST(Compare, SaysThatEqualPlansAreEqual) {
  const Told a = tell(tiny_plan());
  EXPECT_EQ(
      compare_text(a.forecast, a.report, a.forecast, a.report, Color::kNever).rfind("the plans are equal", 0), 0U);
}

SearchResult found() {
  SearchResult result = {.enumerated = 12, .rejected_memory = 2, .simulated = 10};
  Candidate best = {.plan = tiny_plan(),
      .seconds = 0.010,
      .tokens_per_s_per_gpu = 1000,
      .peak_allocated = Bytes(std::int64_t{4} << 30)};
  Candidate slower = best;
  slower.plan = with_recompute();
  slower.seconds = 0.012;
  slower.peak_allocated = Bytes(std::int64_t{3} << 30);
  slower.peak_reserved = slower.peak_allocated;
  slower.fit_probability = 0.71;
  best.fit_probability = 0.97;
  result.best = best;
  Candidate risky = best;
  risky.seconds = 0.009;
  risky.fit_probability = 0.62;
  result.riskier = risky;
  result.pareto = {best, slower};
  result.neighbours = {slower};
  result.heatmap = {{4, {1, 1}, std::nullopt}, {8, {1, 1}, 0.010}};
  return result;
}

TEST(SearchView, ShowsTheMapTheBestPlanAndWhyItWon) {
  const SearchResult result = found();
  const ModelSpec model = tiny_model(2);
  const Cluster cluster = round_cluster(8);
  const Plan base = tiny_plan();
  const SearchStory story{result, model, cluster, base, 0.5, 0.95, {{{"compile=blocks"}, *result.riskier}}};
  const std::string text = search_text(story, nullptr, nullptr, Color::kNever);
  for (const char* says : {"best plan: fits with 97 %", "riskier: 9.00 ms (-10.0 %), fits with 62 %",
           "with --set compile=blocks also: 9.00 ms (-10.0 %), fits with 62 %", "prefetch depth does not matter here",
           "12 plans: 2 do not fit, 10 simulated", "recompute full", "+2.00 ms", "+20.0 %", "-1.00 GiB  fits with 71 %",
           "10.0 ms", "██"}) {
    EXPECT_NE(text.find(says), std::string::npos) << says << "\n" << text;
  }
}

TEST(SearchView, JsonHasTheKeysThatScriptsCountOn) {
  const SearchResult result = found();
  const Told told = tell(tiny_plan());
  const ModelSpec model = tiny_model(2);
  const Cluster cluster = round_cluster(8);
  const Plan base = tiny_plan();
  SearchStory story{result, model, cluster, base, 0.5};
  story.riskier = told.report;
  const Json json = search_json(story, {told.report, told.report}, &told.report);
  EXPECT_EQ(json["confidence"], 0.95);
  EXPECT_EQ(json["riskier"]["report"]["schema"], "foreshard.report/1");
  EXPECT_TRUE(json["best"]["report"]["memory"].contains("fit_probability"));
  EXPECT_EQ(json["enumerated"], 12);
  EXPECT_EQ(json["rejected_memory"], 2);
  EXPECT_EQ(json["simulated"], 10);
  EXPECT_EQ(json["seconds"], 0.5);
  EXPECT_EQ(json["best"]["plan"]["mesh"]["shard"], 8);
  EXPECT_EQ(json["best"]["report"]["schema"], "foreshard.report/1");
  ASSERT_EQ(json["pareto"].size(), 2U);
  EXPECT_EQ(json["pareto"][1]["plan"]["recompute"], "full");
}

TEST(SearchView, SaysHowFarTheSmallestPlanIsFromFitting) {
  SearchResult result = {.enumerated = 1, .rejected_memory = 1, .smallest = found().best};
  result.smallest->peak_allocated = Bytes(std::int64_t{100} << 30);
  result.smallest->verdict = Verdict::kDoesNotFit;
  result.smallest->peak_reserved = result.smallest->peak_allocated;
  const ModelSpec model = tiny_model(2);
  const Cluster cluster = round_cluster(8);
  const Plan base = tiny_plan();
  const SearchStory story{result, model, cluster, base, 0.5};
  const std::string text = search_text(story, nullptr, nullptr, Color::kNever);
  EXPECT_NE(text.find("no plan fits"), std::string::npos) << text;
  EXPECT_NE(text.find("does not fit: 20.0 GiB more than there is"), std::string::npos) << text;
  EXPECT_TRUE(search_json(story, {}, nullptr)["best"].is_null());
}

}
}
