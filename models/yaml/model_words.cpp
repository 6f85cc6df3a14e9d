// What an operation usually saves is what derivatives.yaml of PyTorch names: see models/layers/layers.cpp.
#include "models/yaml/model_yaml_layer.h"
#include "sim/base/lookup.h"

namespace foreshard {
namespace {

// Functions of kernels that belong to no layer's operation.
bool is_of_layers(Function function) {
  return function != Function::kColumnSum && function != Function::kAdamW && function != Function::kSgd &&
         function != Function::kSumOfSquares;
}

// Flash attention keeps k, q, v, logsumexp, its output and the seeds.
Indices saved_by_attention(const Operation& op) {
  Indices saved = op.inputs;
  if (saved.size() == 3) std::swap(saved[0], saved[1]);
  if (op.outputs.size() < 2) {
    append(saved, op.outputs);
    return saved;
  }
  append(saved, {op.outputs[1], op.outputs[0]});
  saved.insert(saved.end(), op.outputs.begin() + 2, op.outputs.end());
  return saved;
}

Indices usually_saved(const Operation& op) {
  const Indices results(op.outputs.begin() + (op.outputs.empty() ? 0 : 1), op.outputs.end());
  Indices saved;
  switch (op.function) {
    case Function::kMatrixProduct:
    case Function::kMultiply:
    case Function::kSiluMultiply:
    case Function::kSilu:
    case Function::kConvolve:
    case Function::kGelu:
    case Function::kCrossEntropy: return op.inputs;
    case Function::kRelu:
    case Function::kLogSoftmax: return op.outputs;
    case Function::kAttention: return saved_by_attention(op);
    case Function::kScan:
    case Function::kDeltaRule:
      saved = op.inputs;
      append(saved, op.outputs);
      return saved;
    case Function::kRmsNorm:
    case Function::kLayerNorm:
    case Function::kNegativeLogLikelihood:
      saved = op.inputs;
      append(saved, results);
      return saved;
    default: return saved;
  }
}

std::string usual_name(const Operation& op, const LayerSpec& layer) {
  if (!op.parameters.empty()) {
    const std::string& name = layer.parameters[at(op.parameters.front())].name;
    return name.substr(0, name.rfind('.'));
  }
  if (op.outputs.empty()) return "";
  return layer.tensors[at(op.outputs.front())].name;
}

}

std::string_view operation_word(Function function) {
  return function == Function::kMatrixProduct ? "linear" : to_string(function);
}

std::vector<std::string_view> operation_words() {
  std::vector<std::string_view> words;
  for (std::size_t f = 0; f < kFunctions; ++f) {
    const auto function = static_cast<Function>(f);
    if (is_of_layers(function)) words.push_back(operation_word(function));
  }
  return words;
}

Function function_of(std::string_view word) {
  for (std::size_t f = 0; f < kFunctions; ++f) {
    const auto function = static_cast<Function>(f);
    if (is_of_layers(function) && operation_word(function) == word) return function;
  }
  return Function::kCopy;
}

OperationKind usual_kind(Function function) {
  return value_of(function,
      {{Function::kMatrixProduct, OperationKind::kGemm}, {Function::kAttention, OperationKind::kAttention},
          {Function::kRmsNorm, OperationKind::kNorm}, {Function::kLayerNorm, OperationKind::kNorm},
          {Function::kScan, OperationKind::kScan}, {Function::kDeltaRule, OperationKind::kScan},
          {Function::kEmbedding, OperationKind::kEmbedding}, {Function::kLogSoftmax, OperationKind::kSoftmaxLoss},
          {Function::kNegativeLogLikelihood, OperationKind::kSoftmaxLoss},
          {Function::kCrossEntropy, OperationKind::kSoftmaxLoss}},
      OperationKind::kElementwise);
}

Operation with_defaults(Operation op, const LayerSpec& layer) {
  op.name = usual_name(op, layer);
  op.saved = usually_saved(op);
  if (op.kind == OperationKind::kNorm && !op.outputs.empty())
    op.released.assign(op.outputs.begin() + 1, op.outputs.end());
  if (op.kind == OperationKind::kAttention && !op.outputs.empty()) {
    op.released.assign(op.outputs.rbegin(), op.outputs.rend() - 1);
    op.kept_by_selective = true;
  }
  if (op.kind == OperationKind::kEmbedding || op.function == Function::kArange) op.gradient = GradientRule::kNone;
  if (op.function == Function::kAdd) op.gradient = GradientRule::kAlias;
  if (op.kind != OperationKind::kGemm || op.parameters.empty()) return op;
  // [n, k], of a convolution [n, channels, height, width]; transposed [k, n].
  const std::vector<std::int64_t>& shape = layer.parameters[at(op.parameters.front())].shape;
  if (shape.size() < 2) return op;
  std::int64_t rest = 1;
  for (std::size_t i = 1; i < shape.size(); ++i) rest = checked_multiply(rest, shape[i]);
  op.n = op.transposed_weight ? rest : shape[0];
  op.k = op.transposed_weight ? shape[0] : rest;
  return op;
}

}
