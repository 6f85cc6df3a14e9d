// What trainers do with fully_shard and FullyShardedDataParallel where their users say nothing. A
// runtime's version says what PyTorch does (fsdp2_version.h); these are defaults of the plan's
// keys, no semantics.
#pragma once

#include <string_view>
#include <vector>

#include "sim/spec/model_spec.h"
#include "sim/spec/plan.h"
#include "sim/spec/plan_config.h"

namespace foreshard {

// Fills the habits of document.trainer into `plan`, which has its runtime, into keys that
// `document` does not give. Returns those keys, in no order. Throws Error(kMissingCapability) where
// the trainer does not train with the runtime.
std::vector<std::string_view> apply_trainer(const PlanDocument& document, const ModelSpec& model,
                                            Plan& plan);

}  // namespace foreshard
