// Rotary decoders, dense or of experts: what all have, then the words of the family's row (HfFamily::reads):
//
//   attention_bias    biases of q, k, v and o; qkv_bias: the same key, without o;
//                     use_qkv_bias, attention_out_bias, mlp_bias, use_bias (all): keys of that name
//   window            attention within sliding_window in every layer: it bounds the sequence
//   window_if_named   ... where the key is there; window_if_used: where use_sliding_window or
//                     layer_types say so
//   window_in_some    the layers that layer_types, or the pattern, say attend within
//                     sliding_window, or within chunks of attention_chunk_size
//   all_seen_first    ... the first of each pattern attends to all, not the last
//   chunks_where_rotated   without layer_types, chunks are where positions are
//   unrotated         no_rope_layers, no_rope_layer_interval: layers without positions
//   rotary_in_windows layers that attend to all have no positions; rotary_by_type: layers of a type
//                     whose rope_parameters are null
//   experts           as wide as intermediate_size, in every layer; sparse_experts: Qwen's keys;
//                     late_experts: DeepSeek's; spread_experts: ERNIE's; interleaved_experts: Llama
//                     4's
//   listed_experts    Cohere's; enable_moe_block: Gemma 4's
//   shared_as_wide    beside them one that all tokens go through, as wide as they are;
//                     shared_intermediate_size: as wide as that key says
//   softcap, partial_rotary, multipliers, use_qk_norm, qk_layernorm, parallel_residual,
//   norm_topk_prob, lm_head_bias, use_post_norm
//   head_use_bias     use_bias is the head's, too; head_mlp_bias: mlp_bias
//   layer_rope_theta  layers whose angle is 0 have no positions
//   mup_enabled       scales the embeddings
//   gating            of attention's output, for each head or element;
//   num_attention_heads_per_layer
//                     are the same, and layers within a window rotate a part of their own
//   full_heads        layers that attend to all have heads of global_head_dim,
//   num_global_key_value_
//                     heads (per_layer_config), and keys for values where attention_k_eq_v says so
//   floor_heads       heads need not divide the hidden size
//   plain_heads       a qk_layernorm is refused
//   masked_head       an encoder's, with biases of its own keys; windows of local_attention reach
//                     half of it to either side
#include <algorithm>
#include <string>

#include "interop/hf/hf_families.h"
#include "interop/hf/hf_readers.h"

namespace foreshard {
namespace {

class FamilyWords {
 public:
  explicit FamilyWords(std::string_view words) : words_(words) {}
  bool has(std::string_view word) const {
    for (std::size_t at = words_.find(word); at != std::string_view::npos; at = words_.find(word, at + 1)) {
      const std::size_t end = at + word.size();
      const bool begins = at == 0 || words_[at - 1] == ' ';
      if (begins && (end == words_.size() || words_[end] == ' ')) return true;
    }
    return false;
  }

 private:
  std::string_view words_;
};

// A dense model_type with experts is another model.
void refuse_experts(KeyReader& keys) {
  for (const std::string_view key : {"num_local_experts", "num_experts", "n_routed_experts"}) {
    const ConfigNode* value = keys.find({key});
    if (value != nullptr && value->as_int(0, kLargestHfSize) > 1) {
      throw value->error("mixtures of experts are not supported in a dense model_type",
          "mixtral, qwen2_moe, qwen3_moe, deepseek_v2 or deepseek_v3");
    }
  }
}

void read_heads(KeyReader& keys, const FamilyWords& words, ModelDims& dims) {
  // Null is stored by configurations that leave a size to the reader.
  const bool null_dim = keys.node().has("head_dim"), null_kv = keys.node().has("num_key_value_heads");
  if (const ConfigNode* value = keys.find({"head_dim", "attention_head_dim"})) {
    dims.head_dim = value->as_int(1, kLargestHfSize);
  } else if (!null_dim && keys.provides("head_dim")) {
    dims.head_dim = keys.size({"head_dim"});
  } else {
    dims.head_dim =
        words.has("floor_heads") ? std::max<std::int64_t>(1, dims.hidden / dims.heads) : even_head_dim(keys, dims);
    keys.assume("head_dim", std::to_string(dims.head_dim));
  }
  if (const ConfigNode* value = keys.find({"num_key_value_heads", "num_kv_heads"})) {
    dims.kv_heads = value->as_int(1, kLargestHfSize);
  } else if (!null_kv && keys.provides("num_key_value_heads")) {
    dims.kv_heads = keys.size({"num_key_value_heads"});
  } else {
    dims.kv_heads = dims.heads;
    keys.assume("num_key_value_heads", std::to_string(dims.heads));
  }
  check_kv_heads(keys, dims);
}

void read_activation(KeyReader& keys, ModelDims& dims) {
  const bool squared = dims.activation == Activation::kRelu2 || dims.activation == Activation::kReGlu2;
  const bool xielu = dims.activation == Activation::kXielu;
  const bool gelu = dims.activation != Activation::kSwiGlu && !squared && !xielu;
  std::string_view key = keys.node().has("activation_function") ? "activation_function" : "hidden_act";
  if (dims.activation == Activation::kGeGlu) {
    keys.find({"hidden_act"});  // hidden_activation comes before it
    key = "hidden_activation";
  }
  const char* usual = gelu ? "gelu_pytorch_tanh" : squared ? "relu2" : xielu ? "xielu" : "silu";
  const std::string word = keys.word_or(key, usual);
  if (gelu && read_gelu(word, dims)) return;
  if (!gelu && (word == usual || (!squared && !xielu && word == "swish"))) return;
  keys.refuse(key, "activation \"" + word + "\" is not supported", usual);
}

void read_biases(KeyReader& keys, const FamilyWords& words, ModelDims& dims) {
  if (words.has("attention_bias")) dims.qkv_bias = dims.output_bias = keys.flag_or("attention_bias", false);
  if (words.has("qkv_bias")) dims.qkv_bias = keys.flag_or("attention_bias", false);
  if (words.has("use_qkv_bias")) dims.qkv_bias = keys.flag_or("use_qkv_bias", false);
  if (words.has("attention_out_bias")) dims.output_bias = keys.flag_or("attention_out_bias", false);
  if (words.has("mlp_bias")) dims.mlp_bias = keys.flag_or("mlp_bias", false);
  if (words.has("use_bias")) dims.qkv_bias = dims.output_bias = dims.mlp_bias = keys.flag_or("use_bias", false);
}

constexpr std::string_view kFull = "full_attention", kSliding = "sliding_attention", kChunked = "chunked_attention";

// layer_types, which must be of the known words and, where `layers` counts, one for each layer.
std::vector<std::string> layer_types(KeyReader& keys) {
  std::vector<std::string> result;
  const ConfigNode* types = keys.find({"layer_types"});
  if (types == nullptr) return result;
  for (const ConfigNode& type : types->elements()) {
    const std::string word = type.as_string();
    if (word != kFull && word != kSliding && word != kChunked) {
      throw type.error("layers of type \"" + word + "\" are not supported",
          "full_attention, sliding_attention or chunked_attention");
    }
    result.push_back(word);
  }
  return result;
}

// What the class makes of a pattern, "LLLG" or every how many layers one attends to all; empty: there is none.
std::vector<std::string> types_of_pattern(KeyReader& keys, bool all_first, const ModelDims& dims) {
  std::vector<std::string> types;
  const KeyReader::Spellings kKeys = {
      "sliding_window_pattern", "_sliding_window_pattern", "global_attn_every_n_layers"};
  const ConfigNode* value = keys.find(kKeys);
  if (value == nullptr && keys.provides("max_window_layers")) {
    const std::int64_t first = keys.count_or("max_window_layers", dims.layers);
    for (std::int64_t i = 0; i < dims.layers; ++i) types.emplace_back(i < first ? kFull : kSliding);
    return types;
  }
  if (value == nullptr && !keys.provides("sliding_window_pattern")) return types;
  const std::string text = value != nullptr ? std::string(value->text()) : "";
  if (text.find_first_not_of("LG") == std::string::npos && !text.empty()) {
    for (std::int64_t i = 0; i < dims.layers; ++i) {
      const char letter = text[static_cast<std::size_t>(i) % text.size()];
      types.emplace_back(letter == 'L' ? kSliding : kFull);
    }
    return types;
  }
  const std::int64_t every = keys.size_or(kKeys, 1);
  for (std::int64_t i = 0; i < dims.layers; ++i)
    types.emplace_back((all_first ? i : i + 1) % every != 0 ? kSliding : kFull);
  return types;
}

// Of those that the file does not list.
std::vector<std::string> usual_types(KeyReader& keys, const FamilyWords& words, const ModelDims& dims) {
  check_layer_count(keys, dims);
  const ConfigNode* window = keys.node().find("sliding_window");
  if (window != nullptr && window->is_null()) return {};
  if (!words.has("chunks_where_rotated")) return types_of_pattern(keys, words.has("all_seen_first"), dims);
  std::vector<std::string> types(static_cast<std::size_t>(dims.layers), std::string(kChunked));
  for (const std::int64_t layer : dims.unrotated_layers) types[static_cast<std::size_t>(layer)] = kFull;
  return types;
}

// The length of a window: of the file, else the class's; 0: null in the file, or none.
std::int64_t window_of(KeyReader& keys) {
  if (keys.provides("local_attention")) return keys.size({"local_attention"}) / 2;
  for (const std::string_view key : {"sliding_window", "attention_chunk_size"}) {
    if (const ConfigNode* value = keys.find({key})) return value->as_int(1, kLargestHfSize);
    if (!keys.node().has(key) && keys.provides(key)) return keys.size({key});
  }
  return 0;
}

void read_windows(KeyReader& keys, const FamilyWords& words, ModelDims& dims) {
  std::vector<std::string> types = layer_types(keys);
  if (words.has("window_in_some") && types.empty()) types = usual_types(keys, words, dims);
  if (words.has("window_if_used") && types.empty() && keys.flag_or("use_sliding_window", false)) {
    check_layer_count(keys, dims);
    const std::int64_t first = keys.count_or("max_window_layers", 28);
    for (std::int64_t i = 0; i < dims.layers; ++i) types.emplace_back(i < first ? kFull : kSliding);
  }
  if (words.has("full_heads") && std::ssize(types) >= dims.layers)  // as Gemma 4's class does
    types[static_cast<std::size_t>(dims.layers - 1)] = kFull;
  const bool any = std::ranges::any_of(
      types, [](const std::string& type) { return type != kFull; });
  const auto each_of = [&](auto is_meant, std::vector<std::int64_t>& layers) {
    for (std::size_t i = 0; i < types.size() && i < static_cast<std::size_t>(dims.layers); ++i)
      if (is_meant(types[i])) layers.push_back(static_cast<std::int64_t>(i));
  };
  const bool named = keys.node().has("sliding_window");
  if (words.has("window_if_used")) {
    if (any) bound_by_window(keys, dims);
  } else if (words.has("window") || (words.has("window_if_named") && named)) {
    bound_by_window(keys, dims);
  } else if (words.has("window_in_some")) {
    const std::int64_t window = window_of(keys);
    if (any) dims.window = window;
  }
  if (any) each_of([](const std::string& type) { return type != kFull; }, dims.windowed_layers);
  if (words.has("rotary_by_type")) {  // rope_parameters of a type are null
    const ConfigNode* rope = keys.find({"rope_parameters"});
    each_of(
        [&](const std::string& type) {
          const ConfigNode* own = rope == nullptr ? nullptr : rope->find(type);
          return own != nullptr && own->is_null();
        },
        dims.unrotated_layers);
  }
  if (words.has("rotary_in_windows") && any)
    each_of([](const std::string& type) { return type == kFull; }, dims.unrotated_layers);
}

void read_unrotated(KeyReader& keys, ModelDims& dims) {
  check_layer_count(keys, dims);
  const std::int64_t interval = keys.size_or({"no_rope_layer_interval"}, 4);
  const ConfigNode* list = keys.find({"no_rope_layers"});
  const auto listed = list == nullptr ? std::size_t{0} : list->elements().size();
  // An empty list is stored by Llama 4's configurations for the class's own pattern.
  if (listed > 0 && listed < static_cast<std::size_t>(dims.layers)) {
    throw list->error(
        "there are " + std::to_string(dims.layers) + " layers", "a 1 (rotary) or 0 (none) for each layer");
  }
  for (std::int64_t i = 0; i < dims.layers; ++i) {
    const bool rotates =
        listed > 0 ? list->elements()[static_cast<std::size_t>(i)].as_int(0, 1) == 1 : (i + 1) % interval != 0;
    if (!rotates) dims.unrotated_layers.push_back(i);
  }
}

void read_head_norms(KeyReader& keys, const FamilyWords& words, ModelDims& dims) {
  if (words.has("plain_heads")) keys.refuse_if_set("qk_layernorm", "norms of queries and keys are not supported");
  if (words.has("qk_layernorm") && !keys.flag_or("qk_layernorm", true)) dims.qk_norm = HeadNorm::kNone;
  if (!words.has("use_qk_norm")) return;
  const bool norms = keys.flag_or("use_qk_norm", false);
  if (!norms) dims.qk_norm = HeadNorm::kNone;
  // Cohere's norms have weights for each element of each head.
  const bool whole = dims.head_norm != NormKind::kRms;
  if (norms && dims.qk_norm == HeadNorm::kNone) dims.qk_norm = whole ? HeadNorm::kWhole : HeadNorm::kEach;
}

// Layers of angle 0.
void read_angles(KeyReader& keys, ModelDims& dims) {
  const ConfigNode* list = keys.find({"layer_rope_theta"});
  if (list == nullptr) return;
  std::int64_t layer = 0;
  for (const ConfigNode& angle : list->elements()) {
    if (angle.as_double(0, 1e12) == 0) dims.unrotated_layers.push_back(layer);
    ++layer;
  }
}

void read_gating(KeyReader& keys, const RopeKeys& rope, ModelDims& dims) {
  const ConfigNode* gating = keys.find({"gating"});
  const std::string_view word = gating == nullptr ? "true" : gating->text();
  if (word != "true" && word != "per-head" && word != "per-element")
    throw gating->error("\"" + std::string(word) + "\" is not supported", "true, per-head or per-element");
  dims.parts.gate_of_heads = word != "per-element";
  if (const ConfigNode* heads = keys.find({"num_attention_heads_per_layer"})) {
    for (const ConfigNode& each : heads->elements())
      if (each.as_int(1, kLargestHfSize) != dims.heads)
        throw each.error("layers with different numbers of heads are not supported", std::to_string(dims.heads));
  }
  if (!rope.windowed) return;
  dims.parts.windowed_rotary_dim = static_cast<std::int64_t>(*rope.windowed * static_cast<double>(dims.head_dim));
}

// Of layers that attend to all; per_layer_config of transformers 5.17 says the same for each.
void read_full_heads(KeyReader& keys, ModelDims& dims) {
  BlockParts& parts = dims.parts;
  parts.keys_are_values = keys.flag_or("attention_k_eq_v", false);
  parts.full_head_dim = keys.size_or({"global_head_dim"}, 512);
  if (const ConfigNode* heads = keys.find({"num_global_key_value_heads"})) {
    if (parts.keys_are_values) parts.full_kv_heads = heads->as_int(1, dims.heads);
  }
  if (const ConfigNode* layers = keys.find({"per_layer_config"})) {
    for (const ConfigItem& layer : layers->items()) {
      if (const ConfigNode* dim = layer.value.find("head_dim")) parts.full_head_dim = dim->as_int(1, kLargestHfSize);
      if (const ConfigNode* heads = layer.value.find("num_key_value_heads"))
        parts.full_kv_heads = heads->as_int(1, dims.heads);
    }
  }
  parts.layer_input = keys.count_or("hidden_size_per_layer_input", 0);
  if (parts.layer_input > 0) parts.layer_input_rows = keys.size_or({"vocab_size_per_layer_input"}, 262144);
  parts.shared_layers = keys.count_or("num_kv_shared_layers", 0);
  if (parts.shared_layers >= dims.layers)
    keys.refuse("num_kv_shared_layers", "no layer has keys of its own", "fewer than the layers");
  if (keys.flag_or("use_double_wide_mlp", false)) parts.shared_ffn_factor = 2;
  const std::int64_t kv_heads = parts.full_kv_heads > 0 ? parts.full_kv_heads : dims.kv_heads;
  if (dims.heads % kv_heads != 0)
    keys.refuse("num_global_key_value_heads", "they do not divide the heads", "a divisor of them");
}

// A multiplier of 1 is multiplied by as well, as transformers does.
void read_multipliers(KeyReader& keys) {
  for (const std::string_view key :
      {"embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling"})
    keys.number_or(key, 1);
}

void read_masked_head(KeyReader& keys, ModelDims& dims) {
  if (keys.flag_or("norm_bias", false)) dims.norm = NormKind::kLayer;
  dims.transform_bias = keys.flag_or("classifier_bias", false);
  dims.head_bias = keys.flag_or("decoder_bias", true);
  keys.refuse_if_set("sparse_prediction", "a head of the masked tokens alone is not supported");
  keys.one_of("classifier_activation", "gelu", "activation", {"gelu"});
}

void read_mixture(KeyReader& keys, const FamilyWords& words, ModelDims& dims) {
  if (words.has("experts")) {
    read_plain_experts(keys, words.has("norm_topk_prob"), dims);
    if (words.has("shared_as_wide")) dims.moe.shared_ffn = dims.ffn;
    if (words.has("shared_intermediate_size")) dims.moe.shared_ffn = keys.count_or("shared_intermediate_size", 0);
    return;
  }
  if (words.has("sparse_experts")) return read_sparse_experts(keys, dims);
  if (words.has("late_experts")) return read_late_experts(keys, dims);
  if (words.has("enable_moe_block")) {
    if (keys.flag_or("enable_moe_block", false)) read_experts_beside(keys, dims);
    return;
  }
  if (words.has("listed_experts")) return read_listed_experts(keys, dims);
  if (words.has("spread_experts")) return read_spread_experts(keys, dims);
  if (words.has("interleaved_experts")) return read_interleaved_experts(keys, dims);
  refuse_experts(keys);
}

}

void read_decoder(KeyReader& keys, const HfFamily& family, ModelDims& dims) {
  const FamilyWords words(family.reads);
  provide_layers(keys, family);
  read_common(keys, dims);
  read_heads(keys, words, dims);
  read_dropouts(keys, {}, dims);
  dims.ffn = keys.size({"block_ff_dim", "intermediate_size", "ffn_dim", "ffn_hidden_size"});
  dims.max_positions = keys.size_or({"max_position_embeddings", "n_positions"}, 2048);
  dims.tied = keys.flag_or("tie_word_embeddings", false);
  const RopeKeys rope = read_numerics(keys, dims);
  read_activation(keys, dims);
  read_biases(keys, words, dims);
  read_head_norms(keys, words, dims);
  if (words.has("partial_rotary")) {
    const ConfigNode* rotated = rope.partial ? nullptr : keys.find({"rotary_dim"});
    read_rotary_part(keys, rope.partial, dims);
    if (rotated != nullptr) dims.rotary_dim = rotated->as_int(1, dims.head_dim);
  }
  if (words.has("masked_head")) read_masked_head(keys, dims);
  if (words.has("layer_rope_theta")) read_angles(keys, dims);
  if (words.has("mup_enabled")) dims.embedding_scale = keys.flag_or("mup_enabled", false);
  if (words.has("gating")) read_gating(keys, rope, dims);
  if (words.has("full_heads")) read_full_heads(keys, dims);
  if (words.has("head_mlp_bias")) dims.head_bias = dims.mlp_bias;
  if (words.has("lm_head_bias")) dims.head_bias = keys.flag_or("lm_head_bias", false);
  if (words.has("head_use_bias")) dims.head_bias = keys.flag_or("use_bias", false);
  if (keys.find({"clip_qkv"}) != nullptr)
    keys.refuse("clip_qkv", "clamped queries, keys and values are not supported", "null");
  if (words.has("softcap")) {
    dims.logit_softcap = keys.finds_number("final_logit_softcapping");
    dims.attention_softcap = keys.finds_number("attn_logit_softcapping");
  }
  if (words.has("multipliers")) read_multipliers(keys);
  if (words.has("parallel_residual") && keys.flag_or("use_parallel_residual", false))
    dims.residual = Residual::kParallelOfOneNorm;
  if (words.has("use_post_norm") && !keys.flag_or("use_post_norm", true)) dims.residual = Residual::kPreNorm;
  if (words.has("unrotated")) read_unrotated(keys, dims);
  if (is_hybrid(family)) {
    read_hybrid(keys, family, dims);
    const bool mixes = words.has("experts") || words.has("sparse_experts") || words.has("late_experts");
    if (!mixes) return;
    if (words.has("experts") && keys.count_or("num_local_experts", 0) == 0) {
      dims.ffn = keys.size({"shared_intermediate_size"});
      return;
    }
  } else {
    read_windows(keys, words, dims);
  }
  read_mixture(keys, words, dims);
}

}
