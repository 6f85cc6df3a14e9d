// Settings of Megatron-Core's training codes as YAML or JSON: Megatron-Bridge's ConfigContainer
// (model, train, ddp, comm_overlap, optimizer; megatron-bridge 0.2 training/config.py) and NeMo's
// (model, trainer; examples/nlp/language_modeling/conf/megatron_gpt_config.yaml of 1.23; data,
// optim, trainer.strategy of 2.0's recipes).
#pragma once

#include "interop/frameworks/foreign_plan.h"

namespace foreshard {

// Whether it names Megatron-Core's degrees of parallelism.
bool looks_like_megatron(const ConfigNode& root);

// A plan of runtime megatron. Throws ConfigError.
ForeignPlan read_megatron(const ConfigNode& root);

}  // namespace foreshard
