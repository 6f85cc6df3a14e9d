// The parts of a search, over the places of its grid. For search.cpp only.
#pragma once

#include <cstddef>
#include <optional>

#include "sim/search/places.h"

namespace foreshard {

// The place of the best plan alone; nothing where no plan holds.
std::optional<std::size_t> find_best(Places& places);

// Of SearchDetail::kAll. Judges every place of the grid whose knobs are as those of `best` (without
// one: as the base's).
void judge_grid(Places& places, std::optional<std::size_t> best);

// The one that holds with the least memory, of all places that were simulated.
std::optional<std::size_t> smallest_that_holds(Places& places);

// Pareto plans, neighbours, heatmap and what is close to the best, of the places that were judged.
void fill_tables(Places& places, std::size_t best, SearchResult& result);

}
