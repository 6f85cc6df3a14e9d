// Floors do not depend on each other.
#include "sim/search/variant_floors.h"

#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>

#include <algorithm>

namespace foreshard {

std::vector<Time> variant_floors(std::span<const SearchSpace* const> spaces,
                                 const std::function<Time(std::size_t)>& layers, int threads) {
  const bool has_axes = std::ranges::any_of(spaces, [](const SearchSpace* space) {
    return !space->base.mesh.is_plain() || space->base.mesh.pp > 1;
  });
  std::vector<Time> floors(spaces.size());
  if (!has_axes) return floors;
  oneapi::tbb::task_arena arena(threads > 0 ? threads : oneapi::tbb::task_arena::automatic);
  arena.execute([&] {
    oneapi::tbb::parallel_for(std::size_t{0}, spaces.size(), [&](std::size_t v) {
      const SearchSpace& space = *spaces[v];
      if (space.global_batch % space.base.mesh.data_parallel() == 0) floors[v] = layers(v);
    });
  });
  return floors;
}

}  // namespace foreshard
