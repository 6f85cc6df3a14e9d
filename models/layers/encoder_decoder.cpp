// A decoder behind an encoder as transformers' modules execute it (models/t5/modeling_t5.py, 5.17):
// T5LayerSelfAttention, T5LayerCrossAttention and T5LayerFF, each a norm, its work, dropout and a
// sum. The first block of a stack looks the bias of positions up and adds it to its scores, and so
// do the others (attention_kernels.cpp makes the kernels of that).
//
// The decoder's sequences are as long as the encoder's. Every block of the decoder reads the
// encoder's result: the first joins it and holds it until its own backward, which is the last that
// needs it. In the others keys and values read what their queries read: as many bytes, saved
// already, and their gradients are added up as those of the encoder's result are.
#include <string>

#include "models/layers/block_parts.h"
#include "models/layers/layers.h"

namespace foreshard {
namespace {

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
  const Index buckets =
      layer.tensor({.name = "position_buckets", .per_position = 1, .type = ElementType::kInt64});
  layer.constant("position_bucket", Function::kArange, {}, buckets);
  const Index bias = layer.tensor({.name = "position_bias", .per_position = dims.heads});
  const std::string table = module + ".relative_attention_bias";
  Operation& lookup = layer.operation(table, OperationKind::kEmbedding, Function::kEmbedding);
  lookup.inputs = lookup.saved = {buckets};
  lookup.outputs = {bias};
  lookup.gradient = GradientRule::kNone;
  lookup.parameters = {layer.parameter(table, ".weight", {dims.position_buckets, dims.heads})};
  return bias;
}

// Attention of the normed `input`, with its projections; lets go of the input.
Index attend(LayerBuilder& layer, const ModelDims& dims, const Attention& attention, Index input) {
  const std::int64_t width = dims.heads * dims.head_dim;
  const auto project = [&](const char* which, Index from) {
    return layer.linear(
        {.name = attention.module + "." + which, .result = which, .n = width, .k = dims.hidden},
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
  const Index projected = layer.linear({.name = attention.module + ".o",
                                        .result = attention.name + "_projection",
                                        .n = dims.hidden,
                                        .k = width},
                                       result);
  inputs.insert(inputs.end(), {result, input});
  layer.release(inputs);
  return projected;
}

// x + dropout(work(norm(x))); lets go of x where it is not the block's input.
template <typename Work>
Index add_branch(LayerBuilder& layer, const ModelDims& dims, const std::string& module, Index x,
                 Work work) {
  const Index normed =
      layer.norm(module + ".layer_norm", module + "_norm", dims.norm, dims.hidden, x);
  const Index done = work(normed);
  const Index dropped = layer.dropout(module + "_dropout", dims.dropout, done);
  const Index sum = layer.residual_add(module + "_sum", dims.hidden, x, dropped);
  layer.release({dropped});
  if (x != 0) layer.release({x});
  return sum;
}

Index add_feed_forward(LayerBuilder& layer, const ModelDims& dims, const std::string& module,
                       Index x) {
  const bool gated =
      dims.activation == Activation::kGeGlu || dims.activation == Activation::kSwiGlu;
  const std::string inner = module + ".DenseReluDense.";
  const std::string gate = inner + "wi_0", up = inner + (gated ? "wi_1" : "wi"),
                    down = inner + "wo";
  return add_branch(layer, dims, module, x, [&](Index normed) {
    const Index result =
        feed_forward(layer, dims, {.gate = gate, .up = up, .down = down, .ffn = dims.ffn}, normed);
    layer.release({normed});
    return result;
  });
}

std::string name_of(const ModelDims& dims, const char* what, StackPlace place) {
  return dims.family + (place == StackPlace::kFirst ? " first " : " ") + what;
}

LayerSpec norm_of(const ModelDims& dims, LayerRole role, const std::string& stack) {
  LayerBuilder layer(dims.family + " " + stack + " norm", role, hidden_state(dims), Stack::kEager);
  const Index normed =
      layer.norm(stack + ".final_layer_norm", "final_norm", dims.norm, dims.hidden, 0);
  return layer.finish(layer.dropout("final_dropout", dims.dropout, normed));
}

}  // namespace

LayerSpec encoding_block(const ModelDims& dims, StackPlace place) {
  LayerBuilder layer(name_of(dims, "encoder block", place), LayerRole::kBlock, hidden_state(dims),
                     Stack::kEager);
  const Index middle = add_branch(layer, dims, "layer.0", 0, [&](Index normed) {
    return attend(layer, dims,
                  {.module = "layer.0.SelfAttention",
                   .name = "attention",
                   .states = normed,
                   .has_table = place == StackPlace::kFirst},
                  normed);
  });
  return layer.finish(add_feed_forward(layer, dims, "layer.1", middle));
}

LayerSpec decoding_block(const ModelDims& dims, StackPlace place) {
  const bool is_first = place == StackPlace::kFirst;
  LayerBuilder layer(name_of(dims, "decoder block", place), LayerRole::kBlock, hidden_state(dims),
                     Stack::kEager);
  const Index joined = is_first ? layer.activation("encoder_states", dims.hidden) : Index{-1};
  const Index self = add_branch(layer, dims, "layer.0", 0, [&](Index normed) {
    return attend(layer, dims,
                  {.module = "layer.0.SelfAttention",
                   .name = "attention",
                   .states = normed,
                   .causal = true,
                   .has_table = is_first},
                  normed);
  });
  const Index crossed = add_branch(layer, dims, "layer.1", self, [&](Index normed) {
    return attend(layer, dims,
                  {.module = "layer.1.EncDecAttention",
                   .name = "cross_attention",
                   .states = is_first ? joined : normed},
                  normed);
  });
  LayerSpec block = layer.finish(add_feed_forward(layer, dims, "layer.2", crossed));
  block.joins = joined;
  return block;
}

LayerSpec encoding_norm(const ModelDims& dims) {
  return norm_of(dims, LayerRole::kInner, "encoder");
}

LayerSpec decoding_norm(const ModelDims& dims) {
  return norm_of(dims, LayerRole::kFinalNorm, "decoder");
}

}  // namespace foreshard
