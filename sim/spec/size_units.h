// Units that a policy finds among modules: by size (units.min_parameters:
// torch.distributed.fsdp.wrap.size_based_auto_wrap_policy), or those of adapters.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/spec/model_spec.h"
#include "sim/spec/plan.h"

namespace foreshard {

struct SizeUnits {
  std::vector<std::string> modules;  // inside the layer, in the order of their parameters
  bool whole = false;                // what is left makes the layer itself one
};

// Modules are what the names of parameters tell (_recursive_wrap): one is a unit where at least
// `least` of its parameters are in no unit inside of it. Of layers that are no blocks, whose names
// begin with the model's own, each module that has parameters by itself.
SizeUnits units_by_size(const LayerSpec& layer, std::int64_t least);

// Modules of adapters: whose weights are trained although others of the layer are not.
SizeUnits units_of_adapters(const LayerSpec& layer);

// The unit that a parameter of that name is in: -1, or a place in `modules`.
std::int32_t unit_of_name(const SizeUnits& units, const std::string& name);

// A tied table is flattened in two units: each has a copy of its own, and both are trained.
bool flattens_twice(const Plan& plan);

// Of a program's own modules, as foreshard-null saw them run: types of tensors are what they are.
inline bool is_of_modules(const ModelSpec& model) { return model.source.starts_with("modules.json"); }

}
