// What the plan's keys compile, attention, loss, logits and float8 make of a model: other kernels
// for the same arithmetic, so other saved tensors, other temporaries and other passes over memory.
// And batch.images: as many images in each sample.
//
// The model as build_model makes it is eager PyTorch with flash attention whose kernels need
// nothing but their results. The rules, their sources, and what each costs stand in variants.cpp.
#pragma once

#include "sim/spec/model_spec.h"
#include "sim/spec/plan.h"

namespace foreshard {

// Precondition: check(plan, model, cluster) passed. Unchanged for runtime native and on CPU ranks,
// which do not run these kernels.
ModelSpec with_variants(ModelSpec model, const Plan& plan);

}  // namespace foreshard
