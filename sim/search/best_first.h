// A search for the best plan alone: SearchDetail::kBest. For search.cpp only.
#pragma once

#include "sim/search/places.h"

namespace foreshard {

SearchResult find_best(Places& places);

}  // namespace foreshard
