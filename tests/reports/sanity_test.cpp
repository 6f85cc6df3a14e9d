#include "reports/sanity.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "tests/reports/random_plans.h"
#include "tests/support/fixtures.h"

namespace foreshard {
namespace {

TEST(Sanity, HonestForecastsMakeSense) {
  RandomPlans plans(23);
  for (int i = 0; i < 150; ++i) {
    const Forecast made = plans.next_forecast();
    EXPECT_EQ(find_nonsense(summarize(made, round_costs(), 8), made), "") << to_yaml(made.plan);
  }
}

TEST(Sanity, FrozenPartsAreNotCountedAsWork) {
  Plan plan = tiny_plan();
  plan.mesh = {16, 1};
  plan.frozen.embedding = true;
  plan.frozen.blocks.ranges = {{0, 3, true}};
  const Forecast made = forecast(tiny_model(5), plan, round_costs());
  const Report report = summarize(made, round_costs(), 0);
  EXPECT_EQ(find_nonsense(report, made), "");
  double done = 0;
  for (const Row& row : made.graph.rows) done += made.graph.works[row.work].flops.count();
  EXPECT_LE(report.mfu.value, done / (report.seconds.value * 100e12) * (1 + 1e-9));
}

TEST(Sanity, ADoctoredReportIsFound) {
  const Plan plan = [] {
    Plan p = tiny_plan();
    p.mesh = {16, 1};
    return p;
  }();
  const Forecast made = forecast(tiny_model(2), plan, round_costs());
  const Report honest = summarize(made, round_costs(), 8);
  ASSERT_EQ(find_nonsense(honest, made), "");
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  struct Doctored {
    const char* says;
    std::function<void(Report&)> change;
  };
  const Doctored all[] = {
      {"step_time", [](Report& r) { r.seconds.value = kNan; }},
      {"step_time", [](Report& r) { r.seconds.high = INFINITY; }},
      {"step_time", [](Report& r) { r.seconds.low = 2 * r.seconds.value; }},
      {"a step of 0 s", [](Report& r) { r.seconds = {}; }},
      {"tokens_per_s", [](Report& r) { r.tokens_per_s_per_gpu.low = -1; }},
      {"MFU 179.0 %, above 100 %",
          [](Report& r) {
            r.mfu = {1.79, 1.79, 1.79};
          }},
      {"though its products take",
          [](Report& r) {
            r.seconds = {1e-9, 1e-9, 1e-9};
          }},
      {"less than", [](Report& r) { r.fit.allocated = Bytes(1); }},
      {"without memory", [](Report& r) { r.peak_allocated = {}; }},
      {"probability", [](Report& r) { r.fit_probability = 1.5; }},
  };
  for (const auto& [says, change] : all) {
    Report report = honest;
    change(report);
    EXPECT_NE(find_nonsense(report, made).find(says), std::string::npos) << says << ": " << find_nonsense(report, made);
  }
}

}
}
