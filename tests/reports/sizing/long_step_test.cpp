// A step of many micro-batches, told by steps of few, against the same step laid out whole.
#include "reports/sizing/long_step.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <cmath>

#include "sim/simulate/folded.h"
#include "sim/simulate/forecast.h"
#include "sim/spec/checks/plan_check.h"
#include "tests/support/fixtures.h"

namespace foreshard {
namespace {

bool is_near(double a, double b, double tolerance) {
  return std::abs(a - b) <= tolerance * std::max(std::abs(a), std::abs(b)) + 1e-12;
}

bool is_near(const Quantity& a, const Quantity& b, double tolerance) {
  return is_near(a.value, b.value, tolerance) && is_near(a.low, b.low, tolerance) &&
         is_near(a.high, b.high, tolerance) && a.evidence == b.evidence;
}

RC_GTEST_PROP(LongStep, IsTheWholeStep, ()) {
  const ModelSpec model = tiny_model(*rc::gen::inRange(1, 5));
  const CostModel costs(round_cluster(8), round_calibration());
  Plan plan = tiny_plan();
  plan.runtime.kind =
      *rc::gen::element(RuntimeKind::kFsdp2, RuntimeKind::kDdp, RuntimeKind::kZero2, RuntimeKind::kNative);
  if (plan.runtime.kind == RuntimeKind::kDdp) plan.mesh = {1, 8};
  plan.batch = {*rc::gen::element<std::int64_t>(128, 1024), *rc::gen::inRange<std::int64_t>(1, 3),
      *rc::gen::inRange<std::int64_t>(kMostLaidOut + 1, 150)};
  plan.host_sync = *rc::gen::element(HostSync::kNone, HostSync::kStep);
  RC_PRE(!find_problem(plan, model, costs.cluster()));
  const auto report = [&](std::int64_t micro_batches) {
    Plan some = plan;
    some.batch.accumulation = micro_batches;
    return summarize(forecast(model, some, costs), costs, 8);
  };
  const Report fewer = report(kFewer);
  const Report told = long_step_report({report(kLaidOut), fewer}, model, plan, costs);
  Plan laid_out = plan;
  laid_out.batch.accumulation = kLaidOut;
  const ShortSteps steps = summarize_short(forecast(model, laid_out, costs), costs, 8, {});
  RC_ASSERT(steps.laid_out.seconds.high == report(kLaidOut).seconds.high);
  RC_TAG(steps.fewer.has_value());
  for (Quantity Report::*of : {&Report::seconds, &Report::communication, &Report::exposed_communication}) {
    if (steps.fewer) RC_ASSERT(is_near(*steps.fewer.*of, fewer.*of, 0));
  }
  const Report whole = report(plan.batch.accumulation);
  RC_ASSERT(told.seconds.value == whole.seconds.value);  // to the nanosecond
  // The micro-batches in which a step settles are among few; buckets beside a backward settle later in some draws.
  const double rounding = plan.runtime.kind == RuntimeKind::kDdp ? 5e-3 : 1e-3;
  for (Quantity Report::*of : {&Report::seconds, &Report::communication, &Report::tokens_per_s_per_gpu, &Report::mfu,
           &Report::hfu, &Report::peak_allocated, &Report::peak_reserved}) {
    RC_ASSERT(is_near(told.*of, whole.*of, rounding));
  }
  RC_ASSERT(
      std::abs(told.exposed_communication.value - whole.exposed_communication.value) <= rounding * whole.seconds.value);
  RC_ASSERT(is_near(told.first_step_seconds, whole.first_step_seconds, rounding));
  RC_ASSERT(told.fit.reserved == whole.fit.reserved);
  RC_ASSERT(told.plan.batch.accumulation == whole.plan.batch.accumulation);
  RC_ASSERT(told.fingerprint != report(kLaidOut).fingerprint);
}

// 80 micro-batches through 4 stages, told by 12 and 8: each more adds what it takes, idle or not.
TEST(LongStep, OfAPipelineIsTheWholeStep) {
  const ModelSpec model = tiny_model(6);
  const CostModel costs(round_cluster(8), round_calibration());
  Plan plan = tiny_plan();
  plan.mesh = {2, 1};
  plan.mesh.pp = 4;
  plan.units.embedding = UnitPlacement::kOwn;
  plan.reshard_after_forward.value = {Reshard::Kind::kNever, 0};
  plan.batch.accumulation = 80;
  const LaidOut few = laid_out_of(plan);
  const auto report = [&](std::int64_t micro_batches) {
    return summarize(forecast(model, shortened(plan, micro_batches), costs), costs, 8);
  };
  const Report whole = report(80);
  const Report told = long_step_report({report(few.count), report(few.fewer)}, model, plan, costs);
  EXPECT_NEAR(told.seconds.value, whole.seconds.value, 1e-3 * whole.seconds.value);
  EXPECT_EQ(told.peak_allocated.value, whole.peak_allocated.value);
  ASSERT_EQ(told.pipeline.size(), 4U);
  for (std::size_t r = 0; r < 4; ++r) {
    EXPECT_NEAR(told.pipeline[r].idle, whole.pipeline[r].idle, 1e-3);
    EXPECT_GT(told.pipeline[r].idle, 0.0);
  }
}

}
}
