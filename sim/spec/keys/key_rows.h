// How rows of the table of plan keys are written; for the rows beside it only.
#pragma once

#include <array>
#include <nlohmann/json.hpp>
#include <span>

#include "sim/base/integers.h"
#include "sim/spec/checks/plan_check.h"
#include "sim/spec/plan_keys.h"
#include "sim/spec/plan_values.h"

namespace foreshard {

std::span<const PlanKey> shape_keys();    // what is computed, by whom, and in which pieces
std::span<const PlanKey> compute_keys();  // how it is computed

inline const char* word_of(const char* word) { return word; }

// The words of `values`: of an enumeration, or themselves.
template <const auto& values>
const char* word_at(std::size_t index) {
  return word_of(values[index]);
}

// All values of an enumeration, of which this is the last.
template <auto last>
inline constexpr auto kUpTo = [] {
  std::array<decltype(last), at(last) + 1> values{};
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<decltype(last)>(i);
  return values;
}();

inline constexpr std::array kNone = {"none"};

inline constexpr PlanKeyType kFlag{.kind = PlanKeyType::Kind::kFlag};

template <const auto& values>
constexpr PlanKeyType words() {
  return {.kind = PlanKeyType::Kind::kWords, .word = word_at<values>, .words = std::size(values)};
}
constexpr PlanKeyType count(std::int64_t least, std::int64_t most) {
  return {.kind = PlanKeyType::Kind::kInteger, .least = least, .most = most};
}
constexpr PlanKeyType number(double least, double most) {
  return {.kind = PlanKeyType::Kind::kNumber, .least_number = least, .most_number = most};
}
// A word of `values`, or a number.
template <const auto& values>
constexpr PlanKeyType or_number(PlanKeyType type) {
  type.word = word_at<values>;
  type.words = std::size(values);
  return type;
}
constexpr PlanKeyType other(const char* schema) { return {.kind = PlanKeyType::Kind::kOther, .schema = schema}; }

// A key of its own making: its type, how it is read from `n` into `d`, and what of `p` it is.
#define FORESHARD_KEY(path_, type_, reads, writes, ...)                                               \
  {                                                                                                   \
    .path = path_, .type = type_,                                                                     \
    .read = [](const PlanKey& key [[maybe_unused]], const ConfigNode& n, PlanDocument& d) { reads; }, \
    .value = [](const Plan& p) { return Json(writes); } __VA_OPT__(, ) __VA_ARGS__                    \
  }
// A member of the plan and nothing else, whose path is its name there, or (_AT) another.
#define FORESHARD_FLAG_AT(path_, member, ...) \
  FORESHARD_KEY(path_, kFlag, d.plan.member = n.as_bool(), p.member, __VA_ARGS__)
#define FORESHARD_COUNT_AT(path_, member, least_, most_, ...) \
  FORESHARD_KEY(                                              \
      path_, count(least_, most_), d.plan.member = n.as_int(key.type.least, key.type.most), p.member, __VA_ARGS__)
#define FORESHARD_NUMBER(member, type_, ...) \
  FORESHARD_KEY(                             \
      #member, type_, d.plan.member = n.as_double(key.type.least_number, key.type.most_number), p.member, __VA_ARGS__)
#define FORESHARD_WORD_AT(path_, member, values, ...) \
  FORESHARD_KEY(path_, words<values>(), d.plan.member = read_word(n, values), word_of(p.member), __VA_ARGS__)
#define FORESHARD_FLAG(member, ...) FORESHARD_FLAG_AT(#member, member, __VA_ARGS__)
#define FORESHARD_COUNT(member, ...) FORESHARD_COUNT_AT(#member, member, __VA_ARGS__)
#define FORESHARD_WORD(member, ...) FORESHARD_WORD_AT(#member, member, __VA_ARGS__)

}
