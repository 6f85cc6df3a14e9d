// Words and defaults of models as YAML, shared by its reader and its writer.
#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "sim/spec/model_spec.h"

namespace foreshard {

// In the order of the enumerations.
inline constexpr std::array<std::string_view, 6> kRoleWords = {"embedding", "block", "norm",
                                                               "head",      "loss",  "inner"};
inline constexpr std::array<std::string_view, 5> kTypeWords = {"compute", "fp32", "bf16", "int64",
                                                               "byte"};
inline constexpr std::array<std::string_view, 7> kKindWords = {
    "gemm", "attention", "norm", "elementwise", "embedding", "loss", "scan"};
inline constexpr std::array<std::string_view, 4> kGradientWords = {"own", "alias", "alias_first",
                                                                   "none"};

template <std::size_t N, typename E>
std::string_view word_in(const std::array<std::string_view, N>& words, E value) {
  return words[at(value)];
}

// "linear" for kMatrixProduct, else to_string(function).
std::string_view operation_word(Function function);
// Of the functions that a layer's operation may have, in their order.
std::vector<std::string_view> operation_words();
// Precondition: `word` is one of them.
Function function_of(std::string_view word);

// The kind that operations of the function usually have.
OperationKind usual_kind(Function function);

// What follows from `start`, whose function, kind, inputs, outputs, parameters and
// transposed_weight are set: name, saved and released tensors, n and k, gradient rule,
// kept_by_selective.
Operation with_defaults(Operation start, const LayerSpec& layer);

}  // namespace foreshard
