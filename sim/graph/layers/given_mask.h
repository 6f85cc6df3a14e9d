// Masks that a model makes once and hands to its blocks. They are gone when the model returns, but
// a checkpointed block keeps its arguments until its own backward.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "sim/spec/model_spec.h"
#include "sim/spec/plan.h"

namespace foreshard {

// A tensor of a block whose name begins so is one, and no operation's; blocks that have it under
// the same name have the same one.
inline constexpr std::string_view kGivenMask = "given mask";

// Of a tensor's name: it outlives the forward of a checkpointed block, whose arguments hold it.
inline constexpr std::string_view kCached = "cached ";

// Rows of an fp32 buffer, which what they are added to becomes as wide as.
inline constexpr std::string_view kSinusoids = "sinusoids";
bool adds_sinusoids(const ModelSpec& model);

// Bytes of each that a micro-batch keeps.
std::vector<std::int64_t> kept_masks(const ModelSpec& model, const Plan& plan);

}
