// Which builder lowers a plan.
#include "sim/graph/training_step.h"

#include <utility>

#include "sim/base/error.h"
#include "sim/graph/runtimes.h"

namespace foreshard {

namespace {

EventGraph build_rank(const ModelSpec& model, const Plan& plan, const LayerPrograms& programs, EventGraph recycled) {
  switch (plan.runtime.kind) {
    case RuntimeKind::kFsdp2:
      return build_fsdp2(model, plan, programs, std::move(recycled));
    case RuntimeKind::kNative:
      return build_native(model, plan, programs, std::move(recycled));
    case RuntimeKind::kFsdp1:
      return build_fsdp1(model, plan, programs, std::move(recycled));
    case RuntimeKind::kDdp:
      return build_ddp(model, plan, programs, std::move(recycled));
    case RuntimeKind::kMegatron:
      return build_megatron(model, plan, programs, std::move(recycled));
    case RuntimeKind::kZero1:
    case RuntimeKind::kZero2:
      return build_zero12(model, plan, programs, std::move(recycled));
    case RuntimeKind::kZero3:
      return build_zero3(model, plan, programs, std::move(recycled));
  }
  FORESHARD_CHECK(false, "unknown runtime");
  return {};
}

}

EventGraph build_training_step(const ModelSpec& model, const Plan& plan, const LayerPrograms& programs,
                               EventGraph recycled) {
  EventGraph graph = build_rank(model, plan, programs, std::move(recycled));
  if (plan.mesh.pp == 1) return graph;
  graph.pipeline_rank = static_cast<std::int32_t>(plan.mesh.pp_index(plan.rank));
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
  const std::int64_t rank = plan.mesh.pp_index(plan.rank);
  EventGraph graph = build_rank(model, plan, programs.of_pipeline_rank(rank), {});
  graph.pipeline_rank = static_cast<std::int32_t>(rank);
  return graph;
}

Plan at_pipeline_rank(Plan plan, std::int64_t pipeline_rank) {
  const std::int64_t ranks = plan.mesh.stage_ranks();
  plan.rank = pipeline_rank * ranks + plan.rank % ranks;
  return plan;
}

LibraryRun record_library_run(const ModelSpec& model, const Plan& plan, const LayerPrograms& programs,
                              const LibraryWatch& watch) {
  switch (plan.runtime.kind) {
    case RuntimeKind::kFsdp1:
      return record_fsdp1(model, plan, programs, watch);
    case RuntimeKind::kDdp:
      return record_ddp(model, plan, programs, watch);
    case RuntimeKind::kZero1:
    case RuntimeKind::kZero2:
      return record_zero12(model, plan, programs, watch);
    case RuntimeKind::kZero3:
      return record_zero3(model, plan, programs, watch);
    case RuntimeKind::kFsdp2:
    case RuntimeKind::kNative:
    case RuntimeKind::kMegatron:
      break;
  }
  FORESHARD_CHECK(false, "the runtime keeps another log");
  return {};
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
