// Numbers the tensors and parameters of a layer while it is written down, one operation after the
// other. For layers that are no decoder's (models/layers/layers.h).
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "sim/spec/model_spec.h"

namespace foreshard {

class LayerWriter {
 public:
  using Index = std::int16_t;
  using Indices = std::vector<Index>;

  LayerWriter(std::string name, LayerRole role) {
    layer_.name = std::move(name);
    layer_.role = role;
  }
  LayerWriter(std::string name, LayerRole role, Domain domain, TensorSpec input)
      : LayerWriter(std::move(name), role) {
    layer_.domain = domain;
    layer_.tensors.push_back(std::move(input));
  }

  Index tensor(TensorSpec spec) {
    layer_.tensors.push_back(std::move(spec));
    return static_cast<Index>(layer_.tensors.size() - 1);
  }
  Index parameter(std::string name, std::vector<std::int64_t> shape, std::int8_t part = 0) {
    layer_.parameters.push_back({.name = std::move(name), .shape = std::move(shape), .part = part});
    return static_cast<Index>(layer_.parameters.size() - 1);
  }
  Operation& operation(std::string name, OperationKind kind, Function function, Indices inputs,
                       Indices outputs) {
    Operation& op = layer_.operations.emplace_back();
    op.name = std::move(name);
    op.kind = kind;
    op.function = function;
    op.inputs = std::move(inputs);
    op.outputs = std::move(outputs);
    return op;
  }

  // Of the layer's tokens, k -> n features; `module`.weight is [n, k].
  enum class Bias : std::uint8_t { kNone, kAdded };
  Index linear(const std::string& module, std::int64_t n, std::int64_t k, Bias bias, Index input) {
    const Index output = tensor({.name = module, .per_token = n});
    Indices parameters = {parameter(module + ".weight", {n, k})};
    if (bias == Bias::kAdded) parameters.push_back(parameter(module + ".bias", {n}));
    Operation& op =
        operation(module, OperationKind::kGemm, Function::kMatrixProduct, {input}, {output});
    op.saved = {input};
    op.parameters = std::move(parameters);
    op.n = n;
    op.k = k;
    return output;
  }

  // LayerNorm over `width` features of every row of `result`, which has the shape of the input.
  Index layer_norm(const std::string& module, TensorSpec result, std::int64_t width, Index input) {
    TensorSpec statistics = result;
    statistics.type = ElementType::kFp32;
    statistics.per_token /= width;
    statistics.per_sequence /= width;
    const Index output = tensor(std::move(result));
    statistics.name = module + "_mean";
    const Index mean = tensor(statistics);
    statistics.name = module + "_rstd";
    const Index rstd = tensor(statistics);
    const Index weight = parameter(module + ".weight", {width});
    const Index bias = parameter(module + ".bias", {width});
    layer_.parameters[static_cast<std::size_t>(weight)].is_norm = true;
    Operation& op = operation(module, OperationKind::kNorm, Function::kLayerNorm, {input},
                              {output, mean, rstd});
    op.saved = {input, mean, rstd};
    op.released = {mean, rstd};
    op.parameters = {weight, bias};
    return output;
  }

  LayerSpec& layer() { return layer_; }
  LayerSpec finish(Index output) {
    layer_.output = output;
    return std::move(layer_);
  }

 protected:
  LayerSpec layer_;
};

}  // namespace foreshard
