// What the layers of a job's variants take at the least, for searches that look at the variants one
// after the other.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "sim/search/search.h"

namespace foreshard {

// layers_of() of each of the spaces, which `layers` says by its number: for search_order(). Lower
// bounds of their steps where they differ in axes, else 0, and 0 of those whose batch does not
// divide over their ranks: with them there is nothing to search. threads 0: all there are.
std::vector<Time> variant_floors(std::span<const SearchSpace* const> spaces,
                                 const std::function<Time(std::size_t)>& layers, int threads);

}  // namespace foreshard
