// Tables in place of switches.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <utility>

namespace foreshard {

template <typename Value>
constexpr bool is_among(Value value, std::initializer_list<Value> list) {
  for (const Value& each : list) {
    if (each == value) return true;
  }
  return false;
}

// The value beside the key, else `otherwise`.
template <typename Key, typename Value, std::size_t rows>
constexpr Value value_of(Key key, const std::pair<Key, Value> (&table)[rows], Value otherwise) {
  for (const auto& [each, value] : table) {
    if (each == key) return value;
  }
  return otherwise;
}

}  // namespace foreshard
