// Runs, orders and remedies on a machine that can be worked out by hand.
#include "reports/sizing/recommend.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "sim/base/error.h"
#include "sim/simulate/forecast.h"
#include "tests/support/fixtures.h"

namespace foreshard {
namespace {

constexpr double kDay = 86400;

// A step of 2 s with two draws, 16 GPUs, 8 sequences of 1000 tokens each.
SizedPlan sized_by_hand() {
  SizedPlan sized = {.cluster = round_cluster(16)};
  sized.cluster.gpu.power_limit = 500;
  sized.plan = tiny_plan();
  sized.plan.mesh = {16, 1};
  sized.plan.batch = {1000, 4, 2};
  sized.step = {2, 2, 2, Evidence::kMeasured};
  sized.draws = {2, 2};
  sized.forward_share = 0.25;
  sized.state = Bytes(16'000'000'000);
  return sized;
}

RunTerms quiet_terms() {
  RunTerms terms;
  terms.tokens = 128e6;  // 1000 steps of 16 x 8 x 1000 tokens
  terms.failures = {0, 0, "none"};
  return terms;
}

Price two_dollars() { return {2, 2, 2, Evidence::kDatasheet, "", ""}; }

TEST(TrainingRun, WithoutFailuresIsStepsTimesStep) {
  const RunForecast run = forecast_run(sized_by_hand(), two_dollars(), quiet_terms());
  EXPECT_EQ(run.steps, 1000);
  EXPECT_DOUBLE_EQ(run.days.value, 2000 / kDay);
  EXPECT_EQ(run.goodput.value, 1);
  const double gpu_hours = 16 * 2000 / 3600.0;
  EXPECT_NEAR(run.gpu_hours.value, gpu_hours, 1e-9);
  EXPECT_NEAR(run.dollars.value, 2 * gpu_hours, 1e-9);
  EXPECT_NEAR(run.dollars_per_million_tokens.value, 2 * gpu_hours / 128, 1e-12);
  // 500 W and what stands around it.
  EXPECT_NEAR(run.energy_kwh.value, gpu_hours * 0.5 * 1.44, 1e-9);
  EXPECT_EQ(run.probability, 1);
}

TEST(TrainingRun, FailuresCheckpointsAndEvaluationCost) {
  RunTerms terms = quiet_terms();
  // One failure in 3600 s for 16 GPUs; 16 GB from 16 GPUs at 1 GB/s each are saved in 1 s.
  terms.failures.per_gpu_day = kDay / 3600 / 16;
  terms.checkpoint_rate = BytesPerSecond(1e9);
  terms.restart = 59;
  terms.evaluate_every = 10;
  terms.evaluate_sequences = 128;  // as many as a step has
  const RunForecast run = forecast_run(sized_by_hand(), two_dollars(), terms);
  EXPECT_DOUBLE_EQ(run.interruptions.mean_between, 3600);
  EXPECT_DOUBLE_EQ(run.interruptions.save, 1);
  EXPECT_DOUBLE_EQ(run.interruptions.restart, 60);  // what was written is read
  EXPECT_DOUBLE_EQ(run.evaluation_share, 0.25 / 10);
  const double share = goodput(run.interruptions, checkpoint_interval(run.interruptions)) / 1.025;
  EXPECT_NEAR(run.goodput.value, share, 1e-12);
  EXPECT_NEAR(run.days.value, 2000 / share / kDay, 1e-12);
}

// Slow steps are those that do not fit; the budget lasts 1900 s at the listed price, and the price
// may be half or twice that: each is asked of the same draw.
TEST(TrainingRun, ProbabilityIsJoint) {
  SizedPlan sized = sized_by_hand();
  sized.draws = {1.8, 1.9, 2.1, 2.2};
  sized.fit_draws = {1, 1, 0, 0};
  RunTerms terms = quiet_terms();
  terms.deadline = 2000;
  const RunForecast timed = forecast_run(sized, two_dollars(), terms);
  EXPECT_DOUBLE_EQ(timed.probability_in_time, 0.5);
  EXPECT_DOUBLE_EQ(timed.probability, 0.5);  // not a quarter: the same two draws
  terms.budget = 16 * 2 * 1900.5 / 3600;
  const Price price{2, 1, 4, Evidence::kDatasheet, "", ""};
  const RunForecast both = forecast_run(sized, price, terms);
  // Nine equal slices of the price: the middle one and the four below it pay for 1800 s and 1900 s.
  EXPECT_NEAR(both.probability, 0.5 * 5 / 9, 1e-12);
  EXPECT_GT(both.probability_within_budget, both.probability);  // below the price, 2100 s are paid
  EXPECT_DOUBLE_EQ(forecast_run(sized, two_dollars(), terms).probability, 0.5);
}

TEST(TrainingRun, ProbabilityIsTheShareOfDrawsInTime) {
  SizedPlan sized = sized_by_hand();
  sized.draws = {1.8, 1.9, 2.1, 2.2};
  RunTerms terms = quiet_terms();
  terms.deadline = 2000;
  terms.budget = 1e9;
  const RunForecast run = forecast_run(sized, two_dollars(), terms);
  EXPECT_DOUBLE_EQ(run.probability, 0.5);
  EXPECT_DOUBLE_EQ(run.probability_within_budget, 1);
  EXPECT_TRUE(run.meets_deadline);
  terms.deadline = 1999;
  EXPECT_FALSE(forecast_run(sized, two_dollars(), terms).meets_deadline);
}

TEST(TrainingRun, SomeFailuresMakeADeadlineUnsureThatIsMetOnAverage) {
  RunTerms terms = quiet_terms();
  terms.failures = {0.5, 0.77, ""};
  terms.deadline = forecast_run(sized_by_hand(), two_dollars(), terms).days.value * kDay * 1.02;
  const RunForecast run = forecast_run(sized_by_hand(), two_dollars(), terms);
  EXPECT_TRUE(run.meets_deadline);
  EXPECT_GT(run.probability, 0.3);
  EXPECT_LT(run.probability, 0.999);
  EXPECT_LT(run.days.low, run.days.high);
}

// Jobs on round machines of any size; 1 USD for each.
JobVariants round_job(const CandidateCluster& candidate, std::int64_t most_sequences) {
  if (candidate.gpus > most_sequences) throw Error(ExitCode::kInfeasible, "more GPUs than sequences");
  Cluster cluster = round_cluster(candidate.gpus);
  cluster.spec = candidate.spec;
  SearchSpace space = {.base = tiny_plan()};
  space.base.batch = {512, 1, 1};
  space.base.mesh = {candidate.gpus, 1};
  space.global_batch = most_sequences / candidate.gpus * candidate.gpus;
  return {{{tiny_model(2), space, CostModel(cluster, round_calibration()), {1, 1, 1, Evidence::kDatasheet, "", ""}}}};
}

std::vector<CandidateCluster> round_candidates() {
  return {{"round", "8xround", 8}, {"round", "16xround", 16}, {"round", "32xround", 32}, {"round", "64xround", 64}};
}

RecommendOptions options_of(int threads) {
  return RecommendOptions{.threads = threads, .most_sequences = 32, .draws = 8};
}

TEST(Recommend, OrdersByDeadlineThenDollars) {
  RunTerms terms = quiet_terms();
  terms.tokens = 1e9;
  const Recommendation all = recommend(round_candidates(), round_job, terms, options_of(2));
  ASSERT_EQ(all.choices.size(), 3U);
  ASSERT_EQ(all.rejected.size(), 1U);
  EXPECT_EQ(all.rejected[0].reason, "more GPUs than sequences");
  for (std::size_t i = 1; i < 3; ++i) {
    EXPECT_LE(all.choices[i - 1].run.dollars.value, all.choices[i].run.dollars.value * (1 + kAlike));
    EXPECT_GE(all.choices[i].run.probability, terms.confidence);
  }
  ASSERT_EQ(all.machines.size(), 1U);
  EXPECT_TRUE(all.machines[0].smallest.has_value());

  // Between the fastest and the next: one choice is in time and comes first.
  std::vector<double> days;
  for (const Choice& c : all.choices) days.push_back(c.run.days.value);
  std::ranges::sort(days);
  terms.deadline = (days[0] + days[1]) / 2 * kDay;
  terms.confidence = 0.5;
  const Recommendation timed = recommend(round_candidates(), round_job, terms, options_of(1));
  EXPECT_TRUE(timed.meets_terms());
  EXPECT_TRUE(timed.choices[0].run.meets_deadline);
  EXPECT_EQ(timed.choices[0].run.days.value, days[0]);
  EXPECT_FALSE(timed.choices[1].run.meets_deadline);
  EXPECT_TRUE(timed.remedies.empty());
}

// No plan of the job as it is asked for holds on any size; with what is looked at otherwise one does.
TEST(Recommend, TheSmallestIsNotAboveAChoice) {
  const JobMaker make = [](const CandidateCluster& candidate, std::int64_t most_sequences) {
    JobVariants variants = round_job(candidate, most_sequences);
    variants.otherwise = [job = variants.list](std::optional<std::size_t>) { return job; };
    variants.list[0].space.base.batch.sequence = std::int64_t{1} << 32;
    return variants;
  };
  const Recommendation all = recommend(round_candidates(), make, quiet_terms(), options_of(1));
  ASSERT_FALSE(all.choices.empty());
  ASSERT_EQ(all.machines.size(), 1U);
  EXPECT_EQ(all.machines[0].smallest, 8);
}

TEST(Recommend, EachChoiceIsAForecast) {
  const Recommendation all = recommend(round_candidates(), round_job, quiet_terms(), options_of(1));
  for (const Choice& choice : all.choices) {
    const SizedJob job = round_job({"round", choice.sized.cluster.spec, choice.sized.cluster.gpus}, 32).front();
    const Forecast f = forecast(job.model, choice.sized.plan, job.costs);
    EXPECT_EQ(f.timeline.period.seconds(), choice.sized.step.value);
    EXPECT_EQ(f.memory.peak, choice.sized.fit.allocated);
  }
}

TEST(Recommend, IsTheSameForOneAndTwoThreads) {
  const auto text = [](int threads) {
    return to_json(recommend(round_candidates(), round_job, quiet_terms(), options_of(threads))).dump();
  };
  EXPECT_EQ(text(1), text(2));
}

TEST(Recommend, SaysWhatWouldMeetADeadline) {
  RunTerms terms = quiet_terms();
  const Recommendation all = recommend(round_candidates(), round_job, terms, options_of(1));
  double least = 1e9;
  for (const Choice& c : all.choices) least = std::min(least, c.run.days.value * kDay);
  terms.deadline = least * 0.9;
  const Recommendation late = recommend(round_candidates(), round_job, terms, options_of(1));
  EXPECT_FALSE(late.meets_terms());
  EXPECT_FALSE(late.choices.empty());  // the answer is still there
  using What = TermsRemedy::What;
  bool has_more_gpus = false;
  for (const TermsRemedy& remedy : late.remedies) {
    if (remedy.what == What::kDeadline) {
      EXPECT_GT(remedy.value, least);
      terms.deadline = remedy.value;
      EXPECT_TRUE(recommend(round_candidates(), round_job, terms, options_of(1)).meets_terms());
    } else if (remedy.what == What::kTokens) {
      EXPECT_LT(remedy.value, terms.tokens * 0.9);
      RunTerms fewer = late.terms;
      fewer.tokens = remedy.value;
      EXPECT_TRUE(recommend(round_candidates(), round_job, fewer, options_of(1)).meets_terms());
    } else if (remedy.what == What::kGpus) {
      has_more_gpus = true;
      EXPECT_GT(remedy.value, 32);
      EXPECT_GE(remedy.most_sequences, 64);  // more GPUs than the step has sequences
    }
  }
  EXPECT_TRUE(has_more_gpus);
}

TEST(Recommend, TheOnlyCandidatesErrorIsTheErrorOfAll) {
  EXPECT_THROW(recommend({{"round", "64xround", 64}}, round_job, quiet_terms(), options_of(1)), Error);
}

TEST(Sizes, AreAroundWhatTheDeadlineNeeds) {
  const Cluster cluster = round_cluster(8);  // 100 TFLOP/s
  RunTerms terms;
  EXPECT_EQ(likely_sizes(cluster, 0, terms, 64), (std::vector<std::int64_t>{8, 16, 32, 64}));
  EXPECT_EQ(likely_sizes(cluster, 0, terms, 3), (std::vector<std::int64_t>{2}));
  terms.deadline = 1000;
  // At 40 % of the peak 1000 GPUs do 4e19 FLOP in that time: from an eighth of it on.
  const std::vector<std::int64_t> sizes = likely_sizes(cluster, 4e19, terms, 1 << 20);
  ASSERT_EQ(sizes.size(), 8U);
  EXPECT_EQ(sizes.front(), 64);
  EXPECT_EQ(sizes.back(), 8192);
}

TEST(Sizes, KneeIsWhereDoublingStopsPaying) {
  EXPECT_EQ(knee_of({{8, 100}, {16, 190}, {32, 350}, {64, 400}}), 32);
  EXPECT_EQ(knee_of({{8, 100}, {32, 300}}), std::nullopt);  // 1.6^2 = 2.56 for two doublings
  EXPECT_EQ(knee_of({{8, 100}, {32, 250}}), 8);
  EXPECT_EQ(knee_of({{8, 100}}), std::nullopt);
}

TEST(WhatIf, FasterIsWorthSomething) {
  const RunTerms terms = quiet_terms();
  const Recommendation all = recommend({{"round", "32xround", 32}}, round_job, terms, options_of(1));
  const std::vector<WhatIf> list =
      what_ifs(all.choices[0], round_job({"round", "32xround", 32}, 32), terms, options_of(2));
  ASSERT_GE(list.size(), 5U);
  for (const WhatIf& one : list) {
    SCOPED_TRACE(one.property + one.change);
    const double ratio = all.choices[0].run.days.value / one.run.days.value;
    EXPECT_NEAR(one.worth_per_gpu_hour, ratio - 1, 1e-12);  // at 1 USD
    const bool is_better = one.change == "x2" && one.property != "network.oversubscription";
    if (is_better) {
      EXPECT_GE(one.worth_per_gpu_hour, 0);
    }
  }
  EXPECT_GT(list.front().worth_per_gpu_hour, 0);
}

}
}
