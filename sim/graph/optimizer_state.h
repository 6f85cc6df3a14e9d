// What an optimizer keeps of a parameter between steps.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/spec/model_spec.h"
#include "sim/spec/plan.h"

namespace foreshard {

struct StateTensor {
  std::int64_t bytes = 0;
  bool is_paged = false;  // in managed memory, which no GPU allocator sees
};

// Of a parameter that is held whole, tensor by tensor.
std::vector<StateTensor> optimizer_state(const Optimizer& optimizer, const ParameterSpec& parameter, LayerRole role);

// Whether torch.optim.Muon steps it: a matrix of a block.
bool is_of_muon(const Optimizer& optimizer, const ParameterSpec& parameter, LayerRole role);

// Whether transformers' Trainer lets it decay (get_decay_parameter_names): no norm's, no bias.
bool decays(const ParameterSpec& parameter);

// What a checkpoint of the job holds, of all ranks: stored parameters and optimizer state.
Bytes checkpoint_bytes(const ModelSpec& model, const Plan& plan);

}
