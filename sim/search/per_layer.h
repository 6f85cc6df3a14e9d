// Reshard per unit and recompute per block: which units stay unsharded after forward, which blocks
// recompute, optimised over exact re-simulation of the whole step.
//
// Small problems are solved by trying everything, so that the answer is the optimum. Large ones are
// searched (per_layer.cpp says how); the answer is never worse than the plan to start from, where
// that fits. Only what the runtime can express is tried.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "sim/cost/cost_model.h"
#include "sim/search/search.h"
#include "sim/spec/model_spec.h"
#include "sim/spec/plan.h"

namespace foreshard {

struct LayerChoices {
  std::vector<Recompute> recomputes = {Recompute::kNone, Recompute::kSelective, Recompute::kFull};
  std::vector<Reshard> reshards = {{Reshard::Kind::kAlways, 0}, {Reshard::Kind::kNever, 0}};
  std::int64_t try_all_up_to = 4096;  // combinations
  std::int64_t most_judged = 3000;    // plans of a search
  FitRule fit;
};

struct LayerResult {
  Candidate candidate;
  std::int64_t judged = 0;  // plans whose memory or time was asked
  bool is_optimum = false;  // everything was tried
};

// The best reshard and recompute for `frame`, whose other keys stay; it fits with what is
// reserved. Nothing where no combination fits.
std::optional<LayerResult> optimise_layers(
    const Plan& frame, const ModelSpec& model, const CostModel& costs, const LayerChoices& choices);

// The policy with these values, index by index: the most frequent (the first of equals) holds for
// all, the others are ranges.
RangedPolicy<Recompute> ranged(const std::vector<Recompute>& values);
RangedPolicy<Reshard> ranged(const std::vector<Reshard>& values);

}
