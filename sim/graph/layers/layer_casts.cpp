// Operations are copied one by one; where a cast goes in, later ones read its output instead.
#include <utility>

#include "sim/base/integers.h"
#include "sim/graph/layers/layer_autograd.h"

namespace foreshard {
namespace {

class Inserter {
 public:
  Inserter(const LayerSpec& layer, const ProgramOptions& options)
      : old_(layer), options_(options), layer_(layer), renamed_(layer.tensors.size()) {
    layer_.operations.clear();
    for (std::size_t t = 0; t < renamed_.size(); ++t) renamed_[t] = static_cast<Index>(t);
  }

  CastedLayer run() {
    const bool casts_outputs = options_.output_dtype.has_value();
    if (options_.begins_unit && old_.role != LayerRole::kEmbedding) cast(0, options_.compute, LayerSegment::kBefore);
    for (std::size_t o = 0; o < old_.operations.size(); ++o) {
      Operation op = old_.operations[o];
      const bool nested = options_.split_parts && op.part > 0 && casts_outputs;
      const bool enters = nested && (o == 0 || old_.operations[o - 1].part != op.part);
      const bool leaves = nested && (o + 1 == old_.operations.size() || old_.operations[o + 1].part != op.part);
      if (enters && op.kind != OperationKind::kEmbedding) cast(op.inputs.front(), options_.compute, 0);
      for (Indices* tensors : {&op.inputs, &op.saved, &op.released})
        for (Index& t : *tensors) t = renamed_[at(t)];
      const Index result = op.outputs.empty() ? Index{-1} : op.outputs.front();
      layer_.operations.push_back(std::move(op));
      casts_.emplace_back();
      if (leaves) cast(result, *options_.output_dtype, 0);
    }
    if (options_.ends_unit && casts_outputs && old_.role != LayerRole::kLoss) {
      cast(old_.output, *options_.output_dtype, LayerSegment::kAfter);
      layer_.output = renamed_[at(old_.output)];
    }
    return {std::move(layer_), std::move(casts_)};
  }

 private:
  void cast(Index tensor, DType dtype, std::int8_t part) {
    const Index from = renamed_[at(tensor)];
    TensorSpec spec = layer_.tensors[at(from)];
    spec.name += " cast";
    layer_.tensors.push_back(std::move(spec));
    const auto to = static_cast<Index>(layer_.tensors.size() - 1);
    Operation op;
    op.name = "cast";
    op.function = Function::kCast;
    op.inputs = {from};
    op.outputs = {to};
    op.part = part;
    if (from == 0) op.released = {};
    layer_.operations.push_back(std::move(op));
    casts_.emplace_back(dtype);
    renamed_[at(tensor)] = to;
  }

  const LayerSpec& old_;
  const ProgramOptions& options_;
  LayerSpec layer_;
  std::vector<std::optional<DType>> casts_;
  Indices renamed_;
};

DType wider(DType a, DType b) {
  if (a == b) return a;
  return size_of(a) == size_of(b) || a == DType::kFp32 || b == DType::kFp32 ? DType::kFp32 : a;
}

bool is_float(const TensorElement& element) { return element.type == ElementType::kCompute; }

}

std::int64_t TensorElement::size() const {
  switch (type) {
    case ElementType::kInt64: return 8;
    case ElementType::kByte: return 1;
    case ElementType::kCompute:
    case ElementType::kFp32:
    case ElementType::kBf16: break;
  }
  return size_of(dtype);
}

CastedLayer with_casts(const LayerSpec& layer, const ProgramOptions& options) {
  if (!options.output_dtype && options.arrives.value_or(options.compute) == options.compute) return {};
  return Inserter(layer, options).run();
}

std::vector<TensorElement> element_types(
    const LayerSpec& layer, const CastedLayer& casts, const ProgramOptions& options) {
  std::vector<TensorElement> result(layer.tensors.size());
  const DType arrives = options.arrives.value_or(options.compute);
  // (An fp32 stream between blocks arrives as it is, and what the layer narrows is of `compute`.)
  const bool streams_fp32 = layer.tensors[0].type == ElementType::kFp32;
  const bool narrows = options.begins_unit || layer.role == LayerRole::kEmbedding || streams_fp32;
  const DType inside = narrows ? options.compute : arrives;
  for (std::size_t t = 0; t < result.size(); ++t) {
    const ElementType type = layer.tensors[t].type;
    result[t] = {type, inside};
    if (type == ElementType::kFp32) result[t] = {ElementType::kCompute, DType::kFp32};
    if (type == ElementType::kBf16) result[t] = {ElementType::kCompute, DType::kBf16};
  }
  if (layer.role != LayerRole::kEmbedding && !streams_fp32) result[0].dtype = arrives;
  if (layer.joins >= 0) result[at(layer.joins)].dtype = options.joined_dtype.value_or(options.compute);
  for (std::size_t o = 0; o < layer.operations.size(); ++o) {
    const Operation& op = layer.operations[o];
    std::optional<DType> dtype;
    if (!casts.casts.empty() && casts.casts[o]) {
      dtype = casts.casts[o];
    } else if (op.function != Function::kCast && op.kind != OperationKind::kEmbedding) {
      for (Index t : op.inputs) {
        if (!is_float(result[at(t)])) continue;
        const bool promotes = op.function == Function::kAdd || op.function == Function::kMultiply;
        if (dtype && !promotes) break;
        dtype = dtype ? wider(*dtype, result[at(t)].dtype) : result[at(t)].dtype;
      }
    }
    for (Index t : op.outputs)
      if (layer.tensors[at(t)].type == ElementType::kCompute && dtype) result[at(t)].dtype = *dtype;
  }
  return result;
}

}
