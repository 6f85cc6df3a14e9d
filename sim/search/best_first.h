// A search for the best plan alone. For search.cpp only.
#pragma once

#include <cstddef>
#include <optional>

#include "sim/search/places.h"

namespace foreshard {

// Its place; nothing where no plan holds.
std::optional<std::size_t> find_best(Places& places);

}  // namespace foreshard
