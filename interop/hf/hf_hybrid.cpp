// Decoders whose layers are of several kinds (HfFamily::reads):
//
//   layers_of_kinds   hybrid_override_pattern, or a list of layers_block_type: each layer has a
//   mixer,
//                     attention, a feed-forward layer or experts (nemotron_h)
//   mixers_alone      a mixer in every layer, whose heads are num_heads (mamba2)
//   mixers_in_blocks  a mixer or attention in each block: layer_types, or attn_layer_indices
//   (bamba,
//                     granitemoehybrid)
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "interop/hf/hf_readers.h"
#include "sim/base/error.h"

namespace foreshard {
namespace {

bool has(std::string_view words, std::string_view word) {
  return (" " + std::string(words) + " ").find(" " + std::string(word) + " ") != std::string::npos;
}

char letter_of(const ConfigNode& type) {
  constexpr std::pair<std::string_view, char> kTypes[] = {
      {"mamba", 'M'},     {"linear_attention", 'M'},
      {"attention", '*'}, {"full_attention", '*'},
      {"mlp", '-'},       {"moe", 'E'}};
  const std::string word = type.as_string();
  for (const auto& [name, letter] : kTypes) {
    if (word == name) return letter;
  }
  throw type.error("layers of type \"" + word + "\" are not supported",
                   "mamba, attention, mlp or moe");
}

// Letters of the layers that the file lists; empty: it does not.
std::string listed(KeyReader& keys) {
  std::string letters;
  if (const ConfigNode* list = keys.find({"layers_block_type", "layer_types"})) {
    for (const ConfigNode& type : list->elements()) letters += letter_of(type);
  } else if (const ConfigNode* pattern = keys.find({"hybrid_override_pattern"})) {
    letters = pattern->as_string();
    if (letters.find_first_not_of("M*-E") != std::string::npos) {
      throw pattern->error("a layer that is not known", "letters of M, *, - and E");
    }
  }
  return letters;
}

// A mixer or attention in each block.
std::string blocks(KeyReader& keys, const ModelDims& dims) {
  std::string letters = listed(keys);
  if (letters.empty()) {
    letters.assign(static_cast<std::size_t>(dims.layers), 'M');
    if (const ConfigNode* attends = keys.find({"attn_layer_indices"})) {
      for (const ConfigNode& layer : attends->elements()) {
        letters[static_cast<std::size_t>(layer.as_int(0, dims.layers - 1))] = '*';
      }
    }
  }
  for (char& letter : letters) letter = letter == 'M' ? 'm' : 'a';
  return letters;
}

// `expanded` heads share the inner width where their own is "auto".
std::int64_t head_dim_of(KeyReader& keys, const ModelDims& dims, std::int64_t heads) {
  const ConfigNode* value = keys.find({"mamba_d_head", "mamba_head_dim"});
  if (value != nullptr && value->text() != "auto") return value->as_int(1, kLargestHfSize);
  if (value == nullptr && keys.provides("mamba_head_dim")) return keys.size({"mamba_head_dim"});
  return keys.size_or({"mamba_expand", "expand"}, 2) * dims.hidden /
         std::max<std::int64_t>(1, heads);
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

}  // namespace

bool is_hybrid(const HfFamily& family) {
  return has(family.reads, "layers_of_kinds") || has(family.reads, "mixers_alone") ||
         has(family.reads, "mixers_in_blocks");
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
      throw keys.node().error(
          "neither layers_block_type nor hybrid_override_pattern says what the "
          "layers are",
          "hybrid_override_pattern, for example \"M-M*-\"");
    }
    dims.layers = std::ssize(dims.pattern);
    keys.one_of("mlp_hidden_act", "relu2", "activation", {"relu2"});
    if (dims.pattern.find('E') != std::string::npos) read_latent_experts(keys, dims);
    if (keys.count_or("num_nextn_predict_layers", 0) > 0) {
      keys.comment("layers of multi-token prediction are left out");
    }
  } else if (has(family.reads, "mixers_alone")) {
    dims.pattern.assign(static_cast<std::size_t>(dims.layers), 'M');
  } else {
    dims.pattern = blocks(keys, dims);
    if (std::ssize(dims.pattern) != dims.layers) {
      keys.refuse("layer_types", "there are " + std::to_string(dims.layers) + " layers");
    }
    if (keys.word_or("position_embedding_type", "rope") == "rope" &&
        keys.provides("position_embedding_type")) {
      dims.positions = Positions::kRotary;
    }
  }
  ScanShape& scan = dims.mamba.scan;
  const bool alone = has(family.reads, "mixers_alone");
  scan.heads = alone ? dims.heads : keys.size({"mamba_num_heads", "mamba_n_heads"});
  scan.head_dim = alone ? dims.head_dim : head_dim_of(keys, dims, scan.heads);
  scan.state = keys.size({"ssm_state_size", "state_size", "mamba_d_state"});
  scan.groups = keys.size_or({"n_groups", "mamba_n_groups"}, 1);
  scan.chunk = keys.size_or({"chunk_size", "mamba_chunk_size"}, 256);
  dims.mamba.convolution = keys.size_or({"conv_kernel", "mamba_d_conv"}, 4);
  dims.mamba.bias = keys.flag_or(
      alone || !keys.node().has("mamba_proj_bias") ? "use_bias" : "mamba_proj_bias", false);
}

}  // namespace foreshard
