// The JSON type of every output, keys in insertion order, and its one way to become text.
//
// Only the forward declaration, to keep builds fast: a .cpp that builds or reads values includes
// <nlohmann/json.hpp> as well. Input files are read through sim/base/config.h instead.
#pragma once

#include <iterator>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <type_traits>

namespace foreshard {

using Json = nlohmann::ordered_json;

// Two spaces per level, a newline at the end, doubles as short as still read back to the same
// value. Bytes that are not UTF-8 (a file name, say) become U+FFFD.
// Throws Error(kInternal) for NaN and infinity, which JSON cannot express.
std::string to_text(const Json& value);

// The list of what `make` makes of each.
template <typename Range, typename Make>
auto json_list(const Range& range, Make&& make) {
  using List = std::invoke_result_t<Make, decltype(*std::begin(range))>;
  List list = List::array();
  for (const auto& each : range) list.push_back(make(each));
  return list;
}

}
