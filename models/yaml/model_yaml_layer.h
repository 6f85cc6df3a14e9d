// One layer of a model as YAML, and what reading it shares with reading the model.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/base/config.h"
#include "sim/spec/model_spec.h"

namespace foreshard {

namespace model_limits {
// Far above any model, far below where sums over a layer leave 64 bits.
inline constexpr std::int64_t kPerToken = std::int64_t{1} << 32;   // or position, or image
inline constexpr std::int64_t kElements = std::int64_t{1} << 44;   // of a sequence, or in all
inline constexpr std::int64_t kExtent = std::int64_t{1} << 32;     // of a parameter
inline constexpr std::int64_t kParameter = std::int64_t{1} << 50;  // elements
inline constexpr std::int64_t kWidth = std::int64_t{1} << 28;      // of a matrix product
inline constexpr std::int64_t kPositions = std::int64_t{1} << 24;
inline constexpr std::int64_t kDomain = std::int64_t{1} << 20;
inline constexpr std::int64_t kCalls = 64;  // of a model in one step
inline constexpr std::size_t kKinds = 1000;
inline constexpr std::size_t kNames = 30'000;  // tensors, parameters or operations of a layer
inline constexpr std::int64_t kLayers = 100'000;
}

template <typename E, std::size_t N>
E read_choice(const ConfigNode& node, const std::array<std::string_view, N>& words) {
  return static_cast<E>(node.as_choice(std::span<const std::string_view>(words)));
}

inline bool read_flag(const ConfigNode& node, std::string_view key, bool otherwise) {
  const ConfigNode* value = node.find(key);
  return value == nullptr ? otherwise : value->as_bool();
}

inline std::int64_t read_size(
    const ConfigNode& node, std::string_view key, std::int64_t least, std::int64_t most, std::int64_t otherwise) {
  const ConfigNode* value = node.find(key);
  return value == nullptr ? otherwise : value->as_int(least, most);
}

inline std::string read_text(const ConfigNode& node, std::string_view key, std::string otherwise) {
  const ConfigNode* value = node.find(key);
  return value == nullptr ? std::move(otherwise) : value->as_string();
}

// Numbers of declared names, in the order of declaration.
class DeclaredNames {
 public:
  explicit DeclaredNames(const char* noun) : noun_(noun) {}
  void declare(const ConfigNode& node, const std::string& name);
  std::int16_t find(const ConfigNode& node) const;  // throws where there is none
  const std::string& name(std::int16_t i) const { return names_[at(i)]; }
  const ConfigNode& node(std::int16_t i) const { return nodes_[at(i)]; }

 private:
  const char* noun_;
  std::map<std::string, std::int16_t> numbers_;
  std::vector<std::string> names_;
  std::vector<ConfigNode> nodes_;
};

// `name` is the layer's key.
LayerSpec read_layer(const ConfigNode& node, std::string name);

// What a model as YAML must be as a whole, with the places of its parts for errors.
struct ModelPlaces {
  ConfigNode root, order;
  std::vector<ConfigNode> kinds;   // of ModelSpec::kinds
  std::vector<ConfigNode> layers;  // of ModelSpec::order
};

// Throws ConfigError: see models/yaml/model_yaml.h.
void check_model(const ModelSpec& model, const ModelPlaces& places);

// Errors of `run` that name no place get that of `node`.
void located(const ConfigNode& node, auto run) {
  try {
    run();
  } catch (const ConfigError&) {
    throw;
  } catch (const Error& error) {
    throw node.error(error.what());
  }
}

// Words and defaults of models as YAML, shared by its reader and its writer.

// In the order of the enumerations.
inline constexpr std::array<std::string_view, 6> kRoleWords = {"embedding", "block", "norm", "head", "loss", "inner"};
inline constexpr std::array<std::string_view, 5> kTypeWords = {"compute", "fp32", "bf16", "int64", "byte"};
inline constexpr std::array<std::string_view, 7> kKindWords = {
    "gemm", "attention", "norm", "elementwise", "embedding", "loss", "scan"};
inline constexpr std::array<std::string_view, 4> kGradientWords = {"own", "alias", "alias_first", "none"};

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

// What follows from `start`, whose function, kind, inputs, outputs, parameters and transposed_weight are set: name,
// saved and released tensors, n and k, gradient rule, kept_by_selective.
Operation with_defaults(Operation start, const LayerSpec& layer);

}
