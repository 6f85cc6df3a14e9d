// Where a rank of mesh.tp has its part of a parameter that is cut evenly along one dimension.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace foreshard {

// Element i of the part is element (i / row) * whole_row + first + i % row of the whole.
struct ParameterCut {
  std::int64_t row = 0;  // 0: the part is the whole
  std::int64_t whole_row = 0;
  std::int64_t first = 0;

  std::int64_t whole(std::int64_t i) const { return row == 0 ? i : i / row * whole_row + first + i % row; }
  // Of `count` elements from i on, how many lie together in the whole, too.
  std::int64_t run(std::int64_t i, std::int64_t count) const {
    return row == 0 ? count : std::min(count, row - i % row);
  }
};

// Part `index` of `parts` of a parameter of `shape`, cut along dimension 0 or 1.
inline ParameterCut cut_of(
    const std::vector<std::int64_t>& shape, std::int64_t dimension, std::int64_t parts, std::int64_t index) {
  if (parts == 1) return {};
  std::int64_t width = 1;  // elements of an index of dimension 0
  for (std::size_t d = 1; d < shape.size(); ++d) width *= shape[d];
  if (dimension == 0) {
    const std::int64_t numel = shape[0] / parts * width;
    return {numel, 0, index * numel};
  }
  const std::int64_t row = width / parts;
  return {row, width, index * row};
}

// The part that has element `i` of the whole, and where.
struct PlaceInParts {
  std::int64_t part = 0, element = 0;
};
inline PlaceInParts place_in_parts(const ParameterCut& first_part, std::int64_t i) {
  const auto [row, whole_row, first] = first_part;
  if (row == 0) return {0, i};
  if (whole_row == 0) return {i / row, i % row};
  return {i % whole_row / row, i / whole_row * row + i % row};
}

}
