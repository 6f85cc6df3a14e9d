// Throughput of the planner's inner loops on one core: rows per second of simulate, plans per second from a
// Plan to its peak memory and step time. The step is GPT-3 175B's: 96 blocks, unfolded, every row walked.
#include <benchmark/benchmark.h>

#include <array>

#include "calibration/machines.h"
#include "calibration/profile_store.h"
#include "models/zoo.h"
#include "sim/cost/cost_model.h"
#include "sim/graph/training_step.h"
#include "sim/memory/capacity.h"
#include "sim/memory/memory_profile.h"
#include "sim/memory/outside_allocator.h"
#include "sim/search/deep.h"
#include "sim/simulate/simulate.h"
#include "sim/spec/checks/plan_check.h"

namespace foreshard {
namespace {

Plan gpt3_plan() {
  Plan plan = {.model = "gpt3-175b", .cluster = "1024xh100", .batch = {2048, 1, 1}, .mesh = {1024, 1}};
  plan.units.embedding = plan.units.head = UnitPlacement::kRoot;  // tied
  return plan;
}

struct Setting {
  ModelSpec model = load_zoo_model("gpt3-175b");
  Plan plan = gpt3_plan();
  CostModel costs{load_cluster(plan.cluster), load_profile("h100-sxm")};
  LayerPrograms programs{model, plan};
  EventGraph graph = build_training_step(model, plan, programs);
  CostTable table = costs.price(graph);
};

void rows_per_second(benchmark::State& state, const EventGraph& graph, std::int64_t steps) {
  state.counters["rows"] = static_cast<double>(graph.rows.size());
  state.counters["rows/s"] = benchmark::Counter(static_cast<double>(graph.rows.size()) * static_cast<double>(steps),
      benchmark::Counter::kIsIterationInvariantRate);
}

void BM_SimulateOneStep(benchmark::State& state) {
  Setting s;
  Simulator simulator;
  for (auto _ : state) benchmark::DoNotOptimize(simulator.simulate_once(s.graph, s.table).period);
  rows_per_second(state, s.graph, 1);
}
BENCHMARK(BM_SimulateOneStep);

// To the steady step, as search does.
void BM_SteadyPeriod(benchmark::State& state) {
  Setting s;
  Simulator simulator;
  for (auto _ : state) benchmark::DoNotOptimize(simulator.period(s.graph, s.table));
  rows_per_second(state, s.graph, 1);
}
BENCHMARK(BM_SteadyPeriod);

void BM_BuildGraph(benchmark::State& state) {
  Setting s;
  EventGraph graph;
  for (auto _ : state) {
    graph = build_training_step(s.model, s.plan, s.programs, std::move(graph));
    benchmark::DoNotOptimize(graph.rows.data());
  }
  rows_per_second(state, s.graph, 1);
}
BENCHMARK(BM_BuildGraph);

// The same step by each library, with its defaults.
void BM_BuildOf(benchmark::State& state) {
  constexpr std::array kRuntimes = {RuntimeKind::kFsdp2, RuntimeKind::kFsdp1, RuntimeKind::kDdp, RuntimeKind::kZero1,
      RuntimeKind::kZero2, RuntimeKind::kZero3};
  const RuntimeKind kind = kRuntimes[at(state.range(0))];
  const ModelSpec model = load_zoo_model("gpt3-175b");
  Plan plan = gpt3_plan();
  plan.runtime = {kind, newest_version(kind)};
  if (is_zero(kind)) plan.reduce_dtype = plan.param_dtype;
  if (kind == RuntimeKind::kDdp) plan.mesh = {1, plan.mesh.world()};
  const LayerPrograms programs(model, plan);
  EventGraph graph;
  for (auto _ : state) {
    graph = build_training_step(model, plan, programs, std::move(graph));
    benchmark::DoNotOptimize(graph.rows.data());
  }
  state.SetLabel(to_string(kind));
  rows_per_second(state, graph, 1);
  state.counters["plans/s"] = benchmark::Counter(1, benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(BM_BuildOf)->DenseRange(0, 5);

// Llama 3.1 405B with every axis of a dense model: TP 8 x CP 4 x 32 shards, full recompute.
void BM_BuildWithAxes(benchmark::State& state) {
  const ModelSpec model = load_zoo_model("llama-3.1-405b");
  Plan plan = {.model = model.name, .cluster = "1024xh100", .batch = {8192, 1, 1}};
  plan.mesh.shard = 32;
  plan.mesh.cp = 4;
  plan.mesh.tp = 8;
  plan.recompute.value = Recompute::kFull;
  const LayerPrograms programs(model, plan);
  EventGraph graph;
  for (auto _ : state) {
    graph = build_training_step(model, plan, programs, std::move(graph));
    benchmark::DoNotOptimize(graph.rows.data());
  }
  rows_per_second(state, graph, 1);
  state.counters["plans/s"] = benchmark::Counter(1, benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(BM_BuildWithAxes);

void BM_PeakMemory(benchmark::State& state) {
  Setting s;
  for (auto _ : state) benchmark::DoNotOptimize(peak_allocated(s.graph));
  rows_per_second(state, s.graph, 1);
}
BENCHMARK(BM_PeakMemory);

void BM_Price(benchmark::State& state) {
  Setting s;
  for (auto _ : state) benchmark::DoNotOptimize(s.costs.price(s.graph).works.data());
}
BENCHMARK(BM_Price);

// What search does with every plan that fits: build, replay allocations, price, simulate to the steady step.
void BM_PlanToMemoryAndTime(benchmark::State& state) {
  Setting s;
  Simulator simulator;
  Plan plan = s.plan;
  std::int64_t shard = 8;
  EventGraph graph;
  for (auto _ : state) {
    plan.mesh = {shard, 1024 / shard};
    shard = shard == 1024 ? 8 : shard * 2;
    graph = build_training_step(s.model, plan, s.programs, std::move(graph));
    const Bytes peak = peak_allocated(graph);
    const Bytes outside = total(memory_outside(graph, s.costs.cluster(), plan.runtime));
    benchmark::DoNotOptimize(fit_in(s.costs.cluster(), peak, peak, outside).fits());
    benchmark::DoNotOptimize(simulator.period(graph, s.costs.price(graph)));
  }
  state.counters["plans/s"] = benchmark::Counter(1, benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(BM_PlanToMemoryAndTime);

// The same with the libraries that hold the model whole: DDP and ZeRO-1 and 2, from a plan to memory and time.
void BM_DataParallelPlan(benchmark::State& state) {
  constexpr std::array kRuntimes = {RuntimeKind::kDdp, RuntimeKind::kZero1, RuntimeKind::kZero2};
  const RuntimeKind kind = kRuntimes[at(state.range(0))];
  Plan plan = gpt3_plan();
  plan.runtime = {kind, newest_version(kind)};
  plan.reduce_dtype = DType::kBf16;
  if (kind == RuntimeKind::kDdp) plan.mesh = {1, 1024};
  const ModelSpec model = load_zoo_model("gpt3-175b");
  const CostModel costs{load_cluster(plan.cluster), load_profile("h100-sxm")};
  const LayerPrograms programs(model, plan);
  Simulator simulator;
  EventGraph graph;
  for (auto _ : state) {
    graph = build_training_step(model, plan, programs, std::move(graph));
    benchmark::DoNotOptimize(peak_allocated(graph));
    benchmark::DoNotOptimize(simulator.period(graph, costs.price(graph)));
  }
  state.SetLabel(to_string(kind));
  state.counters["rows"] = static_cast<double>(graph.rows.size());
  state.counters["plans/s"] = benchmark::Counter(1, benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(BM_DataParallelPlan)->DenseRange(0, 2);

// GPT-3 175B on 1,024 GPUs, one sequence each: the grid on one core, and the best plan of all knobs
// by bounds. "simulated" counts neither what was pruned nor what did not fit.
SearchSpace gpt3_space(const Setting& s) { return SearchSpace{.base = s.plan, .global_batch = 1024}; }

void count_plans(benchmark::State& state, const SearchResult& result) {
  const auto rate = [&](std::int64_t plans) {
    return benchmark::Counter(static_cast<double>(plans), benchmark::Counter::kIsIterationInvariantRate);
  };
  state.counters["enumerated/s"] = rate(result.enumerated);
  state.counters["simulated/s"] = rate(result.simulated);
  state.counters["simulated"] = static_cast<double>(result.simulated);
  state.counters["pruned"] = static_cast<double>(result.pruned);
}

void BM_SearchGrid(benchmark::State& state) {
  const Setting s;
  SearchOptions options = {.threads = 1};
  SearchResult result;
  for (auto _ : state) result = search(gpt3_space(s), s.model, s.costs, options);
  count_plans(state, result);
}
BENCHMARK(BM_SearchGrid);

void BM_SearchAllKnobs(benchmark::State& state) {
  const Setting s;
  SearchOptions options = {.threads = 1, .detail = SearchDetail::kBest};
  const SearchSpace space = with_all_knobs(gpt3_space(s), s.costs.cluster(), {});
  SearchResult result;
  for (auto _ : state) result = search(space, s.model, s.costs, options);
  count_plans(state, result);
}
BENCHMARK(BM_SearchAllKnobs)->Unit(benchmark::kMillisecond);

}
}
