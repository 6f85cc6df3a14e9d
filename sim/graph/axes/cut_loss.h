// Cross entropy over logits that are cut by vocabulary (torch.distributed.tensor.parallel
// loss_parallel): log-softmax with all-reduces of the greatest logit and of the sum of
// exponentials, and one of the chosen log-probabilities, which only one rank has.
#pragma once

#include "sim/spec/model_spec.h"
#include "sim/spec/plan.h"

namespace foreshard {

LayerSpec cut_loss(const LayerSpec& layer, const Plan& plan);

}  // namespace foreshard
