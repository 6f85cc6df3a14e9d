// What a table says of a family: its row, or one of defaults.
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string_view>

namespace foreshard {

template <typename Row, std::size_t kRows>
Row row_of(const Row (&rows)[kRows], std::string_view family) {
  const auto found = std::ranges::find_if(rows, [&](const Row& row) { return row.family == family; });
  return found == std::end(rows) ? Row{} : *found;
}

}
