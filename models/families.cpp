// One row per family. Everything that Hugging Face's implementation fixes in code, not in
// config.json, stands here.
#include "models/families.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <string>

namespace foreshard {
namespace {

// --- rotary decoders: Llama's block, and what each family does differently ---

void make_gemma(ModelDims& d) {
  d.activation = Activation::kGeGlu;
  d.embedding_scale = true;
}
void make_sandwich(ModelDims& d) {
  make_gemma(d);
  d.naming = Naming::kGemma2;
  d.residual = Residual::kSandwich;
}
void make_post_branch(ModelDims& d, HeadNorm norm) {
  d.naming = Naming::kPostBranch;
  d.residual = Residual::kPostBranch;
  d.qk_norm = norm;
}
void make_granite(ModelDims& d) { d.embedding_scale = d.branch_scale = d.logit_scale = true; }
void make_deepseek(ModelDims& d) {
  d.naming = Naming::kDeepSeek;
  d.moe.scaled = true;
}
void make_sigmoid(ModelDims& d) { d.moe.normalized = d.moe.sigmoid = d.moe.corrected = true; }
void make_deepseek_v3(ModelDims& d) {
  make_deepseek(d);
  make_sigmoid(d);
}
void make_late_normed(ModelDims& d) {
  make_deepseek_v3(d);
  d.qk_norm = HeadNorm::kEach;
}
void make_parallel(ModelDims& d, NormKind norm) {
  d.norm = norm;
  d.residual = Residual::kParallelOfOneNorm;
}
void make_gptj(ModelDims& d) {
  d.naming = Naming::kGptJ;
  d.activation = Activation::kGelu;
  make_parallel(d, NormKind::kLayer);
  d.mlp_bias = d.head_bias = true;
}

struct RotaryFamily {
  std::string_view name;
  void (*apply)(ModelDims& d);
};
constexpr RotaryFamily kRotary[] = {
    {"llama", [](ModelDims&) {}},
    {"mistral", [](ModelDims&) {}},
    {"qwen2", [](ModelDims& d) { d.qkv_bias = true; }},
    {"qwen3", [](ModelDims& d) { d.qk_norm = HeadNorm::kEach; }},
    {"internlm", [](ModelDims& d) { d.qkv_bias = d.output_bias = true; }},
    {"gemma", make_gemma},
    {"gemma2",
     [](ModelDims& d) {
       make_sandwich(d);
       d.logit_softcap = true;
     }},
    {"gemma3",
     [](ModelDims& d) {
       make_sandwich(d);
       d.qk_norm = HeadNorm::kEach;
     }},
    {"phi3", [](ModelDims& d) { d.fused_qkv = d.fused_gate_up = true; }},
    {"starcoder2",
     [](ModelDims& d) {
       d.naming = Naming::kStarcoder2;
       d.activation = Activation::kGelu;
       add_biases(d);
     }},
    {"olmo", [](ModelDims& d) { d.norm = NormKind::kLayerUnweighted; }},
    {"olmo2", [](ModelDims& d) { make_post_branch(d, HeadNorm::kWhole); }},
    {"olmo3", [](ModelDims& d) { make_post_branch(d, HeadNorm::kWhole); }},
    {"exaone4", [](ModelDims& d) { make_post_branch(d, HeadNorm::kEach); }},
    {"smollm3", [](ModelDims&) {}},
    {"cwm", [](ModelDims&) {}},
    {"gptj", make_gptj},
    {"codegen",
     [](ModelDims& d) {
       make_gptj(d);
       d.fused_qkv = d.regroups_heads = true;
     }},
    {"persimmon",
     [](ModelDims& d) {
       d.naming = Naming::kPersimmon;
       d.activation = Activation::kRelu2;
       add_biases(d);
       d.fused_qkv = d.drops_mlp_alone = true;
       d.qk_norm = HeadNorm::kEach;
       d.head_norm = NormKind::kLayer;
     }},
    {"granite", make_granite},
    {"cohere",
     [](ModelDims& d) {
       make_parallel(d, NormKind::kLayerWithoutBias);
       d.head_norm = NormKind::kLayerWithoutBias;
       d.logit_scale = true;
     }},
    {"phi",
     [](ModelDims& d) {
       d.naming = Naming::kPhi;
       d.activation = Activation::kGelu;
       add_biases(d);
       make_parallel(d, NormKind::kLayer);
       d.head_bias = true;
     }},
    {"stablelm", [](ModelDims& d) { d.norm = NormKind::kLayer; }},
    {"glm", [](ModelDims& d) { d.qkv_bias = d.fused_gate_up = true; }},
    {"glm4",
     [](ModelDims& d) {
       d.naming = Naming::kGlm4;
       d.residual = Residual::kSandwich;
       d.qkv_bias = d.fused_gate_up = true;
     }},
    {"seed_oss", [](ModelDims& d) { d.qkv_bias = true; }},
    {"ernie4_5", [](ModelDims&) {}},
    {"helium", [](ModelDims&) {}},
    {"hunyuan_v1_dense",
     [](ModelDims& d) {
       d.naming = Naming::kHunYuan;
       d.qk_norm = HeadNorm::kEach;
     }},
    {"arcee", [](ModelDims& d) { d.activation = Activation::kRelu2; }},
    {"nemotron",
     [](ModelDims& d) {
       d.norm = NormKind::kLayer;
       d.activation = Activation::kRelu2;
     }},
    {"mixtral",
     [](ModelDims& d) {
       d.naming = Naming::kMixtral;
       d.moe.normalized = true;
     }},
    {"qwen2_moe", [](ModelDims& d) { d.qkv_bias = d.moe.shared_gate = true; }},
    {"qwen3_moe",
     [](ModelDims& d) {
       d.qk_norm = HeadNorm::kEach;
       d.moe.normalized = true;
     }},
    {"olmoe", [](ModelDims& d) { d.qk_norm = HeadNorm::kWhole; }},
    {"flex_olmo", [](ModelDims& d) { make_post_branch(d, HeadNorm::kWhole); }},
    {"ernie4_5_moe", [](ModelDims& d) { d.moe.normalized = d.moe.corrected = true; }},
    {"granitemoe",
     [](ModelDims& d) {
       make_granite(d);
       d.naming = Naming::kMixtral;
       d.moe.normalized = d.moe.fused_gate_up = true;
     }},
    {"granitemoeshared",
     [](ModelDims& d) {
       make_granite(d);
       d.naming = Naming::kMixtral;
       d.fused_gate_up = true;
       d.moe.normalized = d.moe.fused_gate_up = true;
     }},
    {"phimoe",
     [](ModelDims& d) {
       d.naming = Naming::kGptOss;
       d.norm = NormKind::kLayer;
       d.moe.fused_gate_up = true;
     }},
    {"minimax_m2",
     [](ModelDims& d) {
       d.qk_norm = HeadNorm::kWhole;
       make_sigmoid(d);
     }},
    {"hunyuan_v1_moe",
     [](ModelDims& d) {
       d.naming = Naming::kHunYuan;
       d.qk_norm = HeadNorm::kEach;
       d.moe.normalized = true;
     }},
    {"gpt_oss",
     [](ModelDims& d) {
       d.naming = Naming::kGptOss;
       d.qkv_bias = d.output_bias = d.sinks = true;
       d.moe.normalized = d.moe.bias = d.moe.fused_gate_up = true;
     }},
    {"llama4",
     [](ModelDims& d) {
       d.naming = Naming::kLlama4;
       d.qk_norm = HeadNorm::kUnweighted;
       d.moe.sigmoid = d.moe.fused_gate_up = true;
     }},
    {"deepseek_v2", make_deepseek},
    {"deepseek_v3", make_deepseek_v3},
    {"glm4_moe", make_deepseek_v3},
    {"glm4_moe_lite", make_deepseek_v3},
    {"solar_open", make_deepseek_v3},
    {"youtu", make_deepseek},
    {"dots1", make_late_normed},
    {"exaone_moe", make_late_normed},
};

// The others, each built by a function below.
constexpr std::string_view kOthers[] = {"gpt2",    "gpt3",       "gpt_bigcode", "gpt_neo", "opt",
                                        "mpt",     "bloom",      "gpt_neox",    "falcon",  "bert",
                                        "roberta", "distilbert", "electra",     "t5"};

constexpr auto kFamilies = [] {
  std::array<std::string_view, std::size(kRotary) + std::size(kOthers)> names;
  std::size_t count = 0;
  for (const RotaryFamily& family : kRotary) names[count++] = family.name;
  for (const std::string_view name : kOthers) names[count++] = name;
  return names;
}();

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
  dims.drops_mlp_alone = naming == Naming::kDistilBert;
  add_biases(dims);
  return dims;
}

ModelDims encoder_decoder_family() {
  ModelDims dims;
  dims.naming = Naming::kT5;
  dims.activation = Activation::kRelu;
  dims.positions = Positions::kNone;
  dims.position_buckets = 32;
  dims.dropout = dims.embedding_dropout = dims.attention_dropout = dims.ffn_dropout = true;
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
  ModelDims dims;
  const auto rotary = std::find_if(std::begin(kRotary), std::end(kRotary),
                                   [&](const RotaryFamily& each) { return each.name == family; });
  if (rotary != std::end(kRotary)) {
    rotary->apply(dims);
  } else if (std::find(kFamilies.begin(), kFamilies.end(), family) == kFamilies.end()) {
    return std::nullopt;
  } else if (family == "gpt2" || family == "gpt3" || family == "gpt_bigcode") {
    dims = learned_family(Naming::kGpt2);
    dims.conv1d = family == "gpt2";
  } else if (family == "gpt_neo") {
    dims = learned_family(Naming::kGptNeo);
    dims.fused_qkv = dims.qkv_bias = false;
  } else if (family == "opt") {
    dims = learned_family(Naming::kOpt);
  } else if (family == "mpt" || family == "bloom") {
    dims = alibi_family(family == "mpt" ? Naming::kMpt : Naming::kBloom);
  } else if (family == "gpt_neox" || family == "falcon") {
    dims = parallel_family(family == "falcon" ? Naming::kFalcon : Naming::kNeoX);
  } else if (family == "t5") {
    dims = encoder_decoder_family();
  } else {
    dims = encoder_family(family == "bert"         ? Naming::kBert
                          : family == "distilbert" ? Naming::kDistilBert
                          : family == "electra"    ? Naming::kElectra
                                                   : Naming::kRoberta);
  }
  dims.family = family;
  return dims;
}

}  // namespace foreshard
