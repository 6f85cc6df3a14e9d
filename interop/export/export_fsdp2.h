// A plan as a PyTorch program: one Python file that builds the model in plain torch.nn, shards it
// with fully_shard exactly as the plan says and trains on random tokens.
//
// The modules carry the names and shapes of Hugging Face's implementation, so that every unit holds the parameters of
// the forecast's. The file needs PyTorch 2.4 or later and calls of its interface only what the plan needs.
#pragma once

#include "interop/export/export_ledger.h"
#include "models/model_dims.h"
#include "sim/spec/model_spec.h"
#include "sim/spec/plan.h"

namespace foreshard {

// The whole script. Precondition: check(plan, model, cluster) passed, `model` is made of `dims`.
// Throws Error(kMissingCapability), with the nearest plan, for what no line of Python stands for:
// other runtimes than fsdp2, adapters, fp8, ignored parameters, images; encoders, latent attention.
Exported export_fsdp2(const Plan& plan, const ModelSpec& model, const ModelDims& dims);

// Of a program of its own, whose layers are what a capture saw: what its script calls on the model.
// Throws likewise for other runtimes than fsdp2 and ddp.
Exported export_own(const Plan& plan, const ModelSpec& model);

}
