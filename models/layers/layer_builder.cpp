// Each function appends to the layer's tables; what an operation keeps for backward is listed in
// `saved`, in the order in which autograd lets go of it.
#include "models/layers/layer_builder.h"

namespace foreshard {

Index LayerBuilder::parameter(std::string_view module, std::string_view suffix, std::vector<std::int64_t> shape) {
  return LayerWriter::parameter(std::string(module).append(suffix), std::move(shape));
}

Index LayerBuilder::elementwise(std::string_view name, Function function, Indices inputs, Indices saved, Index output) {
  pass(std::string(name), function, std::move(inputs), {output}).saved = std::move(saved);
  return output;
}

Index LayerBuilder::constant(std::string_view name, Function function, Indices inputs, Index output) {
  elementwise(name, function, std::move(inputs), {}, output);
  last().gradient = GradientRule::kNone;
  return output;
}

void LayerBuilder::split(std::string_view name, Index input, Indices outputs) {
  pass(std::string(name), Function::kCopy, {input}, std::move(outputs)).view = true;
}

Index LayerBuilder::concatenate(std::string_view name, Indices inputs) {
  std::int64_t sum = 0;
  for (const Index t : inputs) sum += width(t);
  const Index output = activation(name, sum);
  elementwise(name, Function::kCopy, std::move(inputs), {}, output);
  last().gradient = GradientRule::kAlias;
  return output;
}

Index LayerBuilder::linear(const Linear& linear, Index input) {
  Indices parameters = {parameter(
      linear.name, ".weight", linear.conv1d ? std::vector{linear.k, linear.n} : std::vector{linear.n, linear.k})};
  if (linear.bias) parameters.push_back(parameter(linear.name, ".bias", {linear.n}));
  const Index output = matrix_product(linear, input, std::move(parameters));
  last().transposed_weight = linear.conv1d;
  return output;
}

Index LayerBuilder::matrix_product(const Linear& linear, Index input, Indices parameters) {
  const Index output = activation(linear.result, linear.n);
  Operation& op =
      operation(std::string(linear.name), OperationKind::kGemm, Function::kMatrixProduct, {input}, {output});
  op.saved = {input};
  op.parameters = std::move(parameters);
  op.n = linear.n;
  op.k = linear.k;
  // Only aten::mm counts; with a bias it is aten::addmm (but the engine's runs as one product).
  const bool counts = op.parameters.size() == 1 || is_native();
  op.kept_by_selective = counts && matrix_products_++ % 2 == 0;
  return output;
}

void LayerBuilder::leave_off_selective() {
  if (last().parameters.size() == 1 || is_native()) --matrix_products_;
  last().kept_by_selective = false;
}

void LayerBuilder::look_up(std::string_view table, Indices ids, Index rows, Index parameter) {
  Operation& lookup = operation(std::string(table), OperationKind::kEmbedding, Function::kEmbedding);
  lookup.inputs = lookup.saved = std::move(ids);
  lookup.outputs = {rows};
  lookup.gradient = GradientRule::kNone;
  lookup.parameters = {parameter};
}

Index LayerBuilder::norm(std::string_view name, std::string_view result, NormKind kind, std::int64_t width, Index input,
    std::int64_t groups) {
  const std::string base(result);
  const Index output = activation(base, width * groups);
  Indices outputs = {output};
  const bool is_rms = kind == NormKind::kRms || kind == NormKind::kRmsUnweighted;
  if (!is_rms) outputs.push_back(activation(base + "_mean", groups, ElementType::kFp32));
  outputs.push_back(activation(base + "_rstd", groups, ElementType::kFp32));
  Indices parameters;
  if (kind != NormKind::kLayerUnweighted && kind != NormKind::kRmsUnweighted) {
    parameters = {parameter(name, ".weight", {width})};
    layer_.parameters.back().is_norm = true;
  }
  if (kind == NormKind::kLayer) parameters.push_back(parameter(name, ".bias", {width}));
  Operation& op =
      operation(std::string(name), OperationKind::kNorm, is_rms ? Function::kRmsNorm : Function::kLayerNorm);
  op.inputs = {input};
  op.saved = {input};
  op.saved.insert(op.saved.end(), outputs.begin() + 1, outputs.end());
  if (!is_native()) op.released.assign(outputs.begin() + 1, outputs.end());
  op.outputs = std::move(outputs);
  op.parameters = std::move(parameters);
  return output;
}

Index LayerBuilder::residual_add(std::string_view name, std::int64_t width, Index residual, Index branch) {
  const Index output = activation(name, width);
  elementwise(name, Function::kAdd, {residual, branch}, {}, output);
  last().gradient = GradientRule::kAlias;
  return output;
}

Index LayerBuilder::dropout(std::string_view name, bool drops, Index input) {
  if (!drops || is_native()) return input;
  const std::int64_t per_token = width(input);
  const Index output = activation(name, per_token);
  const Index mask = activation(std::string(name) + "_mask", per_token, ElementType::kByte);
  elementwise(name, Function::kDropout, {input}, {mask}, output);
  last().outputs.push_back(mask);
  last().released = {mask, input};
  return output;
}

void LayerBuilder::release(const Indices& tensors) {
  if (!is_native()) LayerWriter::release(tensors);
}

void LayerBuilder::begin_nested(std::string module) {
  layer_.nested.push_back(std::move(module));
  part_ = static_cast<std::int8_t>(layer_.nested.size());
}

}
