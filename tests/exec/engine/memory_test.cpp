// What the engine's tensors hold at the most, against the forecast made from the same graph, and
// the arena, which must be the forecast's to the byte.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "sim/graph/training_step.h"
#include "sim/memory/memory_profile.h"
#include "sim/spec/checks/plan_check.h"
#include "tests/exec/engine/engine_runs.h"

namespace foreshard::memory_test {
namespace {

struct Case {
  std::string name;
  Plan plan;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const std::int64_t ranks : {1, 2}) {
    for (const bool bf16 : {false, true}) {
      Plan plan = small_plan(ranks);
      plan.batch = {64, 10, 2};
      if (bf16) plan.param_dtype = DType::kBf16;
      const std::string name = std::to_string(ranks) + (bf16 ? " ranks, bf16, " : " ranks, fp32, ");
      all.push_back({name + "recompute none", plan});
      plan.recompute.value = Recompute::kFull;
      all.push_back({name + "recompute full", plan});
      plan.recompute.value = Recompute::kSelective;
      all.push_back({name + "recompute selective", plan});
      plan.recompute = recompute_every(2, 3);
      plan.units.head = UnitPlacement::kWithNorm;
      plan.accumulation = AccumulationMode::kKeepUnsharded;
      all.push_back({name + "recompute every 2, keep_unsharded", plan});
    }
  }
  return all;
}

class EngineMemory : public testing::TestWithParam<const char*> {};

void expect_held_as_forecast(const ModelSpec& model, const Plan& plan) {
  const EventGraph graph = build_training_step(model, plan);
  const MemoryProfile forecast = replay_allocations(graph);
  const EngineRun run = run_in_threads(model, plan, 1, false);
  EXPECT_EQ(run.arena, forecast.at_start.count());
  const auto predicted = static_cast<double>((forecast.peak - forecast.at_start).count());
  const double error = static_cast<double>(run.activations_peak) / predicted - 1;
  EXPECT_LE(std::abs(error), 0.01) << run.activations_peak << " bytes, forecast " << predicted;
  EXPECT_EQ(run.tensors_held, 0);
}

// 2 x 640 tokens; the loss works on 4 MiB of fp32 rows, the activations are two to four times that.
TEST_P(EngineMemory, IsTheForecast) {
  for (const bool tied : {false, true}) {
    const ModelSpec model = small_model(GetParam(), tied);
    for (const Case& c : cases()) {
      if (tied && c.plan.mesh.shard == 1) continue;
      SCOPED_TRACE(c.name + (tied ? ", tied" : ""));
      expect_held_as_forecast(model, fitted(c.plan, model));
    }
  }
}

// The model is one unit and its micro-batches are small, so that the sum that a reduce-scatter left
// for an accumulation is at the peak.
TEST_P(EngineMemory, OfSumsLeftApartIsTheForecast) {
  for (const DType dtype : {DType::kBf16, DType::kFp32}) {
    SCOPED_TRACE(dtype == DType::kBf16 ? "bf16" : "fp32, added to the sum of the first");
    Plan plan = small_plan(2);
    plan.param_dtype = plan.reduce_dtype = dtype;
    plan.reduction_order = ReductionOrder::kLibrary;
    plan.batch = {4, 1, dtype == DType::kBf16 ? 1 : 2};
    plan.units.embedding = plan.units.head = plan.units.blocks = UnitPlacement::kRoot;
    expect_held_as_forecast(small_model(GetParam()), plan);
  }
}

INSTANTIATE_TEST_SUITE_P(All, EngineMemory, testing::Values("llama", "gpt2", "qwen3"),
    [](const auto& param) { return std::string(param.param); });

}
}
