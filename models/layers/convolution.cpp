// Causal convolutions of each channel along the positions, as PyTorch runs them where causal-conv1d
// is not installed (transformers 5.17, causal_conv1d_fn): it copies what it reads to channels
// behind one another, and makes as many positions more as it looks back, which are cut off.
//
// LFM2's mixer (models/lfm2, Lfm2ShortConv.forward): one product makes three parts, of which two
// are multiplied, convolved, and multiplied by the third.
#include <string>

#include "models/layers/block_parts.h"

namespace foreshard {

Index convolve(LayerBuilder& layer, const std::string& name, Indices parameters, std::int64_t positions, Index input) {
  const std::int64_t width = layer.width(input);
  const Index made = layer.tensor({.name = "convolved", .per_token = width, .per_sequence = width * (positions - 1)});
  layer.elementwise(name, Function::kConvolve, {input}, {input}, made);
  Operation& op = layer.last();
  op.parameters = std::move(parameters);
  op.forward_workspace = op.backward_workspace = {layer.activation("convolution's input by channels", width)};
  layer.release({input});
  return made;
}

Index mix_by_convolution(LayerBuilder& layer, const ModelDims& dims, const ParameterNames& names, Index input) {
  const std::string module = std::string(names.mamba) + ".";
  const std::int64_t width = dims.hidden;
  Indices parameters = {layer.parameter(module, "conv.weight", {width, 1, dims.convolution.positions})};
  if (dims.convolution.bias) parameters.push_back(layer.parameter(module, "conv.bias", {width}));
  const std::string in_name = module + "in_proj", out_name = module + "out_proj";
  const Index parts = layer.linear(
      {.name = in_name, .result = "b_c_x", .n = 3 * width, .k = width, .bias = dims.convolution.bias}, input);
  const Index b = layer.activation("b", width), c = layer.activation("c", width), x = layer.activation("x", width);
  layer.split("chunk", parts, {b, c, x});
  const Index product = layer.elementwise("b_x", Function::kMultiply, {b, x}, {b, x}, layer.activation("b_x", width));
  const Index made = convolve(layer, module + "conv", parameters, dims.convolution.positions, product);
  const Index gated = layer.elementwise(
      "gated_convolution", Function::kMultiply, {c, made}, {c, made}, layer.activation("gated_convolution", width));
  const Index mixed =
      layer.linear({.name = out_name, .result = "mixed", .n = width, .k = width, .bias = dims.convolution.bias}, gated);
  layer.release({made, gated, b, c, x, parts, input});
  return mixed;
}

}
