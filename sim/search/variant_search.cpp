// They are taken by what their layers and the collectives inside them take: the first that fits is then near the best,
// and most of the others are given up after a graph for each of their families (sim/search/best_first.cpp).
#include "sim/search/variant_search.h"

#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>

#include <algorithm>
#include <numeric>

namespace foreshard {
namespace {

void add_counts(SearchResult& all, const SearchResult& other, std::int64_t sign) {
  all.enumerated += sign * other.enumerated;
  all.rejected_memory += sign * other.rejected_memory;
  all.simulated += sign * other.simulated;
  all.pruned += sign * other.pruned;
}

// Which of two results without a best plan answers better: one that at least fits, else the smaller.
bool is_nearer(const SearchResult& a, const SearchResult& b) {
  if (a.riskier || b.riskier) return a.riskier && (!b.riskier || a.riskier->seconds < b.riskier->seconds);
  return a.smallest && (!b.smallest || a.smallest->peak_allocated < b.smallest->peak_allocated);
}

// The likeliest to have the best plan first, of equal ones the last.
std::vector<std::size_t> search_order(const std::vector<SpaceFloor>& floors) {
  std::vector<std::size_t> order(floors.size());
  std::iota(order.rbegin(), order.rend(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t v) { return std::pair(floors[v].smallest, floors[v].layers); });
  return order;
}

}

// Known where they differ in axes, and not of those whose batch does not divide over their ranks:
// with them there is nothing to search. They do not depend on each other.
std::vector<SpaceFloor> VariantSearch::floors_of(std::size_t count) const {
  const std::size_t first = floors_.size();
  std::vector<SpaceFloor> floors(count);
  std::vector<std::size_t> asked;
  bool has_axes = false;
  for (std::size_t v = 0; v < count; ++v) {
    const SearchSpace& space = variants_.space(first + v);
    has_axes |= !space.base.mesh.is_plain() || space.base.mesh.pp > 1;
    if (space.global_batch % space.base.mesh.data_parallel() == 0) asked.push_back(v);
  }
  if (!has_axes) return floors;
  oneapi::tbb::task_arena arena(options_.threads > 0 ? options_.threads : oneapi::tbb::task_arena::automatic);
  arena.execute([&] {
    oneapi::tbb::parallel_for(
        std::size_t{0}, asked.size(), [&](std::size_t i) { floors[asked[i]] = variants_.floor(first + asked[i]); });
  });
  return floors;
}

void VariantSearch::look_at(std::size_t count) {
  const std::size_t first = floors_.size();
  const bool is_alone = first == 0 && count == 1;
  const std::vector<SpaceFloor> floors = floors_of(count);
  floors_.insert(floors_.end(), floors.begin(), floors.end());
  for (const std::size_t v : search_order(floors))
    consider(first + v, is_alone ? options_.detail : SearchDetail::kBest, first == 0);
}

void VariantSearch::consider(std::size_t v, SearchDetail detail, bool is_first) {
  SearchOptions own = options_;
  own.detail = detail;
  if (!is_first) own.faster_than = kAnyStep;
  const bool has_limit = found_.best && options_.objective == Objective::kTime;
  double to_beat = kAnyStep;
  if (has_limit) {
    const double tie = 1 + (v < *best_ ? options_.tie : -options_.tie);
    to_beat = found_.best->seconds * tie;
    const bool is_own = variants_.own_limit != nullptr;
    own.faster_than = (is_own ? variants_.own_limit(v) : found_.best->unfinished_seconds) * tie;
    if (floors_[v].layers.seconds() >= (is_own ? *own.faster_than : to_beat)) {
      given_up_.push_back(v);
      return;
    }
  }
  try {
    const SearchSpace& space = variants_.space(v);
    const bool begins = own.faster_than && found_.best;
    SearchResult r = variants_.search(v, begins ? begun_as(space, found_.best->plan) : space, own);
    add_counts(counts_, r, 1);
    const bool wins =
        !best_ || (found_.best ? r.best && (has_limit ? r.best->seconds < to_beat
                                                      : r.best->peak_allocated <= found_.best->peak_allocated)
                               : r.best || is_nearer(r, found_));
    if (!wins) return;
    found_ = std::move(r);
    best_ = v;
    has_detail_ = detail == options_.detail;
  } catch (const Error& error) {
    // A global batch that does not divide over these ranks.
    if (error.exit_code() != ExitCode::kInvalidInput) throw;
    failure_ = error;
  }
}

void VariantSearch::replace_found(SearchResult result) {
  add_counts(counts_, found_, -1);
  found_ = std::move(result);
  add_counts(counts_, found_, 1);
}

}
