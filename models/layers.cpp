// A layer is written down in the order in which PyTorch executes it. LayerBuilder numbers tensors
// and parameters; the functions below it add one module each (linear, norm, rotary embedding,
// attention, MLP) and return the number of the tensor that the module hands on. Which tensors a
// gradient needs is stated where the operation is, as derivatives.yaml of PyTorch does: a linear
// layer keeps its input; silu and gelu their input, relu its output; a product both factors; a norm
// its input and statistics; flash attention q, k, v, its output, logsumexp and two random-number
// seeds; the residual sum, casts and the rotary product (whose table needs no gradient) nothing.
#include "models/layers.h"

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <utility>
#include <vector>

#include "models/parameter_names.h"

namespace foreshard {
namespace {

using Index = std::int16_t;
using Indices = std::vector<Index>;

// A linear layer of `n` outputs from `k` inputs.
struct Linear {
  std::string_view name;    // of the module
  std::string_view result;  // name of the output tensor
  std::int64_t n = 0, k = 0;
  bool bias = false;
  bool conv1d = false;
};

class LayerBuilder {
 public:
  LayerBuilder(std::string name, LayerRole role, TensorSpec input, Stack stack) : stack_(stack) {
    layer_.name = std::move(name);
    layer_.role = role;
    layer_.tensors.push_back(std::move(input));
  }
  bool is_native() const { return stack_ == Stack::kNative; }

  Index tensor(TensorSpec spec) {
    layer_.tensors.push_back(std::move(spec));
    return static_cast<Index>(layer_.tensors.size() - 1);
  }
  Index activation(std::string_view name, std::int64_t per_token,
                   ElementType type = ElementType::kCompute) {
    return tensor({.name = std::string(name), .per_token = per_token, .type = type});
  }
  Index parameter(std::string_view module, std::string_view suffix,
                  std::vector<std::int64_t> shape) {
    layer_.parameters.push_back(
        {.name = std::string(module).append(suffix), .shape = std::move(shape)});
    return static_cast<Index>(layer_.parameters.size() - 1);
  }
  Operation& operation(std::string name, OperationKind kind, Function function) {
    Operation& operation = layer_.operations.emplace_back();
    operation.name = std::move(name);
    operation.kind = kind;
    operation.function = function;
    return operation;
  }

  Index elementwise(std::string_view name, Function function, Indices inputs, Indices saved,
                    Index output) {
    Operation& op = operation(std::string(name), OperationKind::kElementwise, function);
    op.inputs = std::move(inputs);
    op.saved = std::move(saved);
    op.outputs = {output};
    return output;
  }

  Index linear(const Linear& linear, Index input) {
    Indices parameters = {parameter(
        linear.name, ".weight",
        linear.conv1d ? std::vector{linear.k, linear.n} : std::vector{linear.n, linear.k})};
    if (linear.bias) parameters.push_back(parameter(linear.name, ".bias", {linear.n}));
    const Index output = matrix_product(linear, input, std::move(parameters));
    last().transposed_weight = linear.conv1d;
    return output;
  }

  Index matrix_product(const Linear& linear, Index input, Indices parameters) {
    const Index output = activation(linear.result, linear.n);
    Operation& op =
        operation(std::string(linear.name), OperationKind::kGemm, Function::kMatrixProduct);
    op.inputs = op.saved = {input};
    op.outputs = {output};
    op.parameters = std::move(parameters);
    op.n = linear.n;
    op.k = linear.k;
    // Only aten::mm counts; with a bias it is aten::addmm (but the engine's runs as one product).
    const bool counts = op.parameters.size() == 1 || is_native();
    op.kept_by_selective = counts && matrix_products_++ % 2 == 0;
    return output;
  }

  // `groups` > 1: each of so many slices of `width` elements is normalised by itself, with the same
  // weight.
  Index norm(std::string_view name, std::string_view result, NormKind kind, std::int64_t width,
             Index input, std::int64_t groups = 1) {
    const std::string base(result);
    const Index output = activation(base, width * groups);
    Indices outputs = {output};
    if (kind != NormKind::kRms) {
      outputs.push_back(activation(base + "_mean", groups, ElementType::kFp32));
    }
    outputs.push_back(activation(base + "_rstd", groups, ElementType::kFp32));
    Indices parameters = {parameter(name, ".weight", {width})};
    layer_.parameters.back().is_norm = true;
    if (kind == NormKind::kLayer) parameters.push_back(parameter(name, ".bias", {width}));
    Operation& op = operation(std::string(name), OperationKind::kNorm,
                              kind == NormKind::kRms ? Function::kRmsNorm : Function::kLayerNorm);
    op.inputs = {input};
    op.saved = {input};
    op.saved.insert(op.saved.end(), outputs.begin() + 1, outputs.end());
    if (!is_native()) op.released.assign(outputs.begin() + 1, outputs.end());
    op.outputs = std::move(outputs);
    op.parameters = std::move(parameters);
    return output;
  }

  Index residual_add(std::string_view name, std::int64_t width, Index residual, Index branch) {
    const Index output = activation(name, width);
    elementwise(name, Function::kAdd, {residual, branch}, {}, output);
    layer_.operations.back().gradient = GradientRule::kAlias;
    return output;
  }

  // Python's names end here (the engine lets go of everything after its last use).
  void release(Indices tensors) {
    if (is_native()) return;
    last().released.insert(last().released.end(), tensors.begin(), tensors.end());
  }

  Operation& last() { return layer_.operations.back(); }

  LayerSpec finish(Index output) {
    layer_.output = output;
    return std::move(layer_);
  }

 private:
  LayerSpec layer_;
  Stack stack_;
  int matrix_products_ = 0;
};

// Complex multiplication by a table, in fp32: cast, multiply, cast back. The product's gradient
// clones the conjugated table, head_dim / 2 complex numbers per position.
Index rotary(LayerBuilder& layer, const ModelDims& dims, std::string_view of, std::int64_t width,
             Index input) {
  const std::string name(of);
  if (layer.is_native()) {
    const Index output = layer.activation(name + "_rotated", width);
    layer.elementwise(name + "_rotary", Function::kRotary, {input}, {}, output);
    layer.last().in_place = true;
    layer.last().attention.head_dim = dims.head_dim;
    return output;
  }
  const Index wide = layer.activation(name + "_fp32", width, ElementType::kFp32);
  layer.elementwise(name + "_to_fp32", Function::kCast, {input}, {}, wide);

  const Index table = layer.tensor({.name = name + "_rotary_conjugate",
                                    .per_position = dims.head_dim,
                                    .type = ElementType::kFp32});
  const Index product = layer.activation(name + "_rotated_fp32", width, ElementType::kFp32);
  layer.elementwise(name + "_rotary", Function::kRotary, {wide}, {}, product);
  layer.last().backward_temporaries = {table};

  const Index output = layer.activation(name + "_rotated", width);
  layer.elementwise(name + "_from_fp32", Function::kCast, {product}, {}, output);
  layer.last().released = {wide, product};
  return output;
}

Index flash_attention(LayerBuilder& layer, const ModelDims& dims, Indices inputs) {
  const std::int64_t width = dims.heads * dims.head_dim;
  const Index output = layer.activation("attention", width);
  const Index logsumexp = layer.activation("logsumexp", dims.heads, ElementType::kFp32);
  Indices outputs = {output, logsumexp};
  if (!layer.is_native()) {  // the engine's attention draws no random numbers
    outputs.push_back(layer.tensor({.name = "rng_state", .fixed = 16, .type = ElementType::kByte}));
    outputs.push_back(layer.tensor({.name = "rng_unused", .fixed = 8, .type = ElementType::kByte}));
  }
  Indices temporaries;
  Indices saved;
  if (inputs.size() == 1) {
    // Fused projection: q, k and v are views of one tensor; their gradients are made apart and then
    // concatenated.
    saved = inputs;
    temporaries = {layer.activation("q_gradient", width),
                   layer.activation("k_gradient", dims.kv_heads * dims.head_dim),
                   layer.activation("v_gradient", dims.kv_heads * dims.head_dim)};
  } else {
    saved = {inputs[1], inputs[0], inputs[2]};  // freed in the order key, query, value
  }
  saved.insert(saved.end(), {logsumexp, output});
  saved.insert(saved.end(), outputs.begin() + 2, outputs.end());
  Operation& op = layer.operation("attention", OperationKind::kAttention, Function::kAttention);
  if (!layer.is_native()) op.released.assign(outputs.rbegin(), outputs.rend() - 1);
  op.inputs = std::move(inputs);
  op.outputs = std::move(outputs);
  op.saved = std::move(saved);
  op.backward_temporaries = std::move(temporaries);
  op.attention = {
      .heads = dims.heads, .kv_heads = dims.kv_heads, .head_dim = dims.head_dim, .causal = true};
  op.kept_by_selective = true;
  return output;
}

// Projections, norms of q and k, rotary embedding and the attention itself.
Index attend(LayerBuilder& layer, const ModelDims& dims, const ParameterNames& names, Index input) {
  const std::int64_t q_width = dims.heads * dims.head_dim;
  const std::int64_t kv_width = dims.kv_heads * dims.head_dim;
  const auto project = [&](std::string_view module, std::string_view result, std::int64_t n) {
    return layer.linear({.name = module,
                         .result = result,
                         .n = n,
                         .k = dims.hidden,
                         .bias = dims.qkv_bias,
                         .conv1d = dims.conv1d},
                        input);
  };
  if (dims.fused_qkv) {
    return flash_attention(layer, dims, {project(names.qkv, "qkv", q_width + 2 * kv_width)});
  }
  Index q = project(names.q, "q", q_width);
  Index k = project(names.k, "k", kv_width);
  const Index v = project(names.v, "v", kv_width);
  if (dims.qk_norm) {
    q = layer.norm(names.q_norm, "q_norm", NormKind::kRms, dims.head_dim, q, dims.heads);
    k = layer.norm(names.k_norm, "k_norm", NormKind::kRms, dims.head_dim, k, dims.kv_heads);
  }
  if (dims.positions == Positions::kRotary) {
    const Index plain_q = std::exchange(q, rotary(layer, dims, "q", q_width, q));
    const Index plain_k = std::exchange(k, rotary(layer, dims, "k", kv_width, k));
    // q and k lose their last reference when both have been rotated, k's first.
    if (!layer.is_native()) {
      layer.last().released.insert(layer.last().released.end(), {plain_k, plain_q});
    }
  }
  return flash_attention(layer, dims, {q, k, v});
}

Index feed_forward(LayerBuilder& layer, const ModelDims& dims, const ParameterNames& names,
                   Index input) {
  const auto expand = [&](std::string_view module, std::string_view result) {
    return layer.linear({.name = module,
                         .result = result,
                         .n = dims.ffn,
                         .k = dims.hidden,
                         .bias = dims.mlp_bias,
                         .conv1d = dims.conv1d},
                        input);
  };
  Index activated = 0;
  if (dims.activation == Activation::kSwiGlu) {
    const Index gate = expand(names.gate, "gate");
    if (layer.is_native()) {
      const Index up = expand(names.up, "up");
      activated = layer.elementwise("silu_times_up", Function::kSiluMultiply, {gate, up},
                                    {gate, up}, layer.activation("silu_times_up", dims.ffn));
    } else {
      const Index silu = layer.elementwise("silu", Function::kSilu, {gate}, {gate},
                                           layer.activation("silu", dims.ffn));
      const Index up = expand(names.up, "up");
      activated = layer.elementwise("silu_times_up", Function::kMultiply, {silu, up}, {silu, up},
                                    layer.activation("silu_times_up", dims.ffn));
    }
  } else {
    const bool gelu = dims.activation == Activation::kGelu;
    const std::string_view name = gelu ? "gelu" : "relu";
    const Index up = expand(names.up, "up");
    activated = layer.activation(name, dims.ffn);
    layer.elementwise(name, gelu ? Function::kGelu : Function::kRelu, {up}, {gelu ? up : activated},
                      activated);
  }
  const Index down = layer.linear({.name = names.down,
                                   .result = "down",
                                   .n = dims.hidden,
                                   .k = dims.ffn,
                                   .bias = dims.mlp_bias,
                                   .conv1d = dims.conv1d},
                                  activated);
  layer.release({activated, input});
  return down;
}

// The engine's loss: a few rows of logits at a time become log-probabilities in fp32, then their
// own gradient, which takes the logits' place.
LayerSpec native_loss(LayerBuilder& layer, const ModelDims& dims) {
  const Index loss = layer.tensor({.name = "loss", .fixed = 1, .type = ElementType::kFp32});
  const Index rows = layer.tensor({.name = "log_probability_rows",
                                   .fixed = loss_rows(dims.vocabulary) * dims.vocabulary,
                                   .type = ElementType::kFp32});
  Operation& op =
      layer.operation("cross_entropy", OperationKind::kSoftmaxLoss, Function::kCrossEntropy);
  op.inputs = op.saved = {0};
  op.outputs = {loss, rows};
  op.in_place = true;
  return layer.finish(loss);
}

TensorSpec hidden_state(const ModelDims& dims) {
  return {.name = "input", .per_token = dims.hidden};
}

}  // namespace

std::int64_t loss_rows(std::int64_t vocabulary) {
  constexpr std::int64_t kElements = std::int64_t{1} << 20;
  return std::max<std::int64_t>(1, kElements / vocabulary);
}

LayerSpec embedding_layer(const ModelDims& dims, Stack stack) {
  const ParameterNames& names = parameter_names(dims.naming);
  // The batch's token ids live through the whole step, so that the lookup need not keep them.
  LayerBuilder layer(dims.family + " embedding", LayerRole::kEmbedding,
                     {.name = "token_ids", .per_token = 1, .type = ElementType::kInt64}, stack);
  Index output = layer.activation("token_embedding", dims.hidden);
  Operation& tokens = layer.operation(std::string(names.embedding), OperationKind::kEmbedding,
                                      Function::kEmbedding);
  tokens.inputs = {0};
  tokens.outputs = {output};
  tokens.gradient = GradientRule::kNone;
  tokens.parameters = {layer.parameter(names.embedding, ".weight", {dims.vocabulary, dims.hidden})};

  if (dims.positions == Positions::kLearned) {
    const Index ids =
        layer.tensor({.name = "position_ids", .per_position = 1, .type = ElementType::kInt64});
    layer.elementwise("arange", Function::kArange, {}, {}, ids);
    layer.last().gradient = GradientRule::kNone;
    const Index rows = layer.tensor({.name = "position_embedding", .per_position = dims.hidden});
    Operation& lookup = layer.operation(std::string(names.positions), OperationKind::kEmbedding,
                                        Function::kEmbedding);
    lookup.inputs = lookup.saved = {ids};
    lookup.outputs = {rows};
    lookup.gradient = GradientRule::kNone;
    lookup.parameters = {
        layer.parameter(names.positions, ".weight", {dims.position_rows, dims.hidden})};
    // The rows' gradient is the sum over the batch, a [S, hidden] temporary that is left out here.
    output = layer.residual_add("embedding_sum", dims.hidden, output, rows);
  }
  if (dims.embedding_norm) {
    output = layer.norm(names.embedding_norm, "embedding_norm", dims.norm, dims.hidden, output);
  }
  return layer.finish(output);
}

LayerSpec decoder_block(const ModelDims& dims, Stack stack) {
  const ParameterNames& names = parameter_names(dims.naming);
  LayerBuilder layer(dims.family + " block", LayerRole::kBlock, hidden_state(dims), stack);
  const Index norm1 = layer.norm(names.norm1, "norm1", dims.norm, dims.hidden, 0);
  const Index attention = attend(layer, dims, names, norm1);
  Indices held = layer.last().inputs;  // q, k, v
  const Index projected = layer.linear({.name = names.o,
                                        .result = "attention_projection",
                                        .n = dims.hidden,
                                        .k = dims.heads * dims.head_dim,
                                        .bias = dims.output_bias,
                                        .conv1d = dims.conv1d},
                                       attention);
  held.insert(held.end(), {attention, norm1});
  layer.release(std::move(held));
  const Index middle = layer.residual_add("attention_residual", dims.hidden, 0, projected);
  const Index norm2 = layer.norm(names.norm2, "norm2", dims.norm, dims.hidden, middle);
  const Index down = feed_forward(layer, dims, names, norm2);
  const Index output = layer.residual_add("mlp_residual", dims.hidden, middle, down);
  layer.release({down, middle});
  return layer.finish(output);
}

LayerSpec final_norm_layer(const ModelDims& dims, Stack stack) {
  LayerBuilder layer(dims.family + " norm", LayerRole::kFinalNorm, hidden_state(dims), stack);
  return layer.finish(
      layer.norm(parameter_names(dims.naming).final_norm, "final_norm", dims.norm, dims.hidden, 0));
}

LayerSpec head_layer(const ModelDims& dims, Stack stack) {
  const ParameterNames& names = parameter_names(dims.naming);
  LayerBuilder layer(dims.family + " head", LayerRole::kHead, hidden_state(dims), stack);
  const Linear head = {
      .name = names.head, .result = "logits", .n = dims.vocabulary, .k = dims.hidden};
  if (!dims.tied) return layer.finish(layer.linear(head, 0));
  const Index weight = layer.parameter(names.embedding, ".weight", {dims.vocabulary, dims.hidden});
  const Index logits = layer.matrix_product(head, 0, {weight});
  LayerSpec result = layer.finish(logits);
  result.parameters[static_cast<std::size_t>(weight)].tied = true;
  return result;
}

LayerSpec loss_layer(const ModelDims& dims, Stack stack) {
  LayerBuilder layer("cross entropy", LayerRole::kLoss,
                     {.name = "logits", .per_token = dims.vocabulary}, stack);
  if (stack == Stack::kNative) return native_loss(layer, dims);
  const Index wide = layer.activation("logits_fp32", dims.vocabulary, ElementType::kFp32);
  layer.elementwise("logits_to_fp32", Function::kCast, {0}, {}, wide);

  const Index probabilities =
      layer.activation("log_probabilities", dims.vocabulary, ElementType::kFp32);
  Operation& softmax =
      layer.operation("log_softmax", OperationKind::kSoftmaxLoss, Function::kLogSoftmax);
  softmax.inputs = {wide};
  softmax.outputs = softmax.saved = {probabilities};

  const Index loss = layer.tensor({.name = "loss", .fixed = 1, .type = ElementType::kFp32});
  const Index weight =
      layer.tensor({.name = "total_weight", .fixed = 1, .type = ElementType::kFp32});
  Operation& nll =
      layer.operation("nll_loss", OperationKind::kSoftmaxLoss, Function::kNegativeLogLikelihood);
  nll.inputs = {probabilities};
  nll.outputs = {loss, weight};
  nll.saved = {probabilities, weight};
  nll.released = {wide, 0};
  return layer.finish(loss);
}

}  // namespace foreshard
