// Tables in place of switches; what C++23's ranges make of lists, which C++20's lack.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <initializer_list>
#include <ranges>
#include <string_view>
#include <utility>
#include <vector>

namespace foreshard {

template <typename Value>
constexpr bool is_among(Value value, std::initializer_list<Value> list) {
  for (const Value& each : list)
    if (each == value) return true;
  return false;
}

// The value beside the key, else `otherwise`.
template <typename Key, typename Value, std::size_t rows>
constexpr Value value_of(Key key, const std::pair<Key, Value> (&table)[rows], Value otherwise) {
  for (const auto& [each, value] : table)
    if (each == key) return value;
  return otherwise;
}
template <typename Map>
typename Map::mapped_type value_of(const Map& map, const auto& key, typename Map::mapped_type otherwise) {
  const auto found = map.find(key);
  return found == map.end() ? otherwise : found->second;
}

// The value beside the key, made when it is first asked for.
template <typename Map, typename Make>
typename Map::mapped_type& remembered(Map& map, const typename Map::key_type& key, Make make) {
  const auto found = map.find(key);
  return found != map.end() ? found->second : map.emplace(key, make()).first->second;
}

template <typename Range, typename Value, typename Projection = std::identity>
requires(!std::convertible_to<const Range&, std::string_view>) constexpr bool contains(
    const Range& range, const Value& value, Projection of = {}) {
  return std::ranges::find(range, value, of) != std::ranges::end(range);
}
constexpr bool contains(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }
constexpr bool contains(std::string_view text, char letter) { return text.find(letter) != text.npos; }

template <typename List, typename Range>
requires(!std::convertible_to<List&, std::string_view>) constexpr void append(List& list, const Range& more) {
  list.insert(list.end(), std::ranges::begin(more), std::ranges::end(more));
}
template <typename List>
void append(List& list, std::initializer_list<typename List::value_type> more) {
  for (const auto& each : more) list.push_back(each);  // (of a Json, insert takes them as one)
}

template <typename Value, typename Range, typename Of>
std::vector<Value> list_of(Range&& range, Of of) {
  std::vector<Value> list;
  for (auto&& each : range) list.emplace_back(std::invoke(of, each));
  return list;
}
template <typename Value, typename Range, typename Is>
std::vector<Value> list_where(Range&& range, Is is) {
  std::vector<Value> list;
  for (auto&& each : range)
    if (std::invoke(is, each)) list.push_back(each);
  return list;
}
template <typename Value, typename Range, typename Of>
Value sum_of(Range&& range, Of of) {
  Value sum{};
  for (auto&& each : range) sum += std::invoke(of, each);
  return sum;
}

}
