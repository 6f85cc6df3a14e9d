// What one rank computes of a model whose layers are spread over the mesh's axes tp, cp and ep: its
// part of every layer, with the collectives between the parts as operations of the layer.
#pragma once

#include "sim/spec/model_spec.h"
#include "sim/spec/plan.h"

namespace foreshard {

// Preconditions: check(plan, model, cluster) passed; the mesh is not plain. Layers keep their
// number, order and roles; parameters have the shapes of plan.rank, in the order in which modules
// register them (modules inside a block before the norms of the block itself).
ModelSpec part_of_rank(const ModelSpec& model, const Plan& plan);

// torchtitan's trainer sums the loss and divides it by the tokens of the step: an operation more.
inline constexpr const char* kUndividedLoss = "undivided loss";
void divide_loss(ModelSpec& model);

}  // namespace foreshard
