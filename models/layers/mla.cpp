// Operation order of torchtitan's models/deepseek_v3 (Attention.forward): queries from a normed latent (or straight
// from the hidden state), split into a plain and a rotated part and put together again; keys and values from one latent
// with the shared rotated part of the keys beside it, which is repeated for every head when the keys are put together.
//
// The attention has keys wider than its values. PyTorch's flash backend takes equal widths only, so cuDNN's or the
// memory-efficient kernel runs; what they keep is of flash's kind (q, k, v, output, logsumexp).
#include "models/layers/block_parts.h"

namespace foreshard {

namespace {

// What scores positions for attention to the best of them; nothing learns it. The scores
// themselves are pairs of positions (attention_kernels.cpp).
void project_index(LayerBuilder& layer, const ModelDims& dims, const ParameterNames& names, Index input, Index latent) {
  const BlockParts& parts = dims.parts;
  const auto fixed = [&](std::size_t parameters) {
    layer.last().gradient = GradientRule::kNone;
    layer.last().saved = {};
    layer.fix_last_parameters(parameters);
  };
  const auto project = [&](std::string_view module, std::string_view result, std::int64_t n, Index from) {
    const std::string name = std::string(names.index).append(module);
    const Index made = layer.linear({.name = name, .result = result, .n = n, .k = layer.width(from)}, from);
    fixed(1);
    return made;
  };
  project(".wq_b", kIndexQueries, parts.index_heads * parts.index_dim, latent);
  const Index keys = project(".wk", "index_keys_raw", parts.index_dim, input);
  layer.norm(std::string(names.index) + ".k_norm", kIndexKeys, NormKind::kLayer, parts.index_dim, keys);
  fixed(2);
  layer.release({keys});
  project(".weights_proj", kIndexWeights, parts.index_heads, input);
}

}

Index attend_latent(LayerBuilder& layer, const ModelDims& dims, const ParameterNames& names, Index input) {
  const Latent& latent = dims.latent;
  const std::int64_t heads = dims.heads;
  const auto project = [&](std::string_view module, std::string_view result, std::int64_t n, Index from) {
    return layer.linear(
        {.name = module, .result = result, .n = n, .k = layer.width(from), .bias = dims.qkv_bias}, from);
  };
  const auto plain = [&](std::string_view module, std::string_view result, std::int64_t n, Index from) {
    return layer.linear({.name = module, .result = result, .n = n, .k = layer.width(from)}, from);
  };
  const std::int64_t q_width = heads * (latent.nope + latent.rope);
  Index q = 0, q_latent = input;
  if (latent.q_rank > 0) {
    const Index low = project(names.q_a, "q_latent", latent.q_rank, input);
    const Index normed = layer.norm(names.q_a_norm, "q_latent_norm", dims.norm, latent.q_rank, low);
    q = plain(names.q_b, "q", q_width, normed);
    q_latent = normed;
  } else {
    q = plain(names.q, "q", q_width, input);
  }
  const bool turns = dims.positions == Positions::kRotary;
  Index query = q;
  const auto turn = [&] {
    const Index q_nope = layer.activation("q_nope", heads * latent.nope);
    const Index q_rope = layer.activation("q_rope", heads * latent.rope);
    layer.split("q_split", q, {q_nope, q_rope});
    const Index q_turned = rotary(layer, {"q", heads * latent.rope, latent.rope}, q_rope);
    query = layer.concatenate("q_whole", {q_nope, q_turned});
    layer.release({q, q_rope});
    layer.hold({q_nope, q_turned});
  };
  if (turns) turn();

  const Index low = project(names.kv_a, "kv_latent", latent.kv_rank + latent.rope, input);
  const Index kv_low = layer.activation("kv_low", latent.kv_rank);
  const Index k_rope = layer.activation("k_rope", latent.rope);
  layer.split("kv_split", low, {kv_low, k_rope});
  layer.release({low});
  const Index k_turned = turns ? rotary(layer, {"k", latent.rope, latent.rope}, k_rope) : k_rope;
  if (turns) layer.release({k_rope});
  const Index normed = layer.norm(names.kv_a_norm, "kv_low_norm", dims.norm, latent.kv_rank, kv_low);
  const Index kv = plain(names.kv_b, "kv", heads * (latent.nope + latent.value), normed);
  layer.release({normed, kv_low});
  const Index k_nope = layer.activation("k_nope", heads * latent.nope);
  const Index v = layer.activation("v", heads * latent.value);
  layer.split("k_v_split", kv, {k_nope, v});
  // The shared part is expanded to every head, which only the copy below writes out.
  const Index expanded = layer.activation("k_rope_of_heads", heads * latent.rope);
  layer.split("k_rope_expand", k_turned, {expanded});
  const Index key = layer.concatenate("k_whole", {k_nope, expanded});
  layer.release({expanded});
  layer.hold({kv, k_turned, k_nope});
  if (dims.parts.index_heads > 0) project_index(layer, dims, names, input, q_latent);
  const AttentionShape shape = {.heads = heads,
      .kv_heads = heads,
      .head_dim = latent.nope + latent.rope,
      .causal = !dims.bidirectional,
      .value_dim = latent.value};
  return fused_attention(layer, dims, shape, {query, key, v});
}

}
