// Gated (three matrices, or two with gate and up in one) or plain (two matrices).
#include <string_view>

#include "models/layers/block_parts.h"

namespace foreshard {
namespace {

Index expand(LayerBuilder& layer, const ModelDims& dims, const Linear& linear, Index input) {
  Linear complete = linear;
  complete.k = dims.hidden;
  complete.bias = dims.mlp_bias;
  complete.conv1d = dims.conv1d;
  return layer.linear(complete, input);
}

// relu(x)^2, of which the square keeps what it is made of.
Index relu_squared(LayerBuilder& layer, const FeedForward& mlp, Index x) {
  const Index relu = layer.activation("relu", mlp.ffn);
  layer.elementwise("relu", Function::kRelu, {x}, {relu}, relu);
  layer.elementwise("relu_squared", Function::kMultiply, {relu}, {relu}, layer.activation("relu_squared", mlp.ffn));
  layer.release({relu});
  return layer.last().outputs.front();
}

// gate and up -> activation(gate) * up.
Index gated(LayerBuilder& layer, const ModelDims& dims, const FeedForward& mlp, Index input) {
  const bool gelu = dims.activation == Activation::kGeGlu;
  const bool squares = dims.activation == Activation::kReGlu2;
  const Function function = gelu ? Function::kGelu : Function::kSilu;
  const std::string_view name = gelu ? "gelu" : squares ? "relu_squared" : "silu";
  const std::string_view product = gelu ? "gelu_times_up" : squares ? "relu_squared_times_up" : "silu_times_up";
  if (dims.fused_gate_up) {
    const Index both = expand(layer, dims, {.name = mlp.gate, .result = "gate_up", .n = 2 * mlp.ffn}, input);
    const Index gate = layer.activation("gate", mlp.ffn);
    const Index up = layer.activation("up", mlp.ffn);
    layer.split("chunk", both, {gate, up});
    const Index activated = layer.elementwise(name, function, {gate}, {gate}, layer.activation(name, mlp.ffn));
    layer.elementwise(
        product, Function::kMultiply, {up, activated}, {up, activated}, layer.activation(product, mlp.ffn));
    layer.hold({gate, up, both});
    return layer.last().outputs.front();
  }
  const Index gate = expand(layer, dims, {.name = mlp.gate, .result = "gate", .n = mlp.ffn}, input);
  if (layer.is_native() && !gelu && !squares) {
    const Index up = expand(layer, dims, {.name = mlp.up, .result = "up", .n = mlp.ffn}, input);
    return layer.elementwise(
        "silu_times_up", Function::kSiluMultiply, {gate, up}, {gate, up}, layer.activation("silu_times_up", mlp.ffn));
  }
  const Index activated = squares ? relu_squared(layer, mlp, gate)
                                  : layer.elementwise(name, function, {gate}, {gate}, layer.activation(name, mlp.ffn));
  const Index up = expand(layer, dims, {.name = mlp.up, .result = "up", .n = mlp.ffn}, input);
  return layer.elementwise(
      product, Function::kMultiply, {activated, up}, {activated, up}, layer.activation(product, mlp.ffn));
}

// transformers' XIELUActivation, _xielu_python: where(x > 0, a x x + b x, (expm1(min(x, e)) - x) c
// + b x), from left to right; a and c are softplus of the numbers that are trained.
Index xielu(LayerBuilder& layer, const FeedForward& mlp, Index x) {
  const auto alpha = [&](std::string_view suffix) {
    const Index made = layer.tensor({.name = "alpha", .fixed = 1});
    layer.elementwise("softplus", Function::kSigmoid, {}, {}, made);
    layer.last().parameters = {layer.parameter("mlp.act_fn", suffix, {1})};
    return made;
  };
  const auto made = [&](std::string_view name, Function function, Indices inputs, Indices saved) {
    return layer.elementwise(name, function, std::move(inputs), std::move(saved), layer.activation(name, mlp.ffn));
  };
  const auto sum = [&](std::string_view name, Index a, Index b) {
    const Index result = made(name, Function::kAdd, {a, b}, {});
    layer.last().gradient = GradientRule::kAlias;
    return result;
  };
  const Index of_positive = alpha(".alpha_p"), of_negative = alpha(".alpha_n");
  const Index positive = layer.tensor({.name = "positive", .per_token = mlp.ffn, .type = ElementType::kByte});
  layer.constant("positive", Function::kCopy, {x}, positive);
  // The gradient of a number is a product of every element, summed up.
  const auto times = [&](std::string_view name, Index of, Index number) {
    const Index result = made(name, Function::kMultiply, {of, number}, {of, number});
    layer.last().backward_workspace = {layer.activation("alpha.grad of each", mlp.ffn)};
    return result;
  };
  const Index once = times("alpha_x", x, of_positive);
  const Index twice = made("alpha_x_x", Function::kMultiply, {once, x}, {once, x});
  layer.release({once});
  const Index beta_x = made("beta_x", Function::kScale, {x}, {});
  const Index right = sum("right", twice, beta_x);
  layer.release({twice, beta_x});
  const Index least = made("least", Function::kScale, {x}, {x});
  const Index expm1 = made(kExpm1, Function::kTanh, {least}, {});
  layer.last().saved = {expm1};
  layer.release({least});
  const Index less = sum("expm1_less_x", expm1, x);
  layer.release({expm1});
  const Index scaled = times("alpha_less", less, of_negative);
  layer.release({less});
  const Index beta_again = made("beta_x", Function::kScale, {x}, {});
  const Index left = sum("left", scaled, beta_again);
  layer.release({scaled, beta_again});
  const Index result = made("xielu", Function::kAdd, {right, left}, {positive});
  layer.release({right, left, positive, of_positive, of_negative});
  return result;
}

Index plain(LayerBuilder& layer, const ModelDims& dims, const FeedForward& mlp, Index input) {
  const bool gelu = dims.activation == Activation::kGelu;
  const std::string_view name = gelu ? "gelu" : "relu";
  const Index up = expand(layer, dims, {.name = mlp.up, .result = "up", .n = mlp.ffn}, input);
  if (dims.activation == Activation::kXielu) return xielu(layer, mlp, up);
  if (dims.activation == Activation::kRelu2) return relu_squared(layer, mlp, up);
  const Index activated = layer.activation(name, mlp.ffn);
  return layer.elementwise(name, gelu ? Function::kGelu : Function::kRelu, {up}, {gelu ? up : activated}, activated);
}

}

Index feed_forward(LayerBuilder& layer, const ModelDims& dims, const FeedForward& mlp, Index input) {
  const bool is_gated = dims.activation == Activation::kSwiGlu || dims.activation == Activation::kGeGlu ||
                        dims.activation == Activation::kReGlu2;
  Index activated = layer.dropout(
      "ffn_dropout", dims.ffn_dropout, is_gated ? gated(layer, dims, mlp, input) : plain(layer, dims, mlp, input));
  if (!mlp.norm.empty()) {
    layer.hold({activated});
    activated = layer.norm(mlp.norm, "ffn_norm", dims.norm, mlp.ffn, activated);
  }
  const Index down = layer.linear({.name = mlp.down,
                                      .result = "down",
                                      .n = dims.hidden,
                                      .k = mlp.ffn,
                                      .bias = dims.mlp_bias,
                                      .conv1d = dims.conv1d},
      activated);
  layer.release({activated});
  layer.release(layer.held());
  return down;
}

}
