// What torchtitan 0.2's modules do otherwise than those of other codes (models/*/model.py, models/moe/moe.py of 0.2.2).
#pragma once

#include "sim/spec/model_spec.h"
#include "sim/spec/plan.h"

namespace foreshard {

// Both do nothing under plans of other codes or of 0.3; modules that are compiled stay as they are.
void use_titan_modules(ModelSpec& model, const Plan& plan);
// The same of a model that was not told as torchtitan's: with its routers and tables of positions (freqs_cis,
// rope_cache), which are the embedding's here and each stage's (StepBuilder::resident_bytes).
void use_titan_model(ModelSpec& model, const Plan& plan);

}
