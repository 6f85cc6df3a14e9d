// What the plan's keys kernels.* and dtype.autocast make of a model's layers: an fp32 stream
// between blocks, norms in fp32 or of many kernels, other rotary kernels, copies around attention,
// casts in front of products, metrics over the logits.
//
// Operations are written as a training code executes them, so memory and time follow by the same rules as everything
// else (sim/graph/layers/layer_program.h). Rules and sources: module_kernels.cpp.
#pragma once

#include "sim/spec/model_spec.h"
#include "sim/spec/plan.h"

namespace foreshard {

// Precondition: the model is as build_model makes it for Stack::kEager, or after with_adapters.
ModelSpec with_module_kernels(ModelSpec model, const Plan& plan);

// Whether parameters in dtype.master meet autocast's casts.
bool is_under_autocast(const Plan& plan);

// kernels.train_metrics, into a loss layer whose operations are final.
void add_train_metrics(LayerSpec& loss, const Plan& plan);

}
