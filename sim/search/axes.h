// The grid: which combinations there are, by their place on every axis. For the parts of search and
// who divides a space by models (planner/job_search.cpp).
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <vector>

#include "sim/search/search.h"

namespace foreshard {

enum class Axis : std::uint8_t { kShard, kReshard, kPrefetch, kRecompute, kMicroBatch, kKnobs };
inline constexpr std::size_t kAxes = at(Axis::kKnobs) + kMostKnobs;
using Place = std::array<std::int16_t, kAxes>;  // index on every axis; knobs from kKnobs on

// The base's prefetches with these depths, forward by forward.
std::vector<Prefetch> prefetches_of(
    const Plan& base, std::initializer_list<std::int64_t> forward, std::initializer_list<std::int64_t> backward);

// The space with every empty list filled. Throws Error(kInvalidInput) when the global batch fits no mesh.
SearchSpace complete(SearchSpace space, const Cluster& cluster);

// All places whose plans are possible, the last axis first. Of a completed space.
std::vector<Place> list_places(const SearchSpace& space, const ModelSpec& model, const Cluster& cluster);

// The index of the base's value on an axis that ties are settled on; nothing on the others
// (micro-batch, recompute) and where the base's value is not among the axis' own.
std::optional<std::int16_t> usual_value(const SearchSpace& space, std::size_t axis);

Plan plan_at(const SearchSpace& space, const Cluster& cluster, const Place& place);

inline std::int16_t at(const Place& place, Axis axis) { return place[at(axis)]; }

}
