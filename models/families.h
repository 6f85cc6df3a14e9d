// The decoder families that this project knows, each as a ModelDims without sizes.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "models/model_dims.h"

namespace foreshard {

// "llama", "mistral", "qwen2", "qwen3", "internlm", "gpt2", "gpt3", "opt", "mpt", "bloom".
std::span<const std::string_view> family_names();

// Naming, norm, activation, positions and biases of the family; no sizes, untied. nullopt: no such
// family. "gpt2" has Hugging Face's [in, out] weights, "gpt3" ordinary ones; "mpt" is the released
// ALiBi model without biases.
std::optional<ModelDims> family_dims(std::string_view family);

// Biases in every linear layer and norm of the blocks.
void add_biases(ModelDims& dims);

}  // namespace foreshard
