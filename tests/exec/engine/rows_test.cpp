// Rows are complete: what the engine does is what the row says. Whoever changes one field of one
// row gets other bits or a refusal, and another fingerprint.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "exec/comm/rank_threads.h"
#include "exec/engine/engine.h"
#include "exec/engine/schedule.h"
#include "sim/graph/training_step.h"
#include "sim/memory/memory_profile.h"
#include "tests/exec/engine/engine_runs.h"

namespace foreshard::rows_test {
namespace {

constexpr int kSteps = 2;

// The rows of a kind, in order.
std::vector<std::size_t> rows_of(const EventGraph& graph, EventKind kind) {
  std::vector<std::size_t> rows;
  for (std::size_t id = 0; id < graph.rows.size(); ++id) {
    if (graph.rows[id].kind == kind) rows.push_back(id);
  }
  return rows;
}

struct Break {
  std::string name;
  std::function<void(EventGraph&)> change;
};

RowDetail& detail_of(EventGraph& graph, EventKind kind, std::size_t number) {
  return graph.details[rows_of(graph, kind).at(number)];
}

// Of blocks that are alike: units 1 and 2.
std::vector<Break> breaks() {
  using enum EventKind;
  std::vector<Break> all = {
      {"a gather reads another unit's piece",
          [](EventGraph& g) { detail_of(g, kAllGather, 1).other = detail_of(g, kAllGather, 2).other; }},
      {"a gather's piece is not put into place", [](EventGraph& g) { detail_of(g, kAllGather, 1).other = -1; }},
      {"a later sum begins anew",
          [](EventGraph& g) {
            detail_of(g, kReduceScatter, rows_of(g, kReduceScatter).size() - 2).sum = SumMode::kBegin;
          }},
      {"a sum goes to another unit",
          [](EventGraph& g) { detail_of(g, kReduceScatter, 2).other = detail_of(g, kReduceScatter, 1).other; }},
      {"a sum stays apart and nobody takes it",
          [](EventGraph& g) { detail_of(g, kReduceScatter, 2).sum = SumMode::kApart; }},
      {"a unit's gradients never begin", [](EventGraph& g) { detail_of(g, kBackward, 2).sum = SumMode::kAdd; }},
      {"a shard has no gradient",
          [](EventGraph& g) {
            for (Buffer& buffer : g.buffers) {
              if (buffer.role == BufferRole::kGradient) buffer.role = BufferRole::kNone;
            }
          }},
      {"a row does something else", [](EventGraph& g) { g.rows[rows_of(g, kGradScale).at(0)].kind = kGradNorm; }},
  };
  return all;
}

TEST(Rows, AChangedFieldChangesTheBitsOrIsRefused) {
  const ModelSpec model = small_model("llama");
  const Plan plan = fitted(small_plan(2), model);
  const EventGraph graph = build_training_step(model, plan);
  const EngineRun reference = run_graph(model, plan, graph, kSteps);
  for (const Break& each : breaks()) {
    SCOPED_TRACE(each.name);
    EventGraph broken = graph;
    each.change(broken);
    EXPECT_NE(broken.fingerprint(), graph.fingerprint());
    try {
      const EngineRun run = run_graph(model, plan, broken, kSteps);
      EXPECT_TRUE(run.hash != reference.hash || run.norms != reference.norms);
    } catch (const std::exception&) {  // refused
    }
  }
}

// What a step says of the same samples, to the last bit, whatever is gathered ahead or kept; and it
// holds what the forecast of its own graph says.
TEST(Rows, AnEvaluationIsTheForwardOfTheStep) {
  const ModelSpec model = small_model("llama");
  const std::vector<std::function<void(Plan&)>> knobs = {[](Plan&) {},
      [](Plan& plan) {
        plan.prefetch = {2, 2};
      },
      [](Plan& plan) {
        plan.reshard_after_forward.value = {Reshard::Kind::kNever, 0};
      },
      [](Plan& plan) { plan.units.embedding = plan.units.head = UnitPlacement::kRoot; },
      [](Plan& plan) { plan.param_dtype = DType::kBf16; }};
  for (std::size_t k = 0; k < knobs.size(); ++k) {
    SCOPED_TRACE(k);
    Plan plan = small_plan(4);  // one micro-batch a rank
    knobs[k](plan);
    plan = fitted(plan, model);
    ASSERT_EQ(plan.batch.accumulation, 1);
    const EventGraph graph = build_training_step(model, plan);
    const MemoryProfile forecast = replay_allocations(build_evaluation(model, plan));
    const auto predicted = static_cast<double>((forecast.peak - forecast.at_start).count());
    std::vector<double> evaluated(4), trained(4), again(4);
    for_each_rank(4, [&](World& world) {
      const auto rank = static_cast<std::size_t>(world.rank());
      Engine engine(model, plan, graph, world, {});
      engine.initialise();
      std::vector<MicroBatch> batches = {
          batch_of(model, plan, world.rank(), 1.0 / static_cast<double>(microbatches_of_step(plan)))};
      engine.forget_peak();
      evaluated[rank] = engine.evaluate(batches.front());
      EXPECT_NEAR(static_cast<double>(engine.activations().peak) / predicted, 1, 0.01);
      trained[rank] = engine.step(1, batches, nullptr).losses.front();
      again[rank] = engine.evaluate(batches.front());
    });
    EXPECT_EQ(evaluated, trained);
    for (std::size_t rank = 0; rank < 4; ++rank) EXPECT_LT(again[rank], trained[rank]);
  }
}

// What an operation is goes into the fingerprint as well.
TEST(Rows, TheFingerprintCoversOperationsAndSteps) {
  const ModelSpec model = small_model("llama");
  const Plan plan = fitted(small_plan(2), model);
  const EventGraph graph = build_training_step(model, plan);
  EventGraph broken = graph;
  for (Kernel& kernel : broken.kernels) {
    if (kernel.function == Function::kAdamW) kernel.function = Function::kSgd;
  }
  EXPECT_NE(broken.fingerprint(), graph.fingerprint());
  broken = graph;
  LayerProgram program = *broken.programs.front();
  ASSERT_FALSE(program.forward.steps.empty());
  program.forward.steps.front().operation += 1;
  broken.programs.front() = std::make_shared<const LayerProgram>(program);
  EXPECT_NE(broken.fingerprint(), graph.fingerprint());
}

}
}
