// What the plan's keys lora, batch.documents, batch.images, experts, compile, attention, loss, logits and float8 make
// of a model: adapters beside its layers, shorter attention, as many images in each sample, and other kernels for the
// same arithmetic, so other saved tensors, other temporaries and other passes over memory.
//
// The model as build_model makes it is eager PyTorch with flash attention whose kernels need
// nothing but their results. The rules, their sources, and what each costs stand in variants.cpp.
#pragma once

#include "sim/spec/model_spec.h"
#include "sim/spec/plan.h"

namespace foreshard {

// Precondition: check(plan, model, cluster) passed. For runtime native and on CPU ranks, which do
// not run these kernels, only lora and batch.documents change anything.
ModelSpec with_variants(ModelSpec model, const Plan& plan);

// Of that, what torchtitan's experts do in any other dtype.
void multiply_experts_in_bf16(ModelSpec& model, const Plan& plan);

}
