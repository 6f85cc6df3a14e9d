// Values of a plan file that have more than one form (a word, a number or a list): their readers and writers, for
// plan_keys.cpp only. Readers throw ConfigError at the node, or NotModelled for what is right but not modelled.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "sim/base/config.h"
#include "sim/base/json.h"
#include "sim/base/letters.h"
#include "sim/spec/plan.h"
#include "sim/spec/plan_config.h"

namespace foreshard {

// The word of each value of an enumeration; plan.h names most of them.
const char* word_of(auto value) { return to_string(value); }
constexpr const char* word_of(Optimizer::Kind kind) {
  return word_at(kind, {"adamw", "sgd", "sgd-momentum", "adafactor", "adamw-8bit", "paged-adamw", "paged-adamw-8bit",
                           "torchao-8bit", "muon"});
}
constexpr const char* word_of(Optimizer::Implementation implementation) {
  return word_at(implementation, {"foreach", "fused", "loop"});
}
constexpr const char* word_of(Optimizer::Groups groups) { return word_at(groups, {"one", "decay"}); }
constexpr const char* word_of(Optimizer::ZeroGrad when) { return word_at(when, {"after_step", "after_forward"}); }
constexpr const char* word_of(Communicators communicators) { return word_at(communicators, {"shared", "separate"}); }
constexpr const char* word_of(HostSync sync) { return word_at(sync, {"none", "step"}); }

// The one of `values` whose word stands at `node`.
template <typename E, std::size_t N>
E read_word(const ConfigNode& node, const std::array<E, N>& values) {
  std::array<std::string_view, N> words;
  std::transform(values.begin(), values.end(), words.begin(), [](E value) { return word_of(value); });
  return values[node.as_choice(std::span<const std::string_view>(words))];
}

Runtime read_runtime(const ConfigNode& node, const std::string& torch);
UnitPlacement read_experts(const ConfigNode& node);  // own, or block: kRoot
RangedPolicy<Reshard> read_reshard_policy(const ConfigNode& node);
RangedPolicy<bool> read_unshard_in_backward(const ConfigNode& node);
void read_recompute_policy(const ConfigNode& node, PlanDocument& document);
Loss read_loss(const ConfigNode& node);
std::int64_t read_forward_prefetch(const ConfigNode& node);
std::optional<DType> read_optional_dtype(const ConfigNode& node);
Frozen read_frozen(const ConfigNode& node);
std::vector<std::string> read_lora_targets(const ConfigNode& node);
std::optional<double> read_optional_positive(const ConfigNode& node);
double read_decay(const ConfigNode& node);    // of a moment: 1 divides by 1 - 1
double read_epsilon(const ConfigNode& node);  // 0 divides a moment of 0 by 0
std::optional<std::int64_t> read_optional_steps(const ConfigNode& node);
std::optional<std::int64_t> read_rank(const ConfigNode& node);
AllocatorSettings read_allocator(const ConfigNode& node);  // PYTORCH_ALLOC_CONF's text, or default
std::string read_name(const ConfigNode& node, const char* expected);

Json written(const Runtime& runtime);
Json written(const Loss& loss);
Json written_experts(UnitPlacement placement);
Json written(const RangedPolicy<Reshard>& policy);
Json written(const RangedPolicy<Recompute>& policy);
Json written_unshard_in_backward(const RangedPolicy<bool>& policy);
Json written(const std::optional<DType>& dtype);
Json written(const std::optional<double>& number);
Json written(const std::optional<std::int64_t>& steps);
Json written(const Frozen& frozen);
Json written(const AllocatorSettings& settings);
void read_saved_modules(const ConfigNode& node, Lora& lora);
Json written_saved_modules(const Lora& lora);
Json written_lora_targets(const std::vector<std::string>& targets);

}
