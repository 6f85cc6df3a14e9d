// Which layers have experts is decided as the implementations do: Qwen counts every decoder_sparse_step-th layer that
// mlp_only_layers does not name, DeepSeek every moe_layer_freq-th from first_k_dense_replace on.
#include <string>

#include "interop/hf/hf_readers.h"
#include "sim/base/lookup.h"

namespace foreshard {
namespace {

// A size, or a list of equal ones, for each layer its own.
std::int64_t one_for_all(const ConfigNode& value) {
  if (value.is_scalar()) return value.as_int(1, kLargestHfSize);
  std::int64_t size = 0;
  for (const ConfigNode& each : value.elements()) {
    const std::int64_t own = each.as_int(1, kLargestHfSize);
    if (size != 0 && own != size) throw each.error("layers differ", "the same for every layer");
    size = own;
  }
  if (size == 0) throw value.error("there is no size", "a size for every layer");
  return size;
}

// How many experts there are and how many of them a token goes to.
void read_counts(KeyReader& keys, ModelDims& dims) {
  dims.moe.experts = keys.size({"num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"});
  const KeyReader::Spellings kTopK = {
      "num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_topk", "moe_k", "top_k_experts"};
  const ConfigNode* value = keys.find(kTopK);
  dims.moe.top_k = value != nullptr ? one_for_all(*value) : keys.size(kTopK);
  if (dims.moe.top_k > dims.moe.experts) {
    throw(value != nullptr ? *value : keys.node())
        .error("every token goes to " + std::to_string(dims.moe.top_k) + " of " + std::to_string(dims.moe.experts) +
                   " experts",
            "at most the number of experts");
  }
}

void list_dense_layers(ModelDims& dims, auto is_dense) {
  dims.moe.dense_layers.clear();
  for (std::int64_t i = 0; i < dims.layers; ++i)
    if (is_dense(i)) dims.moe.dense_layers.push_back(i);
}

std::vector<std::int64_t> named_layers(KeyReader& keys, std::string_view key, const ModelDims& dims) {
  std::vector<std::int64_t> layers;
  if (const ConfigNode* list = keys.find({key}))
    for (const ConfigNode& layer : list->elements()) layers.push_back(layer.as_int(0, dims.layers - 1));
  return layers;
}

// mlp_layer_types: which layers are dense; empty where the file does not say.
std::vector<bool> listed_dense(KeyReader& keys, const ModelDims& dims) {
  std::vector<bool> dense;
  const ConfigNode* types = keys.find({"mlp_layer_types"});
  if (types == nullptr) return dense;
  for (const ConfigNode& type : types->elements()) {
    const std::string word = type.as_string();
    if (word != "dense" && word != "sparse") throw type.error("\"" + word + "\" is not supported", "dense or sparse");
    dense.push_back(word == "dense");
  }
  if (dense.size() < at(dims.layers))
    throw types->error("there are " + std::to_string(dims.layers) + " layers", "dense or sparse for each layer");
  return dense;
}

void read_ranks(KeyReader& keys, ModelDims& dims) {
  Latent& latent = dims.latent;
  if (keys.node().has("q_lora_rank") && keys.node().at("q_lora_rank").is_null())
    keys.assume("q_lora_rank", "none", "queries come from the hidden state");
  else latent.q_rank = keys.size_or({"q_lora_rank"}, 1536);
  latent.kv_rank = keys.size_or({"kv_lora_rank"}, 512);
  latent.nope = keys.size_or({"qk_nope_head_dim"}, 128);
  latent.rope = keys.size_or({"qk_rope_head_dim"}, 64);
  const std::int64_t even = keys.provides("v_head_dim") ? 128 : dims.hidden / dims.heads;
  latent.value = keys.size_or({"v_head_dim"}, dims.branch_scale ? even : 128);
  dims.head_dim = latent.nope + latent.rope;
}

void read_index(KeyReader& keys, ModelDims& dims) {
  dims.parts.index_heads = keys.size({"index_n_heads"});
  dims.parts.index_dim = keys.size_or({"index_head_dim"}, 128);
  const ConfigNode* types = keys.find({"indexer_types"});
  if (types == nullptr) return;
  for (const ConfigNode& type : types->elements())
    if (type.as_string() != "full")
      throw type.error("layers that attend to what an earlier one chose are not supported", "full");
}

void check_choice(KeyReader& keys, std::string_view key, std::string_view expected) {
  const ConfigNode* value = keys.find({key});
  if (value == nullptr || value->as_string() == expected) return;
  throw value->error("\"" + value->as_string() + "\" is not supported", std::string(expected));
}

}

void read_plain_experts(KeyReader& keys, bool says_normalized, ModelDims& dims) {
  check_layer_count(keys, dims);
  read_counts(keys, dims);
  dims.moe.ffn = dims.ffn;
  if (says_normalized) dims.moe.normalized = keys.flag_or("norm_topk_prob", false);
}

void read_sparse_experts(KeyReader& keys, ModelDims& dims) {
  check_layer_count(keys, dims);
  Experts& moe = dims.moe;
  read_counts(keys, dims);
  moe.ffn = keys.size({"moe_intermediate_size"});
  moe.normalized = keys.flag_or("norm_topk_prob", false);
  if (moe.shared_gate) moe.shared_ffn = keys.size({"shared_expert_intermediate_size"});
  const std::int64_t step = keys.size_or({"decoder_sparse_step"}, 1);
  const std::vector<std::int64_t> named = named_layers(keys, "mlp_only_layers", dims);
  list_dense_layers(dims, [&](std::int64_t i) { return (i + 1) % step != 0 || contains(named, i); });
}

void read_late_experts(KeyReader& keys, ModelDims& dims) {
  check_layer_count(keys, dims);
  Experts& moe = dims.moe;
  read_counts(keys, dims);
  moe.ffn = keys.size({"moe_intermediate_size"});
  const std::string_view shared = keys.provides("num_shared_experts") ? "num_shared_experts" : "n_shared_experts";
  moe.shared_ffn = keys.provides("shared_expert_intermediate_size")
                       ? keys.count_or("shared_expert_intermediate_size", 0)
                       : checked_multiply(keys.count_or(shared, 1), moe.ffn);
  moe.normalized = keys.flag_or(keys.provides("moe_renormalize") ? "moe_renormalize" : "norm_topk_prob", false);
  check_choice(keys, "scoring_func", moe.sigmoid ? "sigmoid" : "softmax");
  const std::int64_t first =
      keys.count_or(keys.provides("num_dense_layers") ? "num_dense_layers" : "first_k_dense_replace", 0);
  const std::int64_t every = keys.size_or({"moe_layer_freq"}, 1);
  const std::vector<bool> listed = listed_dense(keys, dims);
  list_dense_layers(dims, [&](std::int64_t i) { return listed.empty() ? i < first || i % every != 0 : listed[at(i)]; });
  if (keys.find({"num_nextn_predict_layers"}) != nullptr) keys.comment("layers of multi-token prediction are left out");
}

void read_spread_experts(KeyReader& keys, ModelDims& dims) {
  check_layer_count(keys, dims);
  read_counts(keys, dims);
  dims.moe.ffn = keys.size({"moe_intermediate_size"});
  dims.moe.shared_ffn = checked_multiply(keys.count_or("moe_num_shared_experts", 2), dims.moe.ffn);
  const std::int64_t first = keys.count_or("moe_layer_start_index", 1);
  const ConfigNode* end = keys.find({"moe_layer_end_index"});
  const std::int64_t last = end == nullptr ? -1 : end->as_int(-1, kLargestHfSize);
  const std::int64_t every = keys.size_or({"moe_layer_interval"}, 1);
  list_dense_layers(dims, [&](std::int64_t i) { return (i + 1) % every != 0 || i < first || (last >= 0 && i > last); });
}

void read_listed_experts(KeyReader& keys, ModelDims& dims) {
  check_layer_count(keys, dims);
  read_counts(keys, dims);
  Experts& moe = dims.moe;
  moe.ffn = dims.ffn;
  moe.shared_ffn = checked_multiply(keys.count_or("num_shared_experts", 0), moe.ffn);
  dims.ffn = keys.size_or({"prefix_dense_intermediate_size"}, dims.ffn);
  moe.sigmoid = keys.one_of("expert_selection_fn", "softmax", "choice", {"softmax", "sigmoid"}) == "sigmoid";
  moe.normalized = keys.flag_or("norm_topk_prob", true) && moe.sigmoid;
  const std::vector<bool> listed = listed_dense(keys, dims);
  list_dense_layers(dims, [&](std::int64_t i) { return !listed.empty() && listed[at(i)]; });
}

void read_experts_beside(KeyReader& keys, ModelDims& dims) {
  check_layer_count(keys, dims);
  read_counts(keys, dims);
  dims.moe.ffn = keys.size({"moe_intermediate_size"});
}

void read_interleaved_experts(KeyReader& keys, ModelDims& dims) {
  check_layer_count(keys, dims);
  read_counts(keys, dims);
  dims.moe.ffn = dims.moe.shared_ffn = dims.ffn;  // intermediate_size is the experts'
  dims.ffn = keys.size_or({"intermediate_size_mlp"}, 16384);
  const std::int64_t step = keys.size_or({"interleave_moe_layer_step"}, 1);
  const bool listed = keys.node().has("moe_layers") && !keys.node().at("moe_layers").is_null();
  const std::vector<std::int64_t> named = named_layers(keys, "moe_layers", dims);
  list_dense_layers(dims, [&](std::int64_t i) { return listed ? !contains(named, i) : (i + 1) % step != 0; });
}

void read_latent(KeyReader& keys, const HfFamily& family, ModelDims& dims) {
  read_common(keys, dims);
  check_layer_count(keys, dims);
  read_ranks(keys, dims);
  dims.kv_heads = keys.size_or({"num_key_value_heads"}, dims.heads);
  if (dims.kv_heads != dims.heads) {
    keys.refuse(
        "num_key_value_heads", "latent attention has keys and values of every head", std::to_string(dims.heads));
  }
  dims.ffn = keys.size({"intermediate_size"});
  dims.max_positions = keys.size_or({"max_position_embeddings", "model_max_length"}, 2048);
  dims.tied = keys.flag_or("tie_word_embeddings", false);
  dims.qkv_bias = dims.output_bias = keys.flag_or("attention_bias", false);
  read_numerics(keys, dims);
  keys.one_of("hidden_act", "silu", "activation", {"silu"});
  if (contains(family.reads, "late_experts")) read_late_experts(keys, dims);
  if (keys.provides("index_n_heads")) read_index(keys, dims);
}

}
