// Attention as PyTorch executes it. A fused projection is read as one tensor where nothing is done
// to its parts; else its parts are views.
#include <string>
#include <utility>

#include "models/layers/block_parts.h"
#include "sim/base/lookup.h"

namespace foreshard {
namespace {

AttentionShape shape_of(const ModelDims& dims) {
  return {.heads = dims.heads,
      .kv_heads = dims.kv_heads,
      .head_dim = dims.head_dim,
      .causal = !dims.bidirectional || dims.parts.causal,
      .dropout = dims.attention_dropout,
      .softcap = dims.attention_softcap,
      .broadcasts = dims.broadcast_kv,
      .window = dims.window};
}

// Rotates the first rotary_dim elements of every head.
Index rotate(LayerBuilder& layer, const ModelDims& dims, std::string_view of, std::int64_t heads, Index input) {
  const std::string name(of);
  if (dims.rotary_dim == 0 || dims.rotary_dim == dims.head_dim) {
    const Index done = rotary(layer, {of, heads * dims.head_dim, dims.head_dim}, input);
    if (dims.rotary_dim == 0 || layer.is_native()) return done;
    // Code that may leave a part as it is concatenates an empty one, too.
    const Index whole = layer.concatenate(name + "_rotated_whole", {done});
    layer.release({done});
    return whole;
  }
  const std::int64_t rotated = heads * dims.rotary_dim;
  const Index turned = layer.activation(name + "_turned", rotated);
  const Index passed = layer.activation(name + "_passed", heads * dims.head_dim - rotated);
  layer.split(name + "_split", input, {turned, passed});
  const Index done = rotary(layer, {of, rotated, dims.rotary_dim}, turned);
  const Index whole = layer.concatenate(name + "_rotated_whole", {done, passed});
  layer.release({turned, passed, done});
  return whole;
}

// An RMS norm of every head without weights (Llama4TextL2Norm): fused, its statistics kept.
Index norm_unweighted(
    LayerBuilder& layer, const ModelDims& dims, std::string_view of, std::int64_t heads, Index input) {
  const std::string name = std::string(of) + "_norm";
  const Index output = layer.activation(name, heads * dims.head_dim);
  const Index scale = layer.activation(name + "_rstd", heads, ElementType::kFp32);
  Operation& op = layer.operation(name, OperationKind::kNorm, Function::kRmsNorm);
  op.inputs = {input};
  op.saved = {input, scale};
  op.outputs = {output, scale};
  op.released = {scale, input};
  return output;
}

// One product makes both, by heads; the gate is copied, and is the caller's until it ends.
Index queries_beside_gate(LayerBuilder& layer, const ModelDims& dims, const ParameterNames& names, Index input) {
  const std::int64_t width = dims.heads * dims.head_dim;
  const Index both = layer.linear(
      {.name = names.q, .result = "q_gate", .n = 2 * width, .k = dims.hidden, .bias = dims.qkv_bias}, input);
  const Index q = layer.activation("q", width), part = layer.activation("gate of heads", width);
  layer.split("split_q_gate", both, {q, part});
  const Index gate = layer.elementwise("gate", Function::kCopy, {part}, {}, layer.activation("gate", width));
  layer.release({part});
  layer.hold({gate});
  return q;
}

// Rows of distances, dropped out and projected, for every sequence. (By the products of queries and
// keys, to whose gradients theirs are added.)
void project_distances(LayerBuilder& layer, const ModelDims& dims, Indices& inputs) {
  const std::int64_t width = dims.heads * dims.head_dim, all = dims.parts.distances * width;
  const std::string name(kDistanceRows);
  const Index rows = layer.tensor({.name = name, .fixed = all});
  layer.constant("distance_dropout", Function::kDropout, {}, rows);
  if (dims.dropout) {
    const Index mask = layer.tensor({.name = name + "_mask", .fixed = all, .type = ElementType::kByte});
    layer.last().outputs.push_back(mask);
  }
  const auto project = [&](std::string_view result, const char* own) {
    const Index made = layer.tensor({.name = "projected_rows", .fixed = all});
    layer.elementwise(result, Function::kMatrixProduct, {rows}, {}, made);
    if (dims.parts.distance_products)
      layer.last().parameters = {
          layer.parameter(own, ".weight", {width, dims.hidden}), layer.parameter(own, ".bias", {width})};
    inputs.push_back(layer.tensor({.name = std::string(result), .per_sequence = all}));
    layer.elementwise("repeat_rows", Function::kCopy, {made}, {}, inputs.back());
    layer.release({made});
  };
  if (dims.parts.distance_keys) project(kDistanceKeys, "attention.self.pos_key_proj");
  if (dims.parts.distance_queries) project(kDistanceQueries, "attention.self.pos_query_proj");
}

}

Index weigh_by_sinks(LayerBuilder& layer, const ModelDims& dims, const ParameterNames& names, Index attention) {
  // The sum of exponentials that attention divided by lacks the sink's: what is left of the weight
  // is sigmoid(logsumexp - sink), for every head.
  const Index logsumexp = layer.last().outputs[1];
  std::erase(layer.last().released, logsumexp);
  const Index weight = layer.activation("sink_weight", dims.heads, ElementType::kFp32);
  layer.elementwise("sink_weight", Function::kSigmoid, {logsumexp}, {weight}, weight);
  layer.last().parameters = {layer.parameter(names.sinks, "", {dims.heads})};
  layer.last().gradient = GradientRule::kNone;  // attention's own backward takes it
  layer.release({logsumexp});
  // (models/gpt_oss/model.py: sink_scale.to(output.dtype))
  const Index narrow = layer.activation("sink_scale", dims.heads);
  layer.elementwise("sink_scale", Function::kCast, {weight}, {}, narrow);
  layer.release({weight});
  const Index weighed = layer.activation("weighed_attention", attention_width(dims));
  layer.elementwise("weigh_attention", Function::kMultiply, {attention, narrow}, {attention, narrow}, weighed);
  layer.last().sums_last = true;
  layer.release({attention, narrow});
  return weighed;
}

std::int64_t attention_width(const ModelDims& dims) {
  return dims.heads * (dims.latent.kv_rank > 0 ? dims.latent.value : dims.head_dim);
}

// Complex multiplication by a table, in fp32: cast, multiply, cast back. The product's gradient
// clones the conjugated table, head_dim / 2 complex numbers per position.
Index rotary(LayerBuilder& layer, const Rotary& rotary, Index input) {
  const std::string name(rotary.of);
  if (layer.is_native()) {
    const Index output = layer.activation(name + "_rotated", rotary.width);
    layer.elementwise(name + "_rotary", Function::kRotary, {input}, {}, output);
    layer.last().in_place = true;
    layer.last().attention.head_dim = rotary.head_dim;
    return output;
  }
  const Index wide = layer.activation(name + "_fp32", rotary.width, ElementType::kFp32);
  layer.elementwise(name + "_to_fp32", Function::kCast, {input}, {}, wide);

  const Index table =
      layer.tensor({.name = name + "_rotary_conjugate", .per_position = rotary.head_dim, .type = ElementType::kFp32});
  const Index product = layer.activation(name + "_rotated_fp32", rotary.width, ElementType::kFp32);
  layer.elementwise(name + "_rotary", Function::kRotary, {wide}, {}, product);
  layer.last().backward_temporaries = {table};

  const Index output = layer.activation(name + "_rotated", rotary.width);
  layer.elementwise(name + "_from_fp32", Function::kCast, {product}, {}, output);
  layer.last().released = {wide, product};
  return output;
}

Index fused_attention(LayerBuilder& layer, const ModelDims& dims, const AttentionShape& shape, Indices inputs) {
  const Index output = layer.activation("attention", attention_width(dims));
  const Index logsumexp = layer.activation("logsumexp", shape.heads, ElementType::kFp32);
  Indices outputs = {output, logsumexp};
  if (!layer.is_native()) {  // the engine's attention draws no random numbers
    outputs.push_back(layer.tensor({.name = "rng_state", .fixed = 16, .type = ElementType::kByte}));
    outputs.push_back(layer.tensor({.name = "rng_unused", .fixed = 8, .type = ElementType::kByte}));
  }
  Indices temporaries;
  Indices saved;
  if (inputs.size() == 1) {
    // Fused projection: q, k and v are views of one tensor; their gradients are made apart and then concatenated.
    saved = inputs;
    const std::int64_t kv_width = shape.kv_heads * shape.head_dim;
    temporaries = {layer.activation("q_gradient", shape.heads * shape.head_dim),
        layer.activation("k_gradient", kv_width), layer.activation("v_gradient", kv_width)};
  } else {
    saved = {inputs[1], inputs[0], inputs[2]};  // freed in the order key, query, value
  }
  append(saved, {logsumexp, output});
  saved.insert(saved.end(), outputs.begin() + 2, outputs.end());
  Operation& op = layer.operation("attention", OperationKind::kAttention, Function::kAttention);
  if (!layer.is_native()) op.released.assign(outputs.rbegin(), outputs.rend() - 1);
  op.inputs = std::move(inputs);
  op.outputs = std::move(outputs);
  op.saved = std::move(saved);
  op.backward_temporaries = std::move(temporaries);
  op.attention = shape;
  op.kept_by_selective = true;
  return output;
}

Index attend(LayerBuilder& layer, const ModelDims& model, const ParameterNames& names, Index input) {
  if (model.latent.kv_rank > 0) return attend_latent(layer, model, names, input);
  ModelDims dims = model;
  const std::int64_t q_width = dims.heads * dims.head_dim;
  const std::int64_t kv_width = dims.kv_heads * dims.head_dim;
  const auto project = [&](std::string_view module, std::string_view result, std::int64_t n) {
    return layer.linear(
        {.name = module, .result = result, .n = n, .k = dims.hidden, .bias = dims.qkv_bias, .conv1d = dims.conv1d},
        input);
  };
  const bool shares = dims.parts.shares_keys;
  // Falcon's new architecture copies keys and values for every head (FalconAttention._split_heads).
  const bool expands = dims.naming == Naming::kFalcon && dims.kv_heads > 1 && !dims.broadcast_kv && !layer.is_native();
  Index q = 0, k = 0, v = 0;
  if (dims.fused_qkv) {
    const Index qkv = project(names.qkv, "qkv", q_width + 2 * kv_width);
    if (dims.positions != Positions::kRotary && dims.qk_norm == HeadNorm::kNone && !expands)
      return fused_attention(layer, dims, shape_of(dims), {qkv});
    q = layer.activation("q", q_width);
    k = layer.activation("k", kv_width);
    v = layer.activation("v", kv_width);
    layer.split("split", qkv, {q, k, v});
    if (dims.regroups_heads || expands) {
      const Indices views = {q, k, v};
      if (expands) dims.kv_heads = dims.heads;
      const std::int64_t wide = dims.kv_heads * dims.head_dim;
      for (Index* part : {&q, &k, &v}) {
        *part = layer.elementwise(
            "regroup", Function::kCopy, {*part}, {}, layer.activation("regrouped", part == &q ? q_width : wide));
      }
      layer.release(views);
      layer.release({qkv});
    }
  } else {
    q = dims.parts.gate_beside_queries ? queries_beside_gate(layer, dims, names, input)
                                       : project(names.q, "q", q_width);
    if (shares) {
      // An earlier layer has them: no more bytes, as views of what queries keep have none.
      k = layer.activation("shared_k", kv_width);
      v = layer.activation("shared_v", kv_width);
      layer.split("shared_keys", input, {k, v});
    } else {
      k = project(names.k, "k", kv_width);
      v = dims.parts.keys_are_values ? k : project(names.v, "v", kv_width);
    }
  }
  if (dims.qk_norm == HeadNorm::kEach || dims.qk_norm == HeadNorm::kWhole) {
    const bool whole = dims.qk_norm == HeadNorm::kWhole;
    const bool by_head = dims.head_norm != NormKind::kRms;  // Cohere's weights are matrices
    const auto norm = [&](std::string_view module, const char* name, std::int64_t heads, Index t) {
      const Index normed =
          layer.norm(module, name, dims.head_norm, whole ? heads * dims.head_dim : dims.head_dim, t, whole ? 1 : heads);
      if (whole && by_head) layer.last_parameter().shape = {heads, dims.head_dim};
      return normed;
    };
    q = norm(names.q_norm, "q_norm", dims.heads, q);
    if (!shares) k = norm(names.k_norm, "k_norm", dims.kv_heads, k);
  }
  if (dims.parts.value_norm && !shares) v = norm_unweighted(layer, dims, "v", dims.kv_heads, v);
  if (dims.positions == Positions::kRotary) {
    const Index plain_q = std::exchange(q, rotate(layer, dims, "q", dims.heads, q));
    const Index plain_k = shares ? plain_q : std::exchange(k, rotate(layer, dims, "k", dims.kv_heads, k));
    // q and k lose their last reference when both have been rotated, k's first.
    layer.release(shares ? Indices{plain_q} : Indices{plain_k, plain_q});
  }
  if (dims.qk_norm == HeadNorm::kUnweighted) {
    q = norm_unweighted(layer, dims, "q", dims.heads, q);
    k = norm_unweighted(layer, dims, "k", dims.kv_heads, k);
  }
  Indices inputs = {q, k, v};
  if (dims.parts.distances > 0) project_distances(layer, dims, inputs);
  return fused_attention(layer, dims, shape_of(dims), std::move(inputs));
}

}
