// The caching allocator's replay on one core: a GPT-3 175B step on 64 GPUs, 96 blocks, with and
// without recompute. "actions" are mallocs and frees; a steady replay is all of predict's steps.
#include <benchmark/benchmark.h>

#include "models/zoo.h"
#include "sim/graph/training_step.h"
#include "sim/memory/reserved.h"

namespace foreshard {
namespace {

struct Step {
  ModelSpec model = load_zoo_model("gpt3-175b");
  EventGraph graph;
};

Step gpt3_step(Recompute recompute) {
  Step step;
  Plan plan = {.model = "gpt3-175b", .cluster = "64xh100", .batch = {2048, 1, 1}, .mesh = {64, 1}};
  plan.units.embedding = plan.units.head = UnitPlacement::kRoot;  // tied
  plan.recompute.value = recompute;
  step.graph = build_training_step(step.model, plan);
  return step;
}

void BM_ReservedOneStep(benchmark::State& state) {
  const Step gpt3 = gpt3_step(static_cast<Recompute>(state.range(0)));
  ReservedReplay replay(gpt3.graph, {}, DeviceMemory::unlimited());
  for (int step = 0; step < 3; ++step) replay.run_step();
  for (auto _ : state) benchmark::DoNotOptimize(replay.run_step());
  const auto actions = static_cast<double>(replay.actions_per_step());
  state.counters["actions"] = actions;
  state.counters["per_action"] =
      benchmark::Counter(actions, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}
BENCHMARK(BM_ReservedOneStep)->Arg(static_cast<int>(Recompute::kNone))->Arg(static_cast<int>(Recompute::kFull));

void BM_ReservedToSteadyState(benchmark::State& state) {
  const Step gpt3 = gpt3_step(static_cast<Recompute>(state.range(0)));
  for (auto _ : state) {
    benchmark::DoNotOptimize(replay_reserved(gpt3.graph, {}, DeviceMemory::unlimited()).peak_reserved);
  }
}
BENCHMARK(BM_ReservedToSteadyState)->Arg(static_cast<int>(Recompute::kNone))->Arg(static_cast<int>(Recompute::kFull));

}
}
