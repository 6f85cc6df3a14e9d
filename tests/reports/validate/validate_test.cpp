#include "reports/validate/validate.h"

#include <nlohmann/json.hpp>

#include "reports/validate/measured.h"
#include "sim/base/error.h"
#include "tests/reports/hand_made.h"
#include "tests/reports/recorded.h"
#include "tests/support/fixtures.h"

namespace foreshard {
namespace {

constexpr double kNs = 1e-9;

// What is forecast, in ns, on two ranks; the compute rows cost 100 each.
//   compute     |0 -- 100|       |150 -- 250|
//   all_gather      |50 -- 150|
HandMade forecast_step() {
  HandMade step;
  step.graph.communicators = {{"shard", {2, 1}, false}};
  step.compute(EventKind::kForward, 0, 100);
  step.add(EventKind::kAllGather, Stream::kAllGather, {50, 50, 50, 150});
  step.compute(EventKind::kBackward, 150, 250, {1});
  step.timeline.spans[0].issue = Time();
  step.timeline.spans[2].issue = Time::ns(50);
  return step;
}

Forecast forecast_of(const HandMade& step) {
  Forecast made = {.model = tiny_model(1), .plan = tiny_plan()};
  made.plan.mesh = {2, 1};
  made.graph = step.graph;
  made.timeline = step.timeline;
  made.memory.at_start = Bytes(1000);
  made.memory.peak = Bytes(1500);
  return made;
}

Report report_of(const Forecast& made) {
  Report report = describe(made, round_cluster(2));
  report.seconds.value = made.timeline.period.seconds();
  return report;
}

RunRecord run_of(const HandMade& step, int steps = 8) {
  RunRecord run = steady_run(2, steps, step.graph, step.timeline);
  for (RankRecord& rank : run.ranks) {
    rank.arena = Bytes(1000);
    rank.activations_peak = Bytes(500);
  }
  return run;
}

Validation judge(const HandMade& forecast, const RunRecord& run) {
  const Forecast made = forecast_of(forecast);
  return validate(made, report_of(made), run, {});
}

const KindComparison& kind_of(const Validation& v, EventKind kind) {
  for (const KindComparison& k : v.by_kind) {
    if (k.kind == kind) return k;
  }
  throw std::runtime_error("no such kind");
}

TEST(Validate, ARunThatDoesWhatWasForecastPassesWithoutErrors) {
  const HandMade step = forecast_step();
  const Validation v = judge(step, run_of(step));
  EXPECT_TRUE(v.passed);
  EXPECT_NEAR(v.step_error, 0, 1e-12);
  EXPECT_NEAR(v.exposed_communication_error, 0, 1e-12);
  EXPECT_NEAR(v.memory_error, 0, 1e-12);
  EXPECT_NEAR(v.exposed.predicted, 50 * kNs, 1e-15);  // 100 .. 150
  EXPECT_NEAR(v.exposed.measured, 50 * kNs, 1e-15);
  EXPECT_EQ(v.worst.size(), 0U);
  EXPECT_EQ(v.notes.size(), 0U);
  EXPECT_EQ(v.steps, 5);
}

TEST(Validate, ComparesStepExposureKindsAndMemory) {
  // Measured: forward takes 120, the gather 50 .. 200, backward 200 .. 280.
  const HandMade step = forecast_step();
  HandMade ran = step;
  ran.timeline.spans[0].end = Time::ns(120);
  ran.timeline.spans[1].end = Time::ns(200);
  ran.timeline.spans[2].start = ran.timeline.spans[2].arrive = Time::ns(200);
  ran.timeline.spans[2].end = Time::ns(280);
  ran.timeline.period = Time::ns(280);
  RunRecord run = run_of(ran);
  run.ranks[1].activations_peak = Bytes(600);  // the larger rank counts
  const Validation v = judge(step, run);
  EXPECT_NEAR(v.step_error, 250.0 / 280 - 1, 1e-12);
  // 50 forecast (100 .. 150), 80 measured (120 .. 200), of a step of 280.
  EXPECT_NEAR(v.exposed_communication_error, (50.0 - 80.0) / 280, 1e-12);
  EXPECT_NEAR(v.memory_error, 1500.0 / 1600 - 1, 1e-12);
  EXPECT_FALSE(v.passed);
  const KindComparison& gather = kind_of(v, EventKind::kAllGather);
  EXPECT_EQ(gather.count, 1);
  EXPECT_NEAR(gather.seconds.predicted, 100 * kNs, 1e-15);
  EXPECT_NEAR(gather.seconds.measured, 150 * kNs, 1e-15);
  EXPECT_NEAR(kind_of(v, EventKind::kForward).seconds.measured, 120 * kNs, 1e-15);
  EXPECT_NEAR(kind_of(v, EventKind::kBackward).seconds.error(), 100.0 / 80 - 1, 1e-9);
  // Largest difference first: gather 50, then forward and backward 20 each.
  ASSERT_EQ(v.worst.size(), 3U);
  EXPECT_EQ(v.worst[0].event, 1);
  EXPECT_NEAR(v.worst[0].seconds.measured - v.worst[0].seconds.predicted, 50 * kNs, 1e-15);
  EXPECT_EQ(v.worst[1].event, 0);
}

TEST(Validate, WaitingForALatePeerIsNotCommunication) {
  // Rank 1 reaches the gather at 90, rank 0 at 50: rank 0 waits 40, and both move 90 .. 150.
  const HandMade step = forecast_step();
  RunRecord run = run_of(step);
  for (MeasuredStep& s : run.ranks[1].timelines) s.spans[1].start = Time::ns(90);
  const Validation v = judge(step, run);
  const KindComparison& gather = kind_of(v, EventKind::kAllGather);
  EXPECT_NEAR(gather.seconds.measured, 60 * kNs, 1e-15);
  EXPECT_NEAR(gather.waiting.measured, 20 * kNs, 1e-15);  // the median of 40 and 0
  EXPECT_NEAR(gather.waiting.predicted, 0, 1e-15);
}

TEST(Validate, WithoutASharedClockWaitingCountsOnBothSides) {
  // The forecast queues the gather from 50 to 80; from start to end it takes 100 on both sides.
  HandMade step = forecast_step();
  step.timeline.spans[1].arrive = Time::ns(80);
  RunRecord run = run_of(step);
  run.ranks[0].clocks_shared = run.ranks[1].clocks_shared = false;
  const Validation v = judge(step, run);
  EXPECT_NEAR(kind_of(v, EventKind::kAllGather).seconds.predicted, 100 * kNs, 1e-15);
  EXPECT_NEAR(kind_of(v, EventKind::kAllGather).seconds.measured, 100 * kNs, 1e-15);
  ASSERT_EQ(v.notes.size(), 1U);
  EXPECT_NE(v.notes[0].find("share no clock"), std::string::npos);
}

TEST(Validate, EachToleranceDecides) {
  const HandMade step = forecast_step();
  const Forecast made = forecast_of(step);
  const auto passes = [&](const RunRecord& run, const Tolerances& tolerances) {
    return validate(made, report_of(made), run, tolerances).passed;
  };
  RunRecord slow = run_of(step);
  for (RankRecord& rank : slow.ranks) {
    for (Time& duration : rank.step_durations) duration = Time::ns(300);
  }
  EXPECT_FALSE(passes(slow, {}));  // 250 / 300 - 1 = -16.7 %
  EXPECT_TRUE(passes(slow, {0.17, 0.05, 0.05}));
  RunRecord large = run_of(step);
  large.ranks[0].activations_peak = Bytes(540);
  EXPECT_FALSE(passes(large, {}));  // 500 / 540 - 1 = -7.4 %, though the peak is off by 2.6 % only
  EXPECT_TRUE(passes(large, {0.1, 0.05, 0.08}));
  HandMade exposed = step;
  exposed.timeline.spans[0].end = Time::ns(80);  // 70 exposed instead of 50, of 250
  EXPECT_FALSE(passes(run_of(exposed), {}));
  EXPECT_TRUE(passes(run_of(exposed), {0.1, 0.081, 0.05}));
}

TEST(Validate, JudgesProcessGrowthWhereItIsKnownAndLarge) {
  const HandMade step = forecast_step();
  Forecast made = forecast_of(step);
  const Bytes persistent(std::int64_t{64} << 20);
  made.memory.at_start = persistent;
  made.memory.peak = persistent + Bytes(500);
  RunRecord run = run_of(step);
  for (RankRecord& rank : run.ranks) rank.arena = persistent;
  const auto growth = [&](const RunRecord& of) { return validate(made, report_of(made), of, {}).memory.back(); };
  EXPECT_FALSE(growth(run).judged);
  EXPECT_NE(growth(run).note.find("several ranks"), std::string::npos);
  for (RankRecord& rank : run.ranks) {
    rank.rss_before_init = Bytes(1 << 20);
    rank.rss_after_init = rank.rss_before_init + persistent + persistent / 10;
  }
  EXPECT_TRUE(growth(run).judged);
  EXPECT_NEAR(growth(run).bytes.error(), 1 / 1.1 - 1, 1e-6);
  EXPECT_FALSE(validate(made, report_of(made), run, {}).passed);
  made.memory.at_start = Bytes(1000);
  EXPECT_FALSE(growth(run).judged);
  EXPECT_NE(growth(run).note.find("too small"), std::string::npos);
}

TEST(Validate, SaysWhatTheRunLacks) {
  const HandMade step = forecast_step();
  RunRecord run = run_of(step, 2);
  run.complete = false;
  const Validation v = judge(step, run);
  ASSERT_EQ(v.notes.size(), 2U);
  EXPECT_NE(v.notes[0].find("interrupted"), std::string::npos);
  EXPECT_NE(v.notes[1].find("only 2 steps"), std::string::npos);
}

TEST(Validate, RefusesARunOfAnotherStep) {
  const HandMade step = forecast_step();
  RunRecord run = run_of(step);
  run.fingerprint = "0000000000000000";
  EXPECT_THROW(judge(step, run), Error);
}

// Parts of an event, in ns.
EventParts parts(double host, double queue, double peers, double duration, double beside = 0) {
  return {host * kNs, queue * kNs, peers * kNs, duration * kNs, beside * kNs};
}

TEST(EventParts, CountFromWhenEverythingBeforeHasEnded) {
  // The first gather waits for its peer from 10 to 30 and ends at 80. The second starts at 40,
  // queues until 80, waits for its peer until 90, ends at 120 while compute runs from 100 to 150.
  // The compute row could start at 80 (it waits for the first gather); the host issued it at 95.
  HandMade step;
  step.gather(10, 30, 80);
  step.add(EventKind::kReduceScatter, Stream::kReduceScatter, {0, 40, 90, 120});
  step.compute(EventKind::kForward, 100, 150, {0});
  step.timeline.spans[2].issue = Time::ns(95);
  const auto p = event_parts(step.graph, step.timeline, HostKind::kFeedsDevice);
  EXPECT_NEAR(p[0].host, 10 * kNs, 1e-15);
  EXPECT_NEAR(p[0].queue, 0, 1e-15);
  EXPECT_NEAR(p[0].peers, 20 * kNs, 1e-15);
  EXPECT_NEAR(p[0].duration, 50 * kNs, 1e-15);
  EXPECT_NEAR(p[1].host, 40 * kNs, 1e-15);
  EXPECT_NEAR(p[1].queue, 40 * kNs, 1e-15);
  EXPECT_NEAR(p[1].peers, 10 * kNs, 1e-15);
  EXPECT_NEAR(p[1].duration, 30 * kNs, 1e-15);
  EXPECT_NEAR(p[1].beside, 20 * kNs, 1e-15);
  EXPECT_NEAR(p[2].host, 20 * kNs, 1e-15);
  EXPECT_NEAR(p[2].duration, 50 * kNs, 1e-15);
  EXPECT_NEAR(p[2].beside, 20 * kNs, 1e-15);
}

TEST(EventParts, WhereTheHostComputesItsRowsAreBeforeEverythingItIssues) {
  // The gather is issued when compute has ended at 100: the host was 5 late, not 105.
  HandMade step;
  step.compute(EventKind::kForward, 0, 100);
  step.add(EventKind::kAllGather, Stream::kAllGather, {104, 105, 105, 150});
  EXPECT_NEAR(event_parts(step.graph, step.timeline, HostKind::kComputes)[1].host, 5 * kNs, 1e-15);
  EXPECT_NEAR(event_parts(step.graph, step.timeline, HostKind::kFeedsDevice)[1].host, 105 * kNs, 1e-15);
}

TEST(EventParts, MediansAreOfEachPart) {
  const auto medians = median_parts({{parts(1, 0, 9, 5)}, {parts(2, 0, 1, 7)}, {parts(9, 0, 2, 6)}});
  EXPECT_NEAR(medians[0].host, 2 * kNs, 1e-15);
  EXPECT_NEAR(medians[0].peers, 2 * kNs, 1e-15);
  EXPECT_NEAR(medians[0].duration, 6 * kNs, 1e-15);
}

TEST(CauseOfDifference, NamesTheLargestPart) {
  const auto cause = [](const EventParts& predicted, const EventParts& measured) {
    return cause_of_difference(predicted, measured, EventKind::kAllGather);
  };
  const EventParts base = parts(10, 0, 0, 100);
  EXPECT_EQ(cause(base, parts(10, 0, 3000, 120)), "waited for its peers 3.00 us, forecast 0 ns");
  EXPECT_EQ(cause(base, parts(10, 500, 20, 100)), "queued for its communicator 500 ns, forecast 0 ns");
  EXPECT_EQ(cause(base, parts(900, 0, 0, 100)), "host late by 900 ns, forecast 10 ns");
  EXPECT_EQ(cause(base, parts(10, 0, 0, 400)), "duration differs: 400 ns, forecast 100 ns");
  EXPECT_EQ(cause(base, parts(10, 0, 0, 400, 300)), "contention: beside compute for 300 ns, forecast 0 ns");
  EXPECT_EQ(cause_of_difference(base, parts(10, 0, 0, 400, 300), EventKind::kForward),
      "contention: beside communication for 300 ns, forecast 0 ns");
  // Faster than forecast: what shrank, not what grew.
  EXPECT_EQ(cause(parts(10, 0, 500, 100), parts(20, 0, 0, 100)), "waited for its peers 0 ns, forecast 500 ns");
}

TEST(ValidationView, TextAndJsonSayTheSame) {
  const HandMade step = forecast_step();
  RunRecord run = run_of(step);
  for (RankRecord& rank : run.ranks) {
    for (Time& duration : rank.step_durations) duration = Time::ns(500);
  }
  const Validation v = judge(step, run);
  const std::string text = validation_text(v, run, Color::kNever);
  for (const char* part : {"step time", "-50.0 %", "OUTSIDE", "exposed communication", "peak memory", "by kind",
           "all_gather", "not passed", "process growth at init"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
  const Json json = to_json(v);
  for (const char* key : {"step_error", "exposed_communication_error", "memory_error", "by_kind", "worst", "passed",
           "tolerances", "measured", "predicted"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  EXPECT_NEAR(json["step_error"].get<double>(), -0.5, 1e-12);
  EXPECT_EQ(json["passed"], false);
  EXPECT_EQ(json["by_kind"].size(), 3U);
  EXPECT_EQ(json["by_kind"][0]["kind"], "all_gather");
  EXPECT_NO_THROW(to_text(json));
}

TEST(ValidationView, TraceHasAProcessForEachSide) {
  const HandMade step = forecast_step();
  const Forecast made = forecast_of(step);
  const RunRecord run = run_of(step);
  const Forecast view = measured_view(made.model, made.plan, made.graph, run);
  const Json trace = Json::parse(chrome_trace(made, view));
  std::vector<std::string> processes;
  std::size_t slices[3] = {};
  for (const Json& e : trace["traceEvents"]) {
    if (e["name"] == "process_name") processes.push_back(e["args"]["name"]);
    if (e["ph"] == "X") ++slices[e["pid"].get<std::size_t>()];
  }
  ASSERT_EQ(processes.size(), 2U);
  EXPECT_TRUE(processes[0].starts_with("predicted: "));
  EXPECT_TRUE(processes[1].starts_with("measured: "));
  EXPECT_EQ(slices[1], 3U);
  EXPECT_EQ(slices[2], 3U);
}

TEST(Mismatch, NamesTheKeysThatChangeTheStep) {
  const Forecast made = forecast_of(forecast_step());
  const RunRecord run = run_of(forecast_step());
  Plan ran = made.plan;
  ran.mesh.shard = 4;
  ran.optimizer.learning_rate = 1;
  ran.seed = 9;
  const std::string keys = mismatch_sentence(made, ran, run, "0.1.0");
  EXPECT_NE(keys.find("mesh.shard (plan 2, run 4)"), std::string::npos) << keys;
  EXPECT_EQ(keys.find("learning_rate"), std::string::npos) << keys;
  EXPECT_NE(keys.find(made.graph.fingerprint()), std::string::npos) << keys;
  const auto says = [&](const Plan& plan, const char* version, const char* part) {
    const std::string text = mismatch_sentence(made, plan, run, version);
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  says(made.plan, "0.2.0", "the run is of foreshard 0.1.0, this is 0.2.0");
  says(made.plan, "0.1.0", "the model's file has changed");
  ran = made.plan;
  ran.model = "other";
  says(ran, "0.1.0", "they differ in model");
}

}
}
