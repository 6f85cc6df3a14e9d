#include <gtest/gtest.h>

#include "reports/view/findings.h"
#include "sim/base/lookup.h"
#include "sim/simulate/forecast.h"
#include "tests/support/fixtures.h"

namespace foreshard {
namespace {

Forecast forecast_with(double per_call) {
  Calibration c = round_calibration();
  c.host.calls.fill(per_call);
  return forecast(tiny_model(4), tiny_plan(), CostModel(round_cluster(8), c));
}

TEST(HostFindings, AHostThatIsFastHoldsNothingUp) {
  const Forecast f = forecast_with(1e-9);
  const HostFindings host = host_findings(f);
  EXPECT_FALSE(host.binds(f.timeline.period));
  EXPECT_TRUE(host.remedies.empty());
}

TEST(HostFindings, AHostThatIsSlowTakesTheStep) {
  const Forecast f = forecast_with(1e-3);
  const HostFindings host = host_findings(f);
  EXPECT_TRUE(host.binds(f.timeline.period));
  EXPECT_FALSE(host.remedies.empty());
  EXPECT_GE(f.timeline.period, host.all());
  EXPECT_LE(host.held_up, f.timeline.period);
  EXPECT_GT(host.held_up.seconds(), 0.5 * f.timeline.period.seconds());
}

TEST(HostFindings, WhatHelpsIsWhatThePlanDoesNotDoYet) {
  const auto says = [](const HostFindings& host, std::string_view word) {
    for (const std::string& remedy : host.remedies) {
      if (contains(remedy, word)) return true;
    }
    return false;
  };
  Calibration c = round_calibration();
  c.host.calls.fill(1e-3);
  const CostModel costs(round_cluster(8), c);
  Plan plan = tiny_plan();
  plan.optimizer.implementation = Optimizer::Implementation::kForeach;
  plan.batch.accumulation = 2;
  const HostFindings eager = host_findings(forecast(tiny_model(4), plan, costs));
  EXPECT_TRUE(says(eager, "fused optimizer"));
  EXPECT_TRUE(says(eager, "less accumulation"));
  EXPECT_FALSE(says(eager, "recomputation"));
  plan.optimizer.implementation = Optimizer::Implementation::kFused;
  plan.recompute = {Recompute::kFull, {}};
  const HostFindings other = host_findings(forecast(tiny_model(4), plan, costs));
  EXPECT_FALSE(says(other, "fused optimizer"));
  EXPECT_TRUE(says(other, "recomputation"));
  EXPECT_TRUE(says(other, "compile: blocks"));
  plan.runtime = {RuntimeKind::kMegatron, "0.20"};
  const HostFindings megatron = host_findings(forecast(tiny_model(4), plan, costs));
  EXPECT_FALSE(says(megatron, "compile: blocks"));
  EXPECT_TRUE(says(megatron, "megatron.cuda_graphs"));
  plan.megatron.cuda_graphs = MegatronOptions::CudaGraphs::kModules;
  EXPECT_FALSE(says(host_findings(forecast(tiny_model(4), plan, costs)), "megatron.cuda_graphs"));
}

}
}
