// One row per family. Everything that Hugging Face's implementation fixes in code, not in
// config.json, stands here.
#include "models/families.h"

#include <algorithm>
#include <array>
#include <string>

namespace foreshard {
namespace {

constexpr std::array<std::string_view, 10> kFamilies = {
    "llama", "mistral", "qwen2", "qwen3", "internlm", "gpt2", "gpt3", "opt", "mpt", "bloom"};

ModelDims rotary_family(std::string_view family) {
  ModelDims dims;
  dims.qkv_bias = family == "qwen2" || family == "internlm";
  dims.output_bias = family == "internlm";
  dims.qk_norm = family == "qwen3";
  return dims;
}

ModelDims learned_family(Naming naming) {
  ModelDims dims;
  dims.naming = naming;
  dims.positions = Positions::kLearned;
  dims.activation = naming == Naming::kOpt ? Activation::kRelu : Activation::kGelu;
  dims.fused_qkv = naming != Naming::kOpt;
  add_biases(dims);
  return dims;
}

ModelDims alibi_family(Naming naming) {
  ModelDims dims;
  dims.naming = naming;
  dims.norm = NormKind::kLayerWithoutBias;
  dims.positions = Positions::kAlibi;
  dims.activation = Activation::kGelu;
  dims.fused_qkv = true;
  if (naming == Naming::kBloom) {
    dims.embedding_norm = true;
    add_biases(dims);
  }
  return dims;
}

}  // namespace

std::span<const std::string_view> family_names() { return kFamilies; }

void add_biases(ModelDims& dims) {
  dims.norm = NormKind::kLayer;
  dims.qkv_bias = dims.output_bias = dims.mlp_bias = true;
}

std::optional<ModelDims> family_dims(std::string_view family) {
  if (std::find(kFamilies.begin(), kFamilies.end(), family) == kFamilies.end()) {
    return std::nullopt;
  }
  ModelDims dims;
  if (family == "gpt2" || family == "gpt3") {
    dims = learned_family(Naming::kGpt2);
    dims.conv1d = family == "gpt2";
  } else if (family == "opt") {
    dims = learned_family(Naming::kOpt);
  } else if (family == "mpt" || family == "bloom") {
    dims = alibi_family(family == "mpt" ? Naming::kMpt : Naming::kBloom);
  } else {
    dims = rotary_family(family);
  }
  dims.family = family;
  return dims;
}

}  // namespace foreshard
