// Cross entropy over logits that are cut by vocabulary (torch.distributed.tensor.parallel
// loss_parallel): log-softmax with all-reduces of the greatest logit and of the sum of
// exponentials, and one of the chosen log-probabilities, which only one rank has.
#pragma once

#include "sim/spec/model_spec.h"
#include "sim/spec/plan.h"

namespace foreshard {

LayerSpec cut_loss(const LayerSpec& layer, const Plan& plan);

// The engine's: each slice of the vocabulary (TensorParallel::slices) has, of every token, its
// greatest logit, the sum of exponentials from there, and the label's logit if it is one of its
// own. They are gathered; from them every rank computes the loss, and the gradient of its own
// logits in their place.
inline constexpr std::int64_t kSliceStatistics = 3;  // fp32, of a token
LayerSpec cut_native_loss(const LayerSpec& layer, const Plan& plan);

}  // namespace foreshard
