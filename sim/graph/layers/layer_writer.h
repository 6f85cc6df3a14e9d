// Writes a layer down, or what takes an operation's place in one: each operation behind the tensors that it makes.
#pragma once

#include "sim/base/lookup.h"
#include "sim/spec/model_spec.h"

namespace foreshard {

// The number of the tensor that is now the layer's last.
inline Index add_tensor(LayerSpec& layer, TensorSpec spec) {
  layer.tensors.push_back(std::move(spec));
  return static_cast<Index>(layer.tensors.size() - 1);
}
// Precondition: the layer has it.
inline Operation pass(std::string name, Function function, Index from, Index to) {
  return Operation{.name = std::move(name), .function = function, .inputs = {from}, .outputs = {to}};
}

inline const TensorSpec& tensor(const LayerSpec& layer, Index index) { return layer.tensors[at(index)]; }

// Every tensor that the operation names becomes to(it).
void renumber(Operation& op, const auto& to) {
  for (Indices* list : {&op.inputs, &op.outputs, &op.saved, &op.released, &op.backward_temporaries,
           &op.forward_workspace, &op.backward_workspace})
    for (Index& t : *list) t = to(t);
  for (SideProduct& p : op.products) p.rows = to(p.rows), p.steps = to(p.steps);
}

class LayerWriter {
 public:
  LayerWriter(std::string name, LayerRole role, TensorSpec input, Domain domain = {})
      : own_{.name = std::move(name), .role = role, .tensors = {std::move(input)}, .domain = domain},
        layer_(own_),
        operations_(own_.operations) {}
  // Into what there is.
  explicit LayerWriter(LayerSpec& layer) : LayerWriter(layer, layer.operations) {}
  LayerWriter(LayerSpec& layer, std::vector<Operation>& operations) : layer_(layer), operations_(operations) {}
  LayerWriter& operator=(LayerWriter&&) = delete;  // nor is it copied

  Index tensor(TensorSpec spec) { return add_tensor(layer_, std::move(spec)); }
  Index activation(std::string_view name, std::int64_t per_token, ElementType type = ElementType::kCompute) {
    return tensor({.name = std::string(name), .per_token = per_token, .type = type});
  }
  Index like(Index of, std::string name, ElementType type) {
    TensorSpec spec = spec_of(of);
    spec.name = std::move(name);
    spec.type = type;
    return tensor(std::move(spec));
  }
  const TensorSpec& spec_of(Index tensor) const { return layer_.tensors[at(tensor)]; }
  // Elements per token.
  std::int64_t width(Index tensor) const { return spec_of(tensor).per_token; }

  Index parameter(std::string name, std::vector<std::int64_t> shape) {
    return parameter(std::move(name), std::move(shape), part_);
  }
  Index parameter(std::string name, std::vector<std::int64_t> shape, std::int8_t part) {
    layer_.parameters.push_back({.name = std::move(name), .shape = std::move(shape), .part = part});
    return static_cast<Index>(layer_.parameters.size() - 1);
  }

  Operation& operation(
      std::string name, OperationKind kind, Function function, Indices inputs = {}, Indices outputs = {}) {
    return operations_.emplace_back(Operation{.name = std::move(name),
        .kind = kind,
        .function = function,
        .inputs = std::move(inputs),
        .outputs = std::move(outputs),
        .part = part_});
  }
  Operation& pass(std::string name, Function function, Indices inputs, Indices outputs) {
    return operation(std::move(name), OperationKind::kElementwise, function, std::move(inputs), std::move(outputs));
  }
  // The same, of an activation of its own, which has the operation's name.
  Index made(const std::string& name, Function function, Indices inputs, std::int64_t per_token, Indices saved = {}) {
    const Index result = activation(name, per_token);
    pass(name, function, std::move(inputs), {result}).saved = std::move(saved);
    return result;
  }
  // Integers and constants: nothing to differentiate.
  Operation& constant(std::string name, Function function, Indices inputs, Indices outputs) {
    Operation& op = pass(std::move(name), function, std::move(inputs), std::move(outputs));
    op.gradient = GradientRule::kNone;
    return op;
  }
  Operation& last() { return operations_.back(); }
  // Python's names end with the last operation.
  void release(const Indices& tensors) { append(last().released, tensors); }

  LayerSpec& layer() { return layer_; }
  LayerSpec finish(Index output) {
    layer_.output = output;
    return std::move(layer_);
  }

 protected:
  LayerSpec own_;
  LayerSpec& layer_;
  std::vector<Operation>& operations_;
  std::int8_t part_ = 0;  // the module that parameters and operations belong to
};

}
