// Of the plan's keys loss and logits, what they make of a model's head and loss (models/layers/variants.h).
#pragma once

#include "sim/spec/model_spec.h"
#include "sim/spec/plan.h"

namespace foreshard {

void score_labelled(ModelSpec& model, const Plan& plan);
void fuse_loss_into_head(LayerSpec& head, const Plan& plan);
void chunk_head(LayerSpec& head, const Plan& plan);
void call_in_parts(LayerSpec& head, const Plan& plan);
void copy_unread(LayerSpec& head, const Plan& plan);
void apply_loss(LayerSpec& layer, const Plan& plan, bool is_traced);

}
