// Selective recompute as Megatron-Core has it: of named modules.
#pragma once

#include <span>

#include "sim/spec/model_spec.h"
#include "sim/spec/runtime_options.h"

namespace foreshard {

// Of a block as a rank executes it: Operation::kept_by_selective of all that no module of the list
// computes (core/transformer/transformer_config.py, recompute_modules).
void recompute_modules(LayerSpec& block, std::span<const MegatronOptions::Module> modules);

}  // namespace foreshard
