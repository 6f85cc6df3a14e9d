// The families that this project knows, each as a ModelDims without sizes.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "models/model_dims.h"

namespace foreshard {

// Decoders, mixtures of experts and encoders: "llama", "qwen3", "gemma3", "gpt2", "mixtral", "bert".
std::span<const std::string_view> family_names();

// Naming, norm, activation, positions and biases of the family; no sizes, untied. nullopt: no such family. "gpt2" has
// Hugging Face's [in, out] weights, "gpt3" ordinary ones; "mpt" is the released ALiBi model without biases; "falcon"
// has one norm per block. A family of experts says how it routes, its number of experts is a size.
std::optional<ModelDims> family_dims(std::string_view family);

struct DecoderSizes {
  std::int64_t layers, hidden, heads, kv_heads, head_dim, ffn, vocabulary, positions;
};
// Of these sizes; a learned table has a row for each position. Precondition: the family is known.
ModelDims family_dims(std::string_view family, std::string name, const DecoderSizes& sizes);

// A switch of families.txt, or qk_norm=KIND, of one model; false: the word is none of these.
bool apply_family_word(std::string_view word, ModelDims& dims);

// Biases in every linear layer and norm of the blocks.
void add_biases(ModelDims& dims);

}
