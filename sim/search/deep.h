// Beyond the grid: further knobs, deeper prefetch and smaller reshard groups, then reshard per unit
// and recompute per block on the most promising meshes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/search/per_layer.h"
#include "sim/search/search.h"

namespace foreshard {

// What each stage found; nothing where it found nothing that fits.
struct DeepResult {
  std::optional<Candidate> best;      // of grid, knobs, layers and the plan as written
  std::optional<Candidate> written;   // where it fits
  SearchResult knobs;                 // counts and best of the space with knobs
  std::optional<LayerResult> layers;  // the best of all meshes that were tried
  std::int64_t judged = 0;            // plans of the per-layer stage, on all meshes
};

// `space` with every knob of knob_keys() that is not in `fixed`, prefetch up to 3 ahead and every
// group of whole nodes or powers of two to reshard to. Lists that are there stay.
SearchSpace with_all_knobs(SearchSpace space, const Cluster& cluster, const std::vector<std::string>& fixed);

// Where the depth begins: what search() found, and the plan as it was written, which may be on no
// grid (a trainer's exceptions) and is never beaten by the answer.
struct DeepStart {
  std::optional<Candidate> grid;
  std::optional<Plan> written;  // passed check(); of the space's global batch
};

// `deep` is the space to go on with. Layers are optimised where neither reshard nor recompute is fixed to ranges.
DeepResult search_deep(const SearchSpace& deep, const ModelSpec& model, const CostModel& costs, const DeepStart& start,
    const SearchOptions& options);

// Its last stage alone: from `best` to what is at least as fast, of layers that differ.
Candidate search_layers(const SearchSpace& space, const ModelSpec& model, const CostModel& costs, const Candidate& best,
    const SearchOptions& options);

}
