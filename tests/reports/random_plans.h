// Plans that differ in everything a plan can say, on the tiny model; the same ones on every machine.
#pragma once

#include <random>

#include "sim/simulate/forecast.h"
#include "sim/spec/checks/plan_check.h"
#include "tests/support/fixtures.h"

namespace foreshard {

class RandomPlans {
 public:
  explicit RandomPlans(unsigned seed) : random_(seed) {}

  // A plan that check() accepts for the tiny model of `blocks` blocks on 16 GPUs.
  Plan next(int blocks) {
    for (;;) {
      Plan plan = draw();
      if (!find_problem(plan, tiny_model(blocks), round_cluster(16))) return plan;
    }
  }

  // Of those, with costs of the round machine.
  Forecast next_forecast() {
    const int blocks = one_of({1, 2, 5});
    const Plan plan = next(blocks);
    return forecast(tiny_model(blocks), plan, CostModel(round_cluster(16), round_calibration()));
  }

  template <typename T>
  T one_of(std::initializer_list<T> choices) {
    return choices.begin()[random_() % choices.size()];
  }

 private:
  Plan draw() {
    Plan plan = tiny_plan();
    plan.cluster = "16xround";
    plan.runtime = one_of({Runtime{RuntimeKind::kFsdp2, "2.11"}, Runtime{RuntimeKind::kNative, "1"}});
    plan.batch = {
        one_of<std::int64_t>({16, 128, 1024}), one_of<std::int64_t>({1, 4}), one_of<std::int64_t>({1, 1, 2, 3})};
    plan.mesh.shard = one_of<std::int64_t>({1, 2, 8, 16});
    plan.mesh.replicate = 16 / plan.mesh.shard;
    plan.units.layers_per_unit = one_of<std::int64_t>({1, 2});
    plan.reshard_after_forward.value = one_of(
        {Reshard{Reshard::Kind::kAlways, 0}, Reshard{Reshard::Kind::kNever, 0}, Reshard{Reshard::Kind::kGroup, 2}});
    plan.prefetch = {one_of<std::int64_t>({Prefetch::kImplicit, 0, 1, 3}), one_of<std::int64_t>({0, 1, 2})};
    plan.recompute.value = one_of({Recompute::kNone, Recompute::kFull, Recompute::kSelective});
    plan.reduce_dtype = one_of({DType::kBf16, DType::kFp32});
    plan.accumulation = one_of({AccumulationMode::kReduceEach, AccumulationMode::kKeepUnsharded});
    if (one_of({0, 1}) == 1) plan.optimizer.clip_norm = 1.0;
    plan.host_sync = one_of({HostSync::kNone, HostSync::kStep});
    return plan;
  }

  std::mt19937 random_;
};

}
