#include "sim/search/axes.h"

#include <algorithm>

#include "sim/base/error.h"
#include "sim/spec/checks/plan_check.h"

namespace foreshard {
namespace {

constexpr std::int64_t kLargestMicroBatch = 64;

// Ranks with samples of their own; the base's other axes stay as they are.
std::int64_t data_ranks(const SearchSpace& space, const Cluster& cluster) {
  return cluster.gpus / space.base.mesh.sharing();
}

// `inner`: ranks of the axes inside of shard.
std::vector<std::int64_t> default_shard_groups(const Cluster& cluster, std::int64_t inner) {
  std::vector<std::int64_t> groups;
  const std::int64_t ranks = cluster.gpus / inner;
  const std::int64_t node = cluster.gpus_per_node();
  const std::int64_t domain = node * cluster.node.link_domain;
  for (std::int64_t g = 1; g <= ranks; ++g) {
    if (ranks % g != 0) continue;
    const bool power_of_two = (g & (g - 1)) == 0;
    const std::int64_t gpus = g * inner;
    const bool whole_nodes_doubling = gpus % node == 0 && ((gpus / node) & (gpus / node - 1)) == 0;
    const bool whole_domains = domain > node && gpus % domain == 0;
    if (power_of_two || whole_nodes_doubling || whole_domains || g == ranks) groups.push_back(g);
  }
  return groups;
}

std::vector<Reshard> default_reshards(const Cluster& cluster) {
  std::vector<Reshard> reshards = {{Reshard::Kind::kAlways, 0}, {Reshard::Kind::kNever, 0}};
  if (cluster.nodes() > 1) reshards.push_back({Reshard::Kind::kGroup, cluster.gpus_per_node()});
  const std::int64_t domain = cluster.gpus_per_node() * cluster.node.link_domain;
  if (cluster.node.link_domain > 1 && domain < cluster.gpus) reshards.push_back({Reshard::Kind::kGroup, domain});
  return reshards;
}

std::vector<Prefetch> default_prefetches(const Plan& base) {
  std::vector<Prefetch> prefetches = prefetches_of(base, {Prefetch::kImplicit, 1, 2}, {1, 2});
  const bool native = base.runtime.kind == RuntimeKind::kNative;
  if (native) prefetches.insert(prefetches.begin(), Prefetch{0, 0});
  return prefetches;
}

template <typename T>
const T& get(const std::vector<T>& axis, std::int16_t i) {
  return axis[at(i)];
}

// Whether the axes' values go together, before anything is asked of the runtime.
bool is_sensible(const SearchSpace& space, const Cluster& cluster, const Place& place) {
  const std::int64_t shard = get(space.shard_groups, at(place, Axis::kShard));
  if (shard <= 0 || data_ranks(space, cluster) % shard != 0) return false;
  const Reshard& reshard = get(space.reshards, at(place, Axis::kReshard));
  if (reshard.kind == Reshard::Kind::kGroup && (reshard.group >= shard || shard % reshard.group != 0)) return false;
  // With one rank per shard group nothing is gathered: resharding and prefetch change nothing.
  const bool is_whole = shard * space.base.mesh.cp == 1;
  if (is_whole && (at(place, Axis::kReshard) > 0 || at(place, Axis::kPrefetch) > 0)) return false;
  // A stage that stays gathered is gathered once a step, whatever is prefetched.
  const bool stays_whole = space.base.mesh.pp > 1 && reshard.kind == Reshard::Kind::kNever;
  const auto own = usual_value(space, at(Axis::kPrefetch)).value_or(0);
  if (stays_whole && at(place, Axis::kPrefetch) != own) return false;
  const std::int64_t micro_batch = get(space.micro_batches, at(place, Axis::kMicroBatch));
  return micro_batch > 0 && space.global_batch / data_ranks(space, cluster) % micro_batch == 0;
}

// Whether a knob has another value than its first where it says nothing.
bool repeats(const SearchSpace& space, const Place& place, const Plan& plan) {
  for (std::size_t k = 0; k < space.knobs.size(); ++k) {
    const KnobAxis& knob = space.knobs[k];
    const bool is_first = place[at(Axis::kKnobs) + k] == 0;
    if (!is_first && knob.matters && !knob.matters(plan)) return true;
  }
  return false;
}

}

std::vector<Prefetch> prefetches_of(
    const Plan& base, std::initializer_list<std::int64_t> forward, std::initializer_list<std::int64_t> backward) {
  std::vector<Prefetch> prefetches;
  for (const std::int64_t f : forward) {
    for (const std::int64_t b : backward) {
      Prefetch& prefetch = prefetches.emplace_back(base.prefetch);
      prefetch.forward = f;
      prefetch.backward = b;
    }
  }
  return prefetches;
}

SearchSpace complete(SearchSpace space, const Cluster& cluster) {
  FORESHARD_CHECK(space.knobs.size() <= kMostKnobs, "too many knobs");
  const std::int64_t ranks = data_ranks(space, cluster);
  if (space.shard_groups.empty()) space.shard_groups = default_shard_groups(cluster, cluster.gpus / ranks);
  if (space.reshards.empty()) space.reshards = default_reshards(cluster);
  if (space.prefetches.empty()) space.prefetches = default_prefetches(space.base);
  if (space.recomputes.empty())
    space.recomputes = {{Recompute::kNone, {}}, {Recompute::kSelective, {}}, {Recompute::kFull, {}}};
  if (space.global_batch <= 0 || space.global_batch % ranks != 0) {
    const std::int64_t below = space.global_batch / ranks * ranks;
    throw Error(ExitCode::kInvalidInput,
        "a global batch of " + std::to_string(space.global_batch) + " sequences does not divide over " +
            std::to_string(ranks) + " ranks; the nearest that do are " +
            (below > 0 ? std::to_string(below) + " and " : std::string()) + std::to_string(below + ranks));
  }
  if (space.allocators.empty()) space.allocators = {space.base.allocator};
  if (space.micro_batches.empty()) {
    const std::int64_t per_rank = space.global_batch / ranks;
    for (std::int64_t m = 1; m <= std::min(per_rank, kLargestMicroBatch); ++m)
      if (per_rank % m == 0) space.micro_batches.push_back(m);
  }
  return space;
}

std::vector<Place> list_places(const SearchSpace& space, const ModelSpec& model, const Cluster& cluster) {
  std::array<std::size_t, kAxes> sizes{};
  sizes.fill(1);
  sizes[at(Axis::kShard)] = space.shard_groups.size();
  sizes[at(Axis::kReshard)] = space.reshards.size();
  sizes[at(Axis::kPrefetch)] = space.prefetches.size();
  sizes[at(Axis::kRecompute)] = space.recomputes.size();
  sizes[at(Axis::kMicroBatch)] = space.micro_batches.size();
  for (std::size_t k = 0; k < space.knobs.size(); ++k) sizes[at(Axis::kKnobs) + k] = space.knobs[k].values.size();
  std::vector<Place> places;
  Place place{};
  while (true) {
    if (is_sensible(space, cluster, place)) {
      const Plan plan = plan_at(space, cluster, place);
      if (!repeats(space, place, plan) && !find_problem(plan, model, cluster)) places.push_back(place);
    }
    std::size_t axis = kAxes;
    while (axis > 0) {
      --axis;
      if (at(++place[axis]) < sizes[axis]) break;
      place[axis] = 0;
      if (axis == 0) return places;
    }
  }
}

std::optional<std::int16_t> usual_value(const SearchSpace& space, std::size_t axis) {
  const auto index_of = [](const auto& values, const auto& value) -> std::optional<std::int16_t> {
    const auto found = std::ranges::find(values, value);
    if (found == values.end()) return std::nullopt;
    return static_cast<std::int16_t>(found - values.begin());
  };
  if (axis >= at(Axis::kKnobs)) return std::int16_t{0};
  switch (static_cast<Axis>(axis)) {
    case Axis::kShard: return index_of(space.shard_groups, space.base.mesh.shard);
    case Axis::kReshard: return index_of(space.reshards, space.base.reshard_after_forward.value);
    case Axis::kPrefetch: return index_of(space.prefetches, space.base.prefetch);
    default: return std::nullopt;
  }
}

Plan plan_at(const SearchSpace& space, const Cluster& cluster, const Place& place) {
  Plan plan = space.base;
  plan.mesh.shard = get(space.shard_groups, at(place, Axis::kShard));
  plan.mesh.replicate = data_ranks(space, cluster) / plan.mesh.shard;
  plan.reshard_after_forward.value = get(space.reshards, at(place, Axis::kReshard));
  plan.prefetch = get(space.prefetches, at(place, Axis::kPrefetch));
  plan.recompute = get(space.recomputes, at(place, Axis::kRecompute));
  plan.batch.micro_batch = get(space.micro_batches, at(place, Axis::kMicroBatch));
  plan.batch.accumulation = space.global_batch / data_ranks(space, cluster) / plan.batch.micro_batch;
  for (std::size_t k = 0; k < space.knobs.size(); ++k) {
    const auto value = at(place[at(Axis::kKnobs) + k]);
    space.knobs[k].values[value](plan);
  }
  return plan;
}

}
