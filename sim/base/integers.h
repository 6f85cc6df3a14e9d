// Integers as other types, where the conversion is meant.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>

namespace foreshard {

constexpr std::size_t at(std::integral auto index) { return static_cast<std::size_t>(index); }
constexpr double as_double(std::int64_t value) { return static_cast<double>(value); }

}  // namespace foreshard
