// A decoder behind an encoder as transformers' modules execute it (models/t5/modeling_t5.py,
// models/bart/modeling_bart.py, 5.17): T5LayerSelfAttention, T5LayerCrossAttention and T5LayerFF, each a norm, its
// work, dropout and a sum. The first block of a stack looks the bias of positions up and adds it to its scores, and so
// do the others (attention_kernels.cpp makes the kernels of that).
//
// The decoder's sequences are as long as the encoder's. Every block of the decoder reads the
// encoder's result: the first joins it and holds it until its own backward, which is the last that
// needs it. In the others keys and values read what their queries read: as many bytes, saved
// already, and their gradients are added up as those of the encoder's result are.
#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

#include "models/layers/block_parts.h"
#include "models/layers/family_rows.h"
#include "sim/graph/layers/given_mask.h"

namespace foreshard {
namespace {

// What the family's code calls the parts of its blocks (transformers 5.17, models/FAMILY/).
struct Code {
  std::string_view family;
  std::string_view self = "self_attn", cross = "encoder_attn";
  std::string_view self_norm = "self_attn_layer_norm", cross_norm = "encoder_attn_layer_norm",
                   encoder_norm = "final_layer_norm", decoder_norm = "final_layer_norm";
  std::string_view suffix = "_proj", output = "out_proj";
  // Of a norm behind each stack, where blocks begin with theirs.
  std::string_view last_norm = "model.{}.layer_norm";
  bool drops_last = false;  // dropout behind the norm of each stack
};
constexpr Code t5_code(std::string_view family) {
  return {.family = family,
      .self = "layer.0.SelfAttention",
      .cross = "layer.1.EncDecAttention",
      .self_norm = "layer.0.layer_norm",
      .cross_norm = "layer.1.layer_norm",
      .encoder_norm = "layer.1.layer_norm",
      .decoder_norm = "layer.2.layer_norm",
      .suffix = "",
      .output = "o",
      .last_norm = "{}.final_layer_norm",
      .drops_last = true};
}
constexpr Code kCodes[] = {t5_code("t5"), t5_code("umt5")};

struct Attention {
  std::string module;  // "layer.0.SelfAttention"
  std::string name;    // of the operation
  Index states = 0;    // what keys and values read
  bool causal = false;
  bool has_table = false;  // of the bias
};

// A row of all heads for each pair of positions, by its bucket. (Per position here, of which
// attention_kernels.cpp makes pairs: only a plan has a sequence.)
Index position_bias(LayerBuilder& layer, const ModelDims& dims, const std::string& module) {
  const Index buckets = layer.tensor({.name = "position_buckets", .per_position = 1, .type = ElementType::kInt64});
  layer.constant("position_bucket", Function::kArange, {}, buckets);
  const Index bias = layer.tensor({.name = "position_bias", .per_position = dims.heads});
  const std::string table = module + ".relative_attention_bias";
  layer.look_up(table, {buckets}, bias, layer.parameter(table, ".weight", {dims.position_buckets, dims.heads}));
  return bias;
}

// Attention of `input`, with its projections; lets go of the input where it is a norm's.
Index attend(LayerBuilder& layer, const ModelDims& dims, const Attention& attention, Index input) {
  const Code code = row_of(kCodes, dims.family);
  const std::int64_t width = dims.heads * dims.head_dim;
  const auto project = [&](const char* which, Index from) {
    return layer.linear({.name = fmt::format("{}.{}{}", attention.module, which, code.suffix),
                            .result = which,
                            .n = width,
                            .k = dims.hidden,
                            .bias = dims.qkv_bias},
        from);
  };
  const Index q = project("q", input);
  const Index k = project("k", attention.states), v = project("v", attention.states);
  Indices inputs = {q, k, v};
  if (attention.has_table) inputs.push_back(position_bias(layer, dims, attention.module));
  const AttentionShape shape = {.heads = dims.heads,
      .kv_heads = dims.heads,
      .head_dim = dims.head_dim,
      .causal = attention.causal,
      .dropout = dims.attention_dropout};
  const Index result = fused_attention(layer, dims, shape, inputs);
  layer.last().name = attention.name;
  const Index projected = layer.linear({.name = fmt::format("{}.{}", attention.module, code.output),
                                           .result = attention.name + "_projection",
                                           .n = dims.hidden,
                                           .k = width,
                                           .bias = dims.output_bias},
      result);
  inputs.push_back(result);
  if (dims.residual == Residual::kPreNorm) inputs.push_back(input);
  layer.release(inputs);
  return projected;
}

// x + dropout(work(norm(x))), or norm(x + dropout(work(x))); lets go of x where it is not the block's input.
template <typename Work>
Index add_branch(LayerBuilder& layer, const ModelDims& dims, std::string_view norm, Index x, Work work) {
  const std::string module(norm.substr(0, norm.find(".layer_norm")));
  const auto normalize = [&](Index of) { return layer.norm(norm, module + "_norm", dims.norm, dims.hidden, of); };
  const bool before = dims.residual == Residual::kPreNorm;
  const Index done = work(before ? normalize(x) : x);
  const Index dropped = layer.dropout(module + "_dropout", dims.dropout, done);
  const Index sum = layer.residual_add(module + "_sum", dims.hidden, x, dropped);
  layer.release({dropped});
  const Index result = before ? sum : normalize(sum);
  if (!before) layer.release({sum});
  if (x != 0) layer.release({x});
  return result;
}

Index attend_to_self(LayerBuilder& layer, const ModelDims& dims, StackPlace place, bool causal) {
  const Code code = row_of(kCodes, dims.family);
  const bool has_table = dims.position_buckets > 0 && (dims.parts.every_bias || place == StackPlace::kFirst);
  return add_branch(layer, dims, code.self_norm, 0, [&](Index normed) {
    return attend(layer, dims,
        {.module = std::string(code.self),
            .name = "attention",
            .states = normed,
            .causal = causal,
            .has_table = has_table},
        normed);
  });
}

Index add_feed_forward(LayerBuilder& layer, const ModelDims& dims, std::string_view norm, Index x) {
  const bool gated = dims.activation == Activation::kGeGlu || dims.activation == Activation::kSwiGlu;
  const std::size_t dot = norm.rfind(".layer_norm");
  std::string gate, up = "fc1", down = "fc2";
  if (dot != norm.npos) {  // T5's lie in a module beside the norm
    const std::string inner = std::string(norm.substr(0, dot)) + ".DenseReluDense.";
    gate = inner + "wi_0", up = inner + (gated ? "wi_1" : "wi"), down = inner + "wo";
  }
  return add_branch(layer, dims, norm, x, [&](Index input) {
    const Index result = feed_forward(layer, dims, {.gate = gate, .up = up, .down = down, .ffn = dims.ffn}, input);
    if (dims.residual == Residual::kPreNorm) layer.release({input});
    return result;
  });
}

std::string name_of(const ModelDims& dims, const char* what, StackPlace place) {
  return dims.family + (place == StackPlace::kFirst ? " first " : " ") + what;
}

LayerSpec norm_of(const ModelDims& dims, LayerRole role, const std::string& stack) {
  LayerBuilder layer(dims.family + " " + stack + " norm", role, hidden_state(dims), Stack::kEager);
  const Code code = row_of(kCodes, dims.family);
  const std::string name = fmt::format(fmt::runtime(code.last_norm), stack);
  const Index normed = layer.norm(name, "final_norm", dims.norm, dims.hidden, 0);
  const bool drops = dims.dropout && code.drops_last;
  return layer.finish(layer.dropout("final_dropout", drops, normed));
}

}

LayerSpec stack_positions(const ModelDims& dims, const std::string& stack) {
  LayerBuilder layer(dims.family + " " + stack + " positions", LayerRole::kInner, hidden_state(dims), Stack::kEager);
  const std::string module = "model." + stack + ".";
  // BartEncoder has a row for each token, BartDecoder one for each position; so have both where
  // positions are all that is added. M2M100's buffers have rows for tokens.
  const bool sinusoids = dims.positions == Positions::kSinusoidal;
  const bool by_tokens = sinusoids || (dims.embedding_norm && stack == "encoder");
  const auto made = [&](const char* name, std::int64_t width, ElementType type) {
    TensorSpec spec = {.name = name, .type = type};
    (by_tokens ? spec.per_token : spec.per_position) = width;
    return layer.tensor(std::move(spec));
  };
  const Index ids = made("position_ids", 1, ElementType::kInt64);
  layer.constant("arange", Function::kArange, {}, ids);
  const Index rows = sinusoids ? made(kSinusoids.data(), dims.hidden, ElementType::kFp32)
                               : made("position_embedding", dims.hidden, ElementType::kCompute);
  if (sinusoids) {
    layer.constant("sinusoids", Function::kGather, {ids}, rows);
  } else {
    const std::string table = module + "embed_positions";
    layer.look_up(table, {ids}, rows, layer.parameter(table, ".weight", {dims.position_rows, dims.hidden}));
    layer.last_parameter().trainable = !dims.parts.fixed_positions;
  }
  Index output = layer.residual_add("embedding_sum", dims.hidden, 0, rows);
  if (dims.embedding_norm)
    output = layer.norm(module + "layernorm_embedding", "embedding_norm", dims.norm, dims.hidden, output);
  LayerSpec spec = layer.finish(layer.dropout("embedding_dropout", dims.embedding_dropout, output));
  if (sinusoids) spec.resident_bytes = checked_multiply(dims.position_rows * dims.hidden, 4);
  return spec;
}

LayerSpec encoding_block(const ModelDims& dims, StackPlace place) {
  const Code code = row_of(kCodes, dims.family);
  LayerBuilder layer(name_of(dims, "encoder block", place), LayerRole::kBlock, hidden_state(dims), Stack::kEager);
  const Index middle = attend_to_self(layer, dims, place, /*causal=*/false);
  return layer.finish(add_feed_forward(layer, dims, code.encoder_norm, middle));
}

LayerSpec decoding_block(const ModelDims& dims, StackPlace place) {
  const Code code = row_of(kCodes, dims.family);
  const bool is_first = place == StackPlace::kFirst;
  LayerBuilder layer(name_of(dims, "decoder block", place), LayerRole::kBlock, hidden_state(dims), Stack::kEager);
  const Index joined = is_first ? layer.activation("encoder_states", dims.hidden) : Index{-1};
  const Index self = attend_to_self(layer, dims, place, /*causal=*/true);
  const Index crossed = add_branch(layer, dims, code.cross_norm, self, [&](Index normed) {
    return attend(layer, dims,
        {.module = std::string(code.cross), .name = "cross_attention", .states = is_first ? joined : normed}, normed);
  });
  LayerSpec block = layer.finish(add_feed_forward(layer, dims, code.decoder_norm, crossed));
  block.joins = joined;
  return block;
}

LayerSpec encoding_norm(const ModelDims& dims) { return norm_of(dims, LayerRole::kInner, "encoder"); }

LayerSpec decoding_norm(const ModelDims& dims) { return norm_of(dims, LayerRole::kFinalNorm, "decoder"); }

}
