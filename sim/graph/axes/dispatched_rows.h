// What other codes of mixtures than torchtitan's do around their experts, whose layers
// models/layers/moe.cpp writes.
#pragma once

#include <cstdint>

#include "sim/spec/model_spec.h"
#include "sim/spec/plan.h"

namespace foreshard {

// Whether the plan's dispatcher takes tokens. (torchtitan's tensor parallel cuts rows before them.)
bool sends_tokens(const Plan& plan);

// Scores are multiplied into the experts' activation instead of into their rows in fp32
// (Megatron-Core, core/fusions/fused_bias_swiglu.py: WeightedSwiGLUFunction; DeepEP's users too).
LayerSpec weigh_in_activation(LayerSpec layer);

// A dispatcher that takes tokens and hands back their sums (DeepEP, HybridEP): no copy of a token
// for each of its experts before they travel, and none is summed after (deep_ep/buffer.py:
// dispatch, combine). What comes back is as wide as a token.
LayerSpec send_tokens(LayerSpec layer);

// What Megatron-Core's router and dispatcher launch besides models/layers/moe.cpp: routing maps,
// scores of the auxiliary loss and its sums, rows of each expert for the host, selections by mask.
LayerSpec route_by_maps(LayerSpec layer, const Plan& plan);

// Rows (tokens times experts each goes to) that reach the rank of mesh.ep whose experts receive
// most.

struct ExpertGroup {
  std::int64_t ranks = 1, experts = 1;
};

// `sent`: rows of each rank of the group. As listed; in proportion to the counts of experts, which
// lie on the ranks in their order; or to a Zipf distribution of the experts dealt out to the ranks
// like cards, for an expert's number says nothing about how often it is chosen.
std::int64_t received_rows(const ExpertParallel& how, ExpertGroup group, std::int64_t sent);

}  // namespace foreshard
