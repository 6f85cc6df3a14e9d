// A search that judges every place: SearchDetail::kAll. For search.cpp only.
#pragma once

#include "sim/search/places.h"

namespace foreshard {

SearchResult judge_every_place(Places& places);

}  // namespace foreshard
