// Decoders whose layers are of several kinds (HfFamily::reads):
//
//   layers_of_kinds   hybrid_override_pattern, or a list of layers_block_type: each layer has a
//   mixer,
//                     attention, a feed-forward layer or experts (nemotron_h)
//   mixers_alone      a mixer in every layer, whose heads are num_heads (mamba2)
//   mixers_in_blocks  a mixer or attention in each block: layer_types, or attn_layer_indices
//   (bamba,
//                     granitemoehybrid)
//   convolutions_in_blocks   a short convolution or attention in each block: layer_types, or
//                     full_attn_idxs (lfm2)
//   delta_in_blocks   linear attention by the delta rule or attention in each block: layer_types,
//   or
//                     attention in every full_attention_interval-th (qwen3_next)
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "interop/hf/hf_readers.h"
#include "sim/base/lookup.h"

namespace foreshard {
namespace {

bool has(std::string_view words, std::string_view word) {
  return (" " + std::string(words) + " ").find(" " + std::string(word) + " ") != std::string::npos;
}

char letter_of(const ConfigNode& type) {
  constexpr std::pair<std::string_view, char> kTypes[] = {{"mamba", 'M'}, {"linear_attention", 'M'}, {"attention", '*'},
      {"full_attention", '*'}, {"mlp", '-'}, {"moe", 'E'}, {"conv", 'c'}};
  const std::string word = type.as_string();
  for (const auto& [name, letter] : kTypes)
    if (word == name) return letter;
  throw type.error("layers of type \"" + word + "\" are not supported", "mamba, attention, mlp or moe");
}

// Letters of the layers that the file lists; empty: it does not.
std::string listed(KeyReader& keys) {
  std::string letters;
  if (const ConfigNode* list = keys.find({"layers_block_type", "layer_types"})) {
    for (const ConfigNode& type : list->elements()) letters += letter_of(type);
  } else if (const ConfigNode* pattern = keys.find({"hybrid_override_pattern"})) {
    letters = pattern->as_string();
    if (letters.find_first_not_of("M*-E") != std::string::npos)
      throw pattern->error("a layer that is not known", "letters of M, *, - and E");
  }
  return letters;
}

// A mixer or attention in each block.
std::string blocks(KeyReader& keys, const ModelDims& dims) {
  std::string letters = listed(keys);
  if (letters.empty()) {
    letters.assign(at(dims.layers), 'M');
    if (const ConfigNode* attends = keys.find({"attn_layer_indices"}))
      for (const ConfigNode& layer : attends->elements()) letters[at(layer.as_int(0, dims.layers - 1))] = '*';
  }
  for (char& letter : letters) letter = letter == 'M' ? 'm' : 'a';
  return letters;
}

// A short convolution or attention in each block; all attend where nothing says which.
void read_convolutions(KeyReader& keys, ModelDims& dims) {
  dims.pattern = listed(keys);
  if (dims.pattern.empty()) {
    const ConfigNode* attends = keys.find({"full_attn_idxs"});
    dims.pattern.assign(at(dims.layers), attends == nullptr ? '*' : 'c');
    for (const ConfigNode& layer : attends == nullptr ? std::vector<ConfigNode>() : attends->elements())
      dims.pattern[at(layer.as_int(0, dims.layers - 1))] = '*';
  }
  for (char& letter : dims.pattern) letter = letter == 'c' ? 'c' : 'a';
  dims.convolution.positions = keys.size_or({"conv_L_cache"}, 3);
  dims.convolution.bias = keys.flag_or("conv_bias", false);
  // (int(2 * size / 3), times a factor, up to a multiple.)
  if (!keys.provides("block_auto_adjust_ff_dim")) return;
  if (!keys.flag_or("block_auto_adjust_ff_dim", true)) return;
  const auto scaled =
      static_cast<std::int64_t>(keys.number_or("block_ffn_dim_multiplier", 1) * static_cast<double>(2 * dims.ffn / 3));
  const std::int64_t step = keys.size_or({"block_multiple_of"}, 256);
  dims.ffn = (scaled + step - 1) / step * step;
}

// Linear attention by the delta rule or attention in each block.
void read_delta(KeyReader& keys, ModelDims& dims) {
  std::string letters = listed(keys);
  const ConfigNode* nested = keys.find({"linear_attn_config"});  // as Kimi Linear was published
  if (nested != nullptr && letters.empty()) {
    letters.assign(at(dims.layers), 'M');
    for (const ConfigNode& layer : nested->at("full_attn_layers").elements())
      letters[at(layer.as_int(1, dims.layers) - 1)] = '*';
  }
  if (letters.empty()) {
    check_layer_count(keys, dims);
    const std::int64_t every = keys.size_or({"full_attention_interval"}, 4);
    for (std::int64_t i = 1; i <= dims.layers; ++i) letters += i % every == 0 ? '*' : 'M';
  }
  dims.pattern.clear();
  for (const char letter : letters) dims.pattern += letter == 'M' ? 'd' : 'a';
  const ConfigNode* rope = keys.node().find("rope_parameters");
  if (rope != nullptr && rope->is_null()) dims.positions = Positions::kNone;
  ScanShape& scan = dims.delta.scan;
  scan.chunk = 64;  // flash-linear-attention's
  if (nested != nullptr) {
    scan.heads = scan.groups = nested->at("num_heads").as_int(1, kLargestHfSize);
    scan.head_dim = scan.state = nested->at("head_dim").as_int(1, kLargestHfSize);
    dims.delta.convolution = nested->at("short_conv_kernel_size").as_int(1, kLargestHfSize);
    return;
  }
  dims.delta.convolution = keys.size_or({"linear_conv_kernel_dim"}, 4);
  if (dims.delta.projections == DeltaRule::Projections::kLowRank) {
    scan.heads = scan.groups = keys.size({"linear_num_heads"});
    scan.head_dim = scan.state = keys.size({"linear_head_dim"});
    return;
  }
  scan.heads = keys.size({"linear_num_value_heads"});
  scan.head_dim = keys.size({"linear_value_head_dim"});
  scan.groups = keys.size({"linear_num_key_heads"});
  scan.state = keys.size({"linear_key_head_dim"});
  if (keys.provides("linear_allow_neg_eigval")) dims.delta.doubled = keys.flag_or("linear_allow_neg_eigval", true);
}

// `expanded` heads share the inner width where their own is "auto".
std::int64_t head_dim_of(KeyReader& keys, const ModelDims& dims, std::int64_t heads) {
  const ConfigNode* value = keys.find({"mamba_d_head", "mamba_head_dim"});
  if (value != nullptr && value->text() != "auto") return value->as_int(1, kLargestHfSize);
  if (value == nullptr && keys.provides("mamba_head_dim")) return keys.size({"mamba_head_dim"});
  return keys.size_or({"mamba_expand", "expand"}, 2) * dims.hidden / std::max<std::int64_t>(1, heads);
}

void check_layers(KeyReader& keys, const ModelDims& dims) {
  if (std::ssize(dims.pattern) == dims.layers) return;
  keys.refuse("layer_types", "there are " + std::to_string(dims.layers) + " layers");
}

void read_latent_experts(KeyReader& keys, ModelDims& dims) {
  Experts& moe = dims.moe;
  moe.experts = keys.size({"n_routed_experts"});
  moe.top_k = keys.size({"num_experts_per_tok"});
  moe.ffn = keys.size({"moe_intermediate_size"});
  moe.shared_ffn = keys.count_or("moe_shared_expert_intermediate_size", 0);
  moe.normalized = keys.flag_or("norm_topk_prob", true);
  moe.latent = keys.count_or("moe_latent_size", 0);
}

}

bool is_hybrid(const HfFamily& family) {
  return has(family.reads, "layers_of_kinds") || has(family.reads, "mixers_alone") ||
         has(family.reads, "mixers_in_blocks") || has(family.reads, "delta_in_blocks") ||
         has(family.reads, "convolutions_in_blocks");
}

void provide_layers(KeyReader& keys, const HfFamily& family) {
  if (!has(family.reads, "layers_of_kinds")) return;
  const std::string letters = listed(keys);
  if (!letters.empty()) keys.provide("num_hidden_layers=" + std::to_string(letters.size()));
}

void read_hybrid(KeyReader& keys, const HfFamily& family, ModelDims& dims) {
  if (has(family.reads, "layers_of_kinds")) {
    dims.pattern = listed(keys);
    if (dims.pattern.empty()) {
      throw keys.node().error("neither layers_block_type nor hybrid_override_pattern says what the layers are",
          "hybrid_override_pattern, for example \"M-M*-\"");
    }
    dims.layers = std::ssize(dims.pattern);
    keys.one_of("mlp_hidden_act", "relu2", "activation", {"relu2"});
    if (contains(dims.pattern, 'E')) read_latent_experts(keys, dims);
    if (keys.count_or("num_nextn_predict_layers", 0) > 0) keys.comment("layers of multi-token prediction are left out");
  } else if (has(family.reads, "convolutions_in_blocks")) {
    read_convolutions(keys, dims);
    return check_layers(keys, dims);
  } else if (has(family.reads, "delta_in_blocks")) {
    read_delta(keys, dims);
    return check_layers(keys, dims);
  } else if (has(family.reads, "mixers_alone")) {
    dims.pattern.assign(at(dims.layers), 'M');
  } else {
    dims.pattern = blocks(keys, dims);
    check_layers(keys, dims);
    if (keys.word_or("position_embedding_type", "rope") == "rope" && keys.provides("position_embedding_type"))
      dims.positions = Positions::kRotary;
  }
  ScanShape& scan = dims.mamba.scan;
  const bool alone = has(family.reads, "mixers_alone");
  scan.heads = alone ? dims.heads : keys.size({"mamba_num_heads", "mamba_n_heads"});
  scan.head_dim = alone ? dims.head_dim : head_dim_of(keys, dims, scan.heads);
  scan.state = keys.size({"ssm_state_size", "state_size", "mamba_d_state"});
  scan.groups = keys.size_or({"n_groups", "mamba_n_groups"}, 1);
  scan.chunk = keys.size_or({"chunk_size", "mamba_chunk_size"}, 256);
  dims.mamba.convolution = keys.size_or({"conv_kernel", "mamba_d_conv"}, 4);
  dims.mamba.bias = keys.flag_or(alone || !keys.node().has("mamba_proj_bias") ? "use_bias" : "mamba_proj_bias", false);
}

}
