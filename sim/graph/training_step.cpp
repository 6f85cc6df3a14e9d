// Which builder lowers a plan.
#include "sim/graph/training_step.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "sim/base/error.h"
#include "sim/graph/runtimes.h"

namespace foreshard {

namespace {

struct Builder {
  RuntimeKind runtime;
  BuildStep* build;
  RecordSteps* record = nullptr;  // null: it keeps another log
};
constexpr Builder kBuilders[] = {
    {RuntimeKind::kFsdp2, build_fsdp2},
    {RuntimeKind::kNative, build_native},
    {RuntimeKind::kFsdp1, build_fsdp1, record_fsdp1},
    {RuntimeKind::kDdp, build_ddp, record_ddp},
    {RuntimeKind::kMegatron, build_megatron},
    {RuntimeKind::kZero1, build_zero12, record_zero12},
    {RuntimeKind::kZero2, build_zero12, record_zero12},
    {RuntimeKind::kZero3, build_zero3, record_zero3},
};

const Builder& builder_of(const Plan& plan) {
  const auto* found = std::ranges::find(kBuilders, plan.runtime.kind, &Builder::runtime);
  FORESHARD_CHECK(found != std::end(kBuilders), "unknown runtime");
  return *found;
}

EventGraph build_rank(const ModelSpec& model, const Plan& plan, const LayerPrograms& programs, EventGraph recycled) {
  return builder_of(plan).build(model, plan, programs, std::move(recycled));
}

}

EventGraph build_training_step(
    const ModelSpec& model, const Plan& plan, const LayerPrograms& programs, EventGraph recycled) {
  EventGraph graph = build_rank(model, plan, programs, std::move(recycled));
  if (plan.mesh.pp == 1) return graph;
  graph.pipeline_rank = static_cast<std::int32_t>(plan.mesh.pp_index(plan.rank()));
  for (std::int64_t r = 0; r < plan.mesh.pp; ++r) {
    if (r == graph.pipeline_rank) {
      graph.pipeline.emplace_back();
      continue;
    }
    const Plan other = at_pipeline_rank(plan, r);
    graph.pipeline.push_back(std::make_shared<const EventGraph>(build_pipeline_rank(model, other, programs)));
  }
  return graph;
}

EventGraph build_pipeline_rank(const ModelSpec& model, const Plan& plan, const LayerPrograms& programs) {
  const std::int64_t rank = plan.mesh.pp_index(plan.rank());
  EventGraph graph = build_rank(model, plan, programs.of_pipeline_rank(rank), {});
  graph.pipeline_rank = static_cast<std::int32_t>(rank);
  return graph;
}

Plan at_pipeline_rank(Plan plan, std::int64_t pipeline_rank) {
  const std::int64_t ranks = plan.mesh.stage_ranks();
  plan.named_rank = pipeline_rank * ranks + plan.rank() % ranks;
  return plan;
}

LibraryRun record_library_run(
    const ModelSpec& model, const Plan& plan, const LayerPrograms& programs, const LibraryWatch& watch) {
  const Builder& builder = builder_of(plan);
  FORESHARD_CHECK(builder.record != nullptr, "the runtime keeps another log");
  return builder.record(model, plan, programs, watch);
}

EventGraph build_training_step(const ModelSpec& model, const Plan& plan) {
  return build_training_step(model, plan, LayerPrograms(model, plan));
}

EventGraph build_evaluation(const ModelSpec& model, const Plan& plan) {
  FORESHARD_CHECK(plan.runtime.kind == RuntimeKind::kNative, "a library's evaluation is its own");
  Plan single = plan;
  single.batch.accumulation = 1;
  single.evaluation.in_step = true;
  return build_native_evaluation(model, single, LayerPrograms(model, single));
}

std::vector<Unit> list_units(const ModelSpec& model, const Plan& plan) {
  return build_training_step(model, plan).units;
}

}
