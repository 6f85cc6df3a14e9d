#include "reports/validate/measured.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "reports/view/views.h"
#include "sim/base/error.h"
#include "tests/reports/hand_made.h"
#include "tests/reports/recorded.h"
#include "tests/support/fixtures.h"

namespace foreshard {
namespace {

Time arrive_of(const RunRecord& record, std::size_t rank, std::size_t event) {
  return record.ranks[rank].timelines[0].spans[event].arrive;
}

TEST(Arrivals, AreTheLatestStartOfTheGroup) {
  // Two shard groups {0, 1} and {2, 3}; every rank's step begins at another moment of the clock.
  //            begin  start  on the clock
  //   rank 0    1000     10          1010
  //   rank 1    1005     30          1035   the later one: arrive 35 for rank 0, 30 for rank 1
  //   rank 2    1000     50          1050   the later one: arrive 50 and 60
  //   rank 3     990     20          1010
  HandMade step;
  step.graph.communicators = {{"shard", {2, 1}, false}};
  step.gather(0, 0, 100);
  step.compute(EventKind::kForward, 100, 200, {0});
  RunRecord run = steady_run(4, 1, step.graph, step.timeline);
  const std::int64_t begin[] = {1000, 1005, 1000, 990};
  const std::int64_t start[] = {10, 30, 50, 20};
  for (std::size_t r = 0; r < 4; ++r) {
    run.ranks[r].timelines[0].begin = Time::ns(begin[r]);
    run.ranks[r].timelines[0].spans[0].start = Time::ns(start[r]);
  }
  const RunRecord joined = derive_arrivals(step.graph, run);
  EXPECT_EQ(arrive_of(joined, 0, 0), Time::ns(35));
  EXPECT_EQ(arrive_of(joined, 1, 0), Time::ns(30));
  EXPECT_EQ(arrive_of(joined, 2, 0), Time::ns(50));
  EXPECT_EQ(arrive_of(joined, 3, 0), Time::ns(60));
  // A row that is no collective arrives where it starts.
  EXPECT_EQ(arrive_of(joined, 3, 1), Time::ns(100));

  // Replicate groups {0, 2} and {1, 3}: 1010 against 1050, 1035 against 1010.
  step.graph.communicators = {{"replicate", {2, 2}, false}};
  const RunRecord replicas = derive_arrivals(step.graph, run);
  EXPECT_EQ(arrive_of(replicas, 0, 0), Time::ns(50));
  EXPECT_EQ(arrive_of(replicas, 1, 0), Time::ns(30));
  EXPECT_EQ(arrive_of(replicas, 2, 0), Time::ns(50));
  EXPECT_EQ(arrive_of(replicas, 3, 0), Time::ns(45));

  // One clock of the group is another machine's: start.
  step.graph.communicators = {{"shard", {2, 1}, false}};
  run.ranks[1].clocks_shared = false;
  const RunRecord apart = derive_arrivals(step.graph, run);
  EXPECT_EQ(arrive_of(apart, 0, 0), Time::ns(10));
  EXPECT_EQ(arrive_of(apart, 2, 0), Time::ns(50));
  EXPECT_FALSE(clocks_shared(apart));
}

TEST(Arrivals, WaitForTheCommunicatorAndEndBeforeTheEnd) {
  // The second gather starts at 20; its communicator moves the first until 60.
  HandMade step;
  step.graph.communicators = {{"shard", {1, 1}, false}};
  step.gather(0, 0, 60);
  step.gather(20, 20, 80);
  step.compute(EventKind::kForward, 80, 100);
  RunRecord run = steady_run(1, 1, step.graph, step.timeline);
  EXPECT_EQ(arrive_of(derive_arrivals(step.graph, run), 0, 1), Time::ns(60));
  // A clock that is off by a little does not make an event end before it moves.
  run.ranks[0].timelines[0].spans[1].end = Time::ns(55);
  EXPECT_EQ(arrive_of(derive_arrivals(step.graph, run), 0, 1), Time::ns(55));
}

TEST(MedianStep, IsARealStepNearestTheMedianOfTheSteadyOnes) {
  HandMade step;
  step.compute(EventKind::kForward, 0, 100);
  RunRecord run = steady_run(1, 7, step.graph, step.timeline);
  const std::int64_t durations[] = {900, 900, 900, 100, 400, 130, 120};
  for (std::size_t s = 0; s < 7; ++s) run.ranks[0].timelines[s].duration = Time::ns(durations[s]);
  // Steps 4 to 7: 100, 400, 130, 120; their median is 125, and 130 comes first of the nearest.
  EXPECT_EQ(steady_steps(run, run.ranks[0]).size(), 4U);
  EXPECT_EQ(median_step(run, run.ranks[0]).step, 6);
  const Timeline timeline = timeline_of(run.ranks[0], median_step(run, run.ranks[0]));
  EXPECT_EQ(timeline.period, Time::ns(130));
  EXPECT_EQ(timeline.steady_step, 6);
}

TEST(MeasuredReport, HasMediansQuartilesAndTheRun) {
  const Plan plan = tiny_plan();
  const ModelSpec model = tiny_model(2);
  const Cluster cluster = round_cluster(8);
  const Forecast made = forecast(model, plan, CostModel(cluster, round_calibration()));
  RunRecord run = steady_run(8, 7, made.graph, made.timeline);
  const double factors[] = {9, 9, 9, 1.0, 1.1, 1.2, 1.3};
  for (RankRecord& rank : run.ranks) {
    rank.arena = Bytes(1000);
    rank.activations_peak = Bytes(500 + rank.rank);
    rank.peak_rss = Bytes(5000);
    for (std::size_t s = 0; s < 7; ++s) {
      rank.step_durations[s] = Time::seconds(made.timeline.period.seconds() * factors[s]);
      rank.timelines[s].duration = rank.step_durations[s];
    }
  }
  const Forecast view = measured_view(model, plan, made.graph, run);
  const Report r = summarize_run(view, cluster, run);
  const double step = made.timeline.period.seconds();
  EXPECT_EQ(r.origin, "measured");
  EXPECT_EQ(r.fingerprint, made.graph.fingerprint());
  // 1.0, 1.1, 1.2, 1.3: quartiles 1.075, 1.15, 1.225.
  EXPECT_NEAR(r.seconds.value, 1.15 * step, 1e-8);
  EXPECT_NEAR(r.seconds.low, 1.075 * step, 1e-8);
  EXPECT_NEAR(r.seconds.high, 1.225 * step, 1e-8);
  EXPECT_EQ(r.seconds.evidence, Evidence::kMeasured);
  EXPECT_DOUBLE_EQ(r.tokens_per_s_per_gpu.value, 2 * 128 / r.seconds.value);
  // What the forecast says of the same spans.
  EXPECT_NEAR(r.exposed_communication.value, measure_step(made.graph, made.timeline).exposed_communication, 1e-9);
  EXPECT_EQ(r.peak_allocated.value, 1507);
  EXPECT_EQ(r.peak_allocated.low, 1500);
  EXPECT_EQ(r.peak_reserved.value, 5000);
  ASSERT_TRUE(r.run.has_value());
  EXPECT_EQ(r.run->losses.size(), 7U);
  EXPECT_NEAR(r.run->tokens_per_s, 1000 / (1.15 * step), 1e-3 / step);

  Json json = to_json(r);
  EXPECT_EQ(json["origin"], "measured");
  EXPECT_EQ(json["step"]["seconds"]["evidence"], "measured");
  EXPECT_EQ(json["run"]["parameter_hash"], "0123456789abcdef");
  EXPECT_EQ(json["run"]["losses"].size(), 7U);
  EXPECT_TRUE(json["memory"]["peak_event"].is_null());

  const std::string text = to_text(r, view, Color::kNever);
  for (const char* part : {"step time", "quartiles", "measured", "peak resident memory",
           "loss 5.0000 -> 0.7143 in 7 steps", "0123456789abcdef"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
}

TEST(MeasuredReport, WritesADivergedLossAsNull) {
  Report report = {.plan = tiny_plan(),
      .cluster = round_cluster(8),
      .run = RunFigures{{1.5, std::numeric_limits<double>::quiet_NaN()}, "ab", 3}};
  const Json losses = to_json(report)["run"]["losses"];
  EXPECT_EQ(losses[0], 1.5);
  EXPECT_TRUE(losses[1].is_null());
}

TEST(CheckRecord, RefusesWhatDoesNotFitTheGraph) {
  HandMade step;
  step.compute(EventKind::kForward, 0, 100);
  const RunRecord good = steady_run(2, 4, step.graph, step.timeline);
  const auto said = [&](const RunRecord& run) -> std::string {
    try {
      check_record(step.graph, run);
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::kInvalidInput);
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(said(good), "");
  RunRecord run = good;
  run.ranks.pop_back();
  EXPECT_EQ(said(run), "the run has records of 1 of its 2 ranks");
  run = good;
  run.ranks[1].timelines.clear();
  EXPECT_EQ(said(run), "the run ended before rank 1 had finished a recorded step");
  run = good;
  run.ranks[1].timelines[2].spans.pop_back();
  EXPECT_EQ(said(run), "step 3 of rank 1 has 0 events, the plan's step has 1");
  run = good;
  run.ranks[0].timelines[0].duration = Time();
  EXPECT_EQ(said(run), "step 1 of rank 0 took no time");
}

}
}
