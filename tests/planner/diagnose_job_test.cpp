// Causes that were put into forecasts are found again, alone and in pairs.
#include "planner/diagnose_job.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>

#include "sim/base/error.h"

namespace foreshard {
namespace {

Job job_of(const std::string& model, const std::string& cluster, const std::string& set) {
  JobOptions options = {.model = model, .cluster = cluster};
  options.assignments.push_back({"stack=torchtitan_2025"});
  if (!set.empty()) options.assignments.push_back({set});
  return load_job(options);
}

// Between the severities that the diagnosis tries.
CauseCase beside(CauseCase one) {
  for (auto& [factor, times] : one.machine) times *= 1.06;
  one.waits *= 1.15;
  one.memory = 1 + (one.memory - 1) * 1.1;
  return one;
}

// Every figure of a trace, of the log and of memory_stats, off by 1 % of itself.
Signals measured(Signals signals, std::mt19937& random) {
  std::normal_distribution<double> noise(0, 0.01);
  for (std::optional<double> Signals::*field :
      {&Signals::step, &Signals::compute, &Signals::communication, &Signals::exposed, &Signals::waiting, &Signals::idle,
          &Signals::data, &Signals::memory, &Signals::reserved}) {
    *(signals.*field) *= std::exp(noise(random));
  }
  return signals;
}

bool is_seen(const Signals& is, const Signals& right) {
  return *is.step > 1.12 * *right.step || std::abs(std::log(*is.memory / *right.memory)) > 0.1;
}

struct Score {
  int first = 0, all = 0;
  std::map<std::string, int> missed;
  void add(const std::string& names, bool is_first) {
    ++all;
    first += is_first;
    if (!is_first) ++missed[names];
  }
  double share() const { return static_cast<double>(first) / all; }
};

std::string shown(const Score& score) {
  std::string text = std::to_string(score.first) + " of " + std::to_string(score.all) + "; missed";
  for (const auto& [name, count] : score.missed) text += " " + name + " x" + std::to_string(count);
  return text;
}

TEST(DiagnoseJobProperty, WhatWasPutInIsFoundFirst) {
  std::mt19937 random(20261123);
  Score alone, pairs;
  for (const Job& job : {job_of("llama-3.1-8b", "16xh100", ""), job_of("llama-2-7b", "8xa100", "batch.micro_batch=2"),
           job_of("gpt2-xl", "32xa100", "mesh.shard=8")}) {
    const SignalsOf signals_under(job);
    const std::vector<CauseForecast> forecasts = cause_forecasts(job);
    const Signals right = forecasts.front().signals;
    std::map<std::string, CauseCase> strong;  // of each cause, one that is well seen
    for (const CauseCase& one : cause_cases(job)) {
      const CauseCase put_in = beside(one);
      try {
        const Signals is = measured(signals_under({put_in}), random);
        if (!is_seen(is, right)) continue;
        const Diagnosis found = diagnose({is, ""}, forecasts, 0.06);
        EXPECT_TRUE(found.explained) << one.cause;
        alone.add(one.cause, found.causes.front().name == one.cause);
        if (!strong.contains(one.cause)) strong.emplace(one.cause, put_in);
      } catch (const Error&) {  // the plan cannot have it
        continue;
      }
    }
    for (const auto& [a, first] : strong) {
      for (const auto& [b, second] : strong) {
        if (a >= b) continue;
        try {
          const Signals is = measured(signals_under({first, second}), random);
          const std::string name = diagnose({is, ""}, forecasts, 0.06).causes.front().name;
          pairs.add(a + "+" + b + "=" + name, name == a || name == b);
        } catch (const Error&) {
          continue;
        }
      }
    }
  }
  RecordProperty("alone", shown(alone));
  RecordProperty("pairs", shown(pairs));
  EXPECT_GT(alone.all, 150);
  EXPECT_GT(pairs.all, 100);
  EXPECT_GE(alone.share(), 0.9) << shown(alone);
  EXPECT_GE(pairs.share(), 0.9) << shown(pairs);
}

TEST(DiagnoseJob, AStepAsForecastIsNothingWrong) {
  const Job job = job_of("llama-3.1-8b", "16xh100", "");
  const std::vector<CauseForecast> forecasts = cause_forecasts(job);
  const Diagnosis found = diagnose({forecasts.front().signals, ""}, forecasts, 0.06);
  EXPECT_TRUE(found.explained);
  EXPECT_GT(found.as_forecast, 0.5);
}

TEST(DiagnoseJob, WhatNoCauseMakesIsNotExplained) {
  const Job job = job_of("llama-3.1-8b", "16xh100", "");
  const std::vector<CauseForecast> forecasts = cause_forecasts(job);
  Signals strange = forecasts.front().signals;
  *strange.step /= 5;  // five times as fast as forecast
  strange.memory = *strange.memory / 6;
  strange.reserved.reset();
  const Diagnosis found = diagnose({strange, ""}, forecasts, 0.06);
  EXPECT_FALSE(found.explained);
}

TEST(DiagnoseJob, ARateOfOneGpuIsNotThatOfAll) {
  const Plan plan = job_of("llama-3.1-8b", "16xh100", "").resolved.plan;
  Diagnosis diagnosis;
  diagnosis.step_ratio = 20;  // 1.25 times, had it been of one of the 16
  ASSERT_EQ(rate_findings(diagnosis, plan).size(), 1U);
  EXPECT_NE(rate_findings(diagnosis, plan)[0].find("1.25 times"), std::string::npos);
  diagnosis.step_ratio = 0.05;
  EXPECT_NE(rate_findings(diagnosis, plan)[0].find("0.80 times"), std::string::npos);
  diagnosis.step_ratio = 2;
  EXPECT_TRUE(rate_findings(diagnosis, plan).empty());
  diagnosis.step_ratio = 20;
  diagnosis.explained = true;
  EXPECT_TRUE(rate_findings(diagnosis, plan).empty());
}

TEST(DiagnoseJob, MeasuredFiguresNeedTheirUnits) {
  const Plan plan = job_of("llama-3.1-8b", "16xh100", "").resolved.plan;
  const Signals signals = read_measured({"tokens/s/gpu=4096", "memory=61GiB"}, plan);
  EXPECT_NEAR(*signals.step, 2, 1e-9);  // 8192 tokens
  EXPECT_NEAR(*signals.memory, 61.0 * 1024 * 1024 * 1024, 1);
  EXPECT_NEAR(*read_measured({"tokens/s=65536"}, plan).step, 2, 1e-9);
  EXPECT_NEAR(*read_measured({"slower=12%"}, plan, Time::seconds(2)).step, 2.24, 1e-9);
  for (const char* wrong :
      {"step=2", "memory=61", "tokens/s=fast", "tokens/s=3000s", "speed=3", "step", "tokens/s=-1"}) {
    EXPECT_THROW(read_measured({wrong}, plan), Error) << wrong;
  }
}

}
}
