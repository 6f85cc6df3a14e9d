// One row per family. Everything that Hugging Face's implementation fixes in code, not in
// config.json, stands here.
#include "models/families.h"

#include <algorithm>
#include <array>
#include <string>

namespace foreshard {
namespace {

constexpr std::array<std::string_view, 23> kFamilies = {
    "llama",     "mistral",     "qwen2",       "qwen3",  "internlm", "gemma",
    "gemma2",    "phi3",        "starcoder2",  "gpt2",   "gpt3",     "opt",
    "mpt",       "bloom",       "gpt_neox",    "falcon", "mixtral",  "qwen2_moe",
    "qwen3_moe", "deepseek_v2", "deepseek_v3", "bert",   "roberta"};

// How each of them routes: config.json has the rest.
void add_routing(std::string_view family, ModelDims& dims) {
  Experts& moe = dims.moe;
  if (family == "mixtral") dims.naming = Naming::kMixtral;
  if (family == "deepseek_v2" || family == "deepseek_v3") dims.naming = Naming::kDeepSeek;
  moe.normalized = family == "mixtral" || family == "qwen3_moe" || family == "deepseek_v3";
  moe.shared_gate = family == "qwen2_moe";
  moe.sigmoid = moe.corrected = family == "deepseek_v3";
  moe.scaled = dims.naming == Naming::kDeepSeek;
}

ModelDims rotary_family(std::string_view family) {
  ModelDims dims;
  dims.qkv_bias = family == "qwen2" || family == "internlm" || family == "qwen2_moe";
  dims.output_bias = family == "internlm";
  dims.qk_norm = family == "qwen3" || family == "qwen3_moe";
  dims.fused_qkv = dims.fused_gate_up = family == "phi3";
  if (family == "gemma" || family == "gemma2") {
    dims.activation = Activation::kGeGlu;
    dims.embedding_scale = true;
  }
  if (family == "gemma2") {
    dims.naming = Naming::kGemma2;
    dims.residual = Residual::kSandwich;
    dims.logit_softcap = true;
  }
  if (family == "starcoder2") {
    dims.naming = Naming::kStarcoder2;
    dims.activation = Activation::kGelu;
    add_biases(dims);
  }
  add_routing(family, dims);
  return dims;
}

ModelDims parallel_family(Naming naming) {
  ModelDims dims;
  dims.naming = naming;
  dims.activation = Activation::kGelu;
  dims.fused_qkv = true;
  dims.norm = NormKind::kLayer;
  dims.residual = naming == Naming::kNeoX ? Residual::kParallel : Residual::kParallelOfOneNorm;
  dims.numerics.gelu_tanh = false;
  if (naming == Naming::kNeoX) add_biases(dims);
  return dims;
}

ModelDims encoder_family(Naming naming) {
  ModelDims dims;
  dims.naming = naming;
  dims.positions = Positions::kLearned;
  dims.activation = Activation::kGelu;
  dims.residual = Residual::kPostNorm;
  dims.embedding_norm = dims.bidirectional = true;
  dims.numerics.gelu_tanh = false;
  add_biases(dims);
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
  dims.numerics.gelu_tanh = naming == Naming::kBloom;
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
  } else if (family == "gpt_neox" || family == "falcon") {
    dims = parallel_family(family == "falcon" ? Naming::kFalcon : Naming::kNeoX);
  } else if (family == "bert" || family == "roberta") {
    dims = encoder_family(family == "bert" ? Naming::kBert : Naming::kRoberta);
  } else {
    dims = rotary_family(family);
  }
  dims.family = family;
  return dims;
}

}  // namespace foreshard
