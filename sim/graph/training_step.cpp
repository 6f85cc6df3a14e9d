// Which builder lowers a plan.
#include "sim/graph/training_step.h"

#include <utility>

#include "sim/base/error.h"
#include "sim/graph/runtimes.h"

namespace foreshard {

EventGraph build_training_step(const ModelSpec& model, const Plan& plan,
                               const LayerPrograms& programs, EventGraph recycled) {
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

LibraryRun record_library_run(const ModelSpec& model, const Plan& plan,
                              const LayerPrograms& programs, const LibraryWatch& watch) {
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

}  // namespace foreshard
