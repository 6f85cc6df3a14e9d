// What would narrow a forecast, and whether it does.
#include "planner/ask.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "planner/job.h"
#include "sim/base/quantile.h"
#include "tests/support/temporary_folder.h"

namespace foreshard {
namespace {

Questions asked(const std::vector<std::string>& set, const std::string& runtime = "fsdp2") {
  JobOptions options = {.model = "llama-3.1-8b", .cluster = "64xh100", .runtime = runtime};
  for (const std::string& each : set) options.assignments.push_back({each});
  return questions(load_job(options));
}

const NextFact* find(const Questions& questions, const std::string& name) {
  const auto found = std::ranges::find_if(questions.facts, [&](const NextFact& fact) { return fact.name == name; });
  return found == questions.facts.end() ? nullptr : &*found;
}

TEST(Ask, EveryFactNarrowsSomethingAndTheBestComesFirst) {
  const Questions q = asked({});
  ASSERT_GE(q.facts.size(), 4U);
  EXPECT_NEAR(q.half_width, q.levels.half_width(), 1e-12);
  for (std::size_t i = 0; i < q.facts.size(); ++i) {
    const NextFact& fact = q.facts[i];
    EXPECT_TRUE(fact.half_width < q.half_width || fact.memory_above < q.memory_above || fact.moves > 0) << fact.name;
    EXPECT_LE(fact.half_width, q.half_width + 1e-12) << fact.name;
    EXPECT_GE(fact.memory_above, Bytes()) << fact.name;
    EXPECT_FALSE(fact.command.empty());
    EXPECT_LE(fact.per_minute, q.facts[i > 0 ? i - 1 : 0].per_minute);
  }
}

// The promise is kept: with the stack said the interval is what was promised, to what the codes'
// own machines' parts differ by, and it is not asked again.
TEST(Ask, SayingTheTrainingCodeNarrowsAsPromised) {
  const Questions open = asked({});
  const NextFact* code = find(open, "training code");
  ASSERT_NE(code, nullptr);
  const Questions said = asked({"stack=hf_trainer"});
  EXPECT_NEAR(said.half_width, code->half_width, 0.01);
  EXPECT_EQ(said.memory_above, code->memory_above);
  EXPECT_EQ(find(said, "training code"), nullptr);
  EXPECT_LT(said.half_width, open.half_width);
}

// A draw of a step has the spread that the code's term promises for how much of it is products at
// the peak, and what does less of it is less sure.
TEST(Ask, WhatIsFarFromThePeakIsLessSure) {
  JobOptions options = {.model = "llama-3.1-8b", .cluster = "64xh100", .runtime = "fsdp2"};
  options.assignments.push_back({"stack=hf_trainer"});
  const Job job = load_job(options);
  const CostModel costs = cost_model(job);
  const double own = costs.calibration().knowledge->plan_log_sd;
  double before = 0;
  for (const double mfu : {0.7, 0.5, 0.4, 0.2, 0.01}) {
    const double code = code_half_width(job.resolved.plan, job.cluster, "hf_trainer", below_half_peak(mfu));
    EXPECT_NEAR(costs.plan_log_sd(mfu), std::hypot(own, code / kNinetyPercent), 1e-9) << mfu;
    EXPECT_GE(costs.plan_log_sd(mfu), before) << mfu;
    before = costs.plan_log_sd(mfu);
  }
  EXPECT_EQ(costs.plan_log_sd(0.7), costs.plan_log_sd(0.5));
  EXPECT_GT(costs.plan_log_sd(0.2), costs.plan_log_sd(0.4));
  EXPECT_EQ(below_half_peak(0), 0);  // no peak is known
}

// The catalogue's limit may not be theirs; with a cluster file that says it the question is settled.
TEST(Ask, ThePowerLimitIsAskedUntilItIsTold) {
  const Questions open = asked({});
  const NextFact* limit = find(open, "power limit");
  ASSERT_NE(limit, nullptr);
  EXPECT_EQ(limit, &open.facts.back());
  EXPECT_GT(limit->moves, 0.05);
  EXPECT_LT(limit->moves, 0.4);  // not all of a step is products
  const TemporaryFolder folder;
  const std::filesystem::path file =
      folder.write("cluster.yaml", "gpus: 64\nmachine: h100-sxm\ngpu: {power_limit: 500W}\n");
  JobOptions options = {.model = "llama-3.1-8b", .cluster = file.string(), .runtime = "fsdp2"};
  const Questions told = questions(load_job(options));
  EXPECT_EQ(find(told, "power limit"), nullptr);
  EXPECT_NEAR(told.step_s, open.step_s * (1 + limit->moves), 0.01 * open.step_s);
}

// What is recorded is described in full: kernels and the machine are left.
TEST(Ask, ACaptureLeavesTheMachineAndTheRun) {
  const Questions q = asked({});
  const NextFact* capture = find(q, "capture");
  ASSERT_NE(capture, nullptr);
  Levels left = q.levels;
  left.code = left.codes = 0;
  EXPECT_NEAR(capture->half_width, left.half_width(), 1e-12);
  EXPECT_EQ(capture->memory_above, Bytes());
  EXPECT_NE(capture->command.find("--world 64 --gpu h100"), std::string::npos) << capture->command;
}

// A code whose own steps inform the costs is no first look.
TEST(Ask, ACodeThatInformsTheCostsLeavesNothingOpen) {
  JobOptions options = {
      .model = "mpt-7b", .cluster = "64xa100", .runtime = "fsdp1", .assignments = {{"stack=composer_2023_05"}}};
  const Questions known = questions(load_job(options));
  EXPECT_EQ(known.levels.code, 0);
  options.assignments = {{"stack=fms_fsdp"}};
  EXPECT_GT(questions(load_job(options)).levels.code, 0);
}

// What runs is what was described.
TEST(Ask, TheEnginesOwnRuntimeHasNoCodeTerm) {
  const Questions q = asked({}, "native");
  EXPECT_EQ(q.levels.code, 0);
  EXPECT_EQ(q.levels.codes, 0);
  EXPECT_EQ(q.memory_above, Bytes());
  EXPECT_EQ(find(q, "one run"), nullptr);
}

TEST(Ask, OneRunHalvesTheInterval) {
  const Questions q = asked({});
  const NextFact* run = find(q, "one run");
  ASSERT_NE(run, nullptr);
  EXPECT_NEAR(run->half_width, q.half_width / 2, 1e-12);
}

}
}
