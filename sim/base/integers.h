// Integers as other types, where the conversion is meant.
#pragma once

#include <concepts>
#include <cstddef>
#include <type_traits>

namespace foreshard {

// What indexes an array: an integer, or a value of an enumeration.
template <typename Index>
requires std::integral<Index> || std::is_enum_v<Index>
constexpr std::size_t at(Index index) { return static_cast<std::size_t>(index); }
constexpr double as_double(std::integral auto value) { return static_cast<double>(value); }

}
