// Which layers have experts is decided as the implementations do: Qwen counts every
// decoder_sparse_step-th layer that mlp_only_layers does not name, DeepSeek every moe_layer_freq-th
// from first_k_dense_replace on.
#include <algorithm>
#include <string>
#include <utility>

#include "interop/hf_readers.h"
#include "sim/base/error.h"

namespace foreshard {
namespace {

std::int64_t count_or(KeyReader& keys, std::string_view key, std::int64_t fallback,
                      std::int64_t least) {
  if (const ConfigNode* value = keys.find({key})) return value->as_int(least, kLargestHfSize);
  keys.assume(key, std::to_string(fallback));
  return fallback;
}

// Experts per token, at the value that is too large.
std::int64_t read_top_k(KeyReader& keys, std::int64_t experts, std::int64_t fallback) {
  const ConfigNode* value = keys.find({"num_experts_per_tok", "num_experts_per_token"});
  if (value == nullptr) {
    if (fallback == 0) return keys.size({"num_experts_per_tok"});
    keys.assume("num_experts_per_tok", std::to_string(fallback));
  }
  const std::int64_t top_k = value != nullptr ? value->as_int(1, kLargestHfSize) : fallback;
  if (top_k > experts) {
    throw(value != nullptr ? *value : keys.node())
        .error("every token goes to " + std::to_string(top_k) + " of " + std::to_string(experts) +
                   " experts",
               "at most the number of experts");
  }
  return top_k;
}

template <typename IsDense>
void list_dense_layers(ModelDims& dims, IsDense is_dense) {
  dims.moe.dense_layers.clear();
  for (std::int64_t i = 0; i < dims.layers; ++i) {
    if (is_dense(i)) dims.moe.dense_layers.push_back(i);
  }
}

std::vector<std::int64_t> named_layers(KeyReader& keys, const ModelDims& dims) {
  std::vector<std::int64_t> layers;
  if (const ConfigNode* list = keys.find({"mlp_only_layers"})) {
    for (const ConfigNode& layer : list->elements()) {
      layers.push_back(layer.as_int(0, dims.layers - 1));
    }
  }
  return layers;
}

void check_layers(KeyReader& keys, const ModelDims& dims) {
  constexpr std::int64_t kMostLayers = 100'000;
  if (dims.layers > kMostLayers) {
    throw keys.node().error(std::to_string(dims.layers) + " layers are too many",
                            "at most " + std::to_string(kMostLayers));
  }
}

void read_qwen(KeyReader& keys, std::string_view model_type, ModelDims& dims) {
  const bool first = model_type == "qwen2_moe";
  Experts& moe = dims.moe;
  moe.experts = keys.size_or({"num_experts", "num_local_experts"}, first ? 60 : 128);
  moe.top_k = read_top_k(keys, moe.experts, first ? 4 : 8);
  moe.ffn = keys.size_or({"moe_intermediate_size"}, first ? 1408 : 768);
  moe.normalized = keys.flag_or("norm_topk_prob", false);
  if (first) moe.shared_ffn = keys.size_or({"shared_expert_intermediate_size"}, 5632);
  const std::int64_t step = keys.size_or({"decoder_sparse_step"}, 1);
  const std::vector<std::int64_t> named = named_layers(keys, dims);
  list_dense_layers(dims, [&](std::int64_t i) {
    return (i + 1) % step != 0 || std::find(named.begin(), named.end(), i) != named.end();
  });
}

void read_latent(KeyReader& keys, ModelDims& dims) {
  Latent& latent = dims.latent;
  if (const ConfigNode* rank = keys.find({"q_lora_rank"})) {
    latent.q_rank = rank->as_int(1, kLargestHfSize);
  } else if (!keys.node().has("q_lora_rank")) {
    latent.q_rank = 1536;
    keys.assume("q_lora_rank", "1536");
  } else {
    keys.assume("q_lora_rank", "none", "queries come from the hidden state");
  }
  latent.kv_rank = keys.size_or({"kv_lora_rank"}, 512);
  latent.nope = keys.size_or({"qk_nope_head_dim"}, 128);
  latent.rope = keys.size_or({"qk_rope_head_dim"}, 64);
  latent.value = keys.size_or({"v_head_dim"}, 128);
  dims.head_dim = latent.nope + latent.rope;
}

void check_choice(KeyReader& keys, std::string_view key, std::string_view expected) {
  const ConfigNode* value = keys.find({key});
  if (value == nullptr || value->as_string() == expected) return;
  throw value->error("\"" + value->as_string() + "\" is not supported", std::string(expected));
}

}  // namespace

void read_experts(KeyReader& keys, std::string_view model_type, ModelDims& dims) {
  check_layers(keys, dims);
  if (model_type != "mixtral") return read_qwen(keys, model_type, dims);
  dims.moe.experts = keys.size_or({"num_local_experts", "num_experts"}, 8);
  dims.moe.top_k = read_top_k(keys, dims.moe.experts, 2);
  dims.moe.ffn = dims.ffn;
}

void read_deepseek(KeyReader& keys, std::string_view model_type, ModelDims& dims) {
  const bool third = model_type == "deepseek_v3";
  read_common(keys, dims);
  check_layers(keys, dims);
  read_latent(keys, dims);
  dims.kv_heads = keys.size_or({"num_key_value_heads"}, dims.heads);
  if (dims.kv_heads != dims.heads) {
    keys.refuse("num_key_value_heads", "latent attention has keys and values of every head",
                std::to_string(dims.heads));
  }
  dims.ffn = keys.size({"intermediate_size"});
  dims.max_positions = keys.size_or({"max_position_embeddings"}, third ? 4096 : 2048);
  dims.tied = keys.flag_or("tie_word_embeddings", false);
  dims.qkv_bias = dims.output_bias = keys.flag_or("attention_bias", false);
  read_numerics(keys, dims);
  const std::string activation = keys.word_or("hidden_act", "silu");
  if (activation != "silu") keys.refuse("hidden_act", "\"" + activation + "\"", "silu");

  Experts& moe = dims.moe;
  moe.experts = keys.size_or({"n_routed_experts"}, third ? 256 : 64);
  moe.top_k = read_top_k(keys, moe.experts, third ? 8 : 0);
  moe.ffn = keys.size_or({"moe_intermediate_size"}, third ? 2048 : 1407);
  moe.shared_ffn = checked_multiply(count_or(keys, "n_shared_experts", third ? 1 : 2, 0), moe.ffn);
  moe.normalized = keys.flag_or("norm_topk_prob", third);
  check_choice(keys, "scoring_func", third ? "sigmoid" : "softmax");
  const std::int64_t first = count_or(keys, "first_k_dense_replace", third ? 3 : 0, 0);
  const std::int64_t every = keys.size_or({"moe_layer_freq"}, 1);
  list_dense_layers(dims, [&](std::int64_t i) { return i < first || i % every != 0; });
  if (keys.find({"num_nextn_predict_layers"}) != nullptr) {
    keys.comment("layers of multi-token prediction are left out");
  }
}

}  // namespace foreshard
