// Grid search. The grid is five axes; a plan is a point on them. Points are judged in parallel into
// a vector indexed by their enumeration order and reduced from there in one thread, so that the
// answer cannot depend on who finished first.
#include "sim/search/search.h"

#include <oneapi/tbb/enumerable_thread_specific.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <set>
#include <tuple>

#include "sim/base/error.h"
#include "sim/graph/training_step.h"
#include "sim/memory/memory_actions.h"
#include "sim/memory/memory_profile.h"
#include "sim/memory/outside_allocator.h"
#include "sim/memory/reserved.h"
#include "sim/simulate/forecast.h"
#include "sim/simulate/simulate.h"
#include "sim/spec/plan_check.h"

namespace foreshard {
namespace {

constexpr std::size_t kAxes = 5;  // shard, reshard, prefetch, recompute, micro-batch
constexpr std::int64_t kLargestMicroBatch = 64;

struct Point {
  std::array<std::int32_t, kAxes> at{};
  Plan plan;
};

// Equal keys share one derivation of the layers' allocations and kernels.
using ProgramKey = std::tuple<std::int32_t, std::int32_t>;  // recompute and micro-batch index

struct Outcome {
  Verdict verdict = Verdict::kDoesNotFit;
  Time step;
  Bytes peak;
  Bytes outside;
  Bytes reserved;  // 0: not asked yet
};

std::vector<std::int64_t> default_shard_groups(const Cluster& cluster) {
  std::vector<std::int64_t> groups;
  const std::int64_t node = cluster.gpus_per_node();
  const std::int64_t domain = node * cluster.node.link_domain;
  for (std::int64_t g = 1; g <= cluster.gpus; ++g) {
    if (cluster.gpus % g != 0) continue;
    const bool power_of_two = (g & (g - 1)) == 0;
    const bool whole_nodes_doubling = g % node == 0 && ((g / node) & (g / node - 1)) == 0;
    const bool whole_domains = domain > node && g % domain == 0;
    if (power_of_two || whole_nodes_doubling || whole_domains || g == cluster.gpus) {
      groups.push_back(g);
    }
  }
  return groups;
}

std::vector<Reshard> default_reshards(const Cluster& cluster) {
  std::vector<Reshard> reshards = {{Reshard::Kind::kAlways, 0}, {Reshard::Kind::kNever, 0}};
  if (cluster.nodes() > 1) reshards.push_back({Reshard::Kind::kGroup, cluster.gpus_per_node()});
  const std::int64_t domain = cluster.gpus_per_node() * cluster.node.link_domain;
  if (cluster.node.link_domain > 1 && domain < cluster.gpus) {
    reshards.push_back({Reshard::Kind::kGroup, domain});
  }
  return reshards;
}

std::vector<Prefetch> default_prefetches(const Plan& base) {
  std::vector<Prefetch> prefetches;
  const bool native = base.runtime.kind == RuntimeKind::kNative;
  if (native) prefetches.push_back({0, 0});
  for (std::int64_t forward : {Prefetch::kImplicit, std::int64_t{1}, std::int64_t{2}}) {
    for (std::int64_t backward : {std::int64_t{1}, std::int64_t{2}}) {
      prefetches.push_back({forward, backward});
    }
  }
  return prefetches;
}

SearchSpace complete(SearchSpace space, const Cluster& cluster) {
  if (space.shard_groups.empty()) space.shard_groups = default_shard_groups(cluster);
  if (space.reshards.empty()) space.reshards = default_reshards(cluster);
  if (space.prefetches.empty()) space.prefetches = default_prefetches(space.base);
  if (space.recomputes.empty()) {
    space.recomputes = {
        {Recompute::kNone, {}}, {Recompute::kSelective, {}}, {Recompute::kFull, {}}};
  }
  if (space.global_batch <= 0 || space.global_batch % cluster.gpus != 0) {
    const std::int64_t below = space.global_batch / cluster.gpus * cluster.gpus;
    throw Error(ExitCode::kInvalidInput,
                "a global batch of " + std::to_string(space.global_batch) +
                    " sequences does not divide over " + std::to_string(cluster.gpus) +
                    " ranks; the nearest that do are " +
                    (below > 0 ? std::to_string(below) + " and " : std::string()) +
                    std::to_string(below + cluster.gpus));
  }
  if (space.micro_batches.empty()) {
    const std::int64_t per_rank = space.global_batch / cluster.gpus;
    for (std::int64_t m = 1; m <= std::min(per_rank, kLargestMicroBatch); ++m) {
      if (per_rank % m == 0) space.micro_batches.push_back(m);
    }
  }
  return space;
}

std::vector<Point> enumerate_points(const SearchSpace& space, const ModelSpec& model,
                                    const Cluster& cluster) {
  std::vector<Point> points;
  const std::int64_t per_rank = space.global_batch / cluster.gpus;
  auto size = [](const auto& axis) { return static_cast<std::int32_t>(axis.size()); };
  auto get = [](const auto& axis, std::int32_t i) -> const auto& {
    return axis[static_cast<std::size_t>(i)];
  };
  for (std::int32_t s = 0; s < size(space.shard_groups); ++s) {
    for (std::int32_t r = 0; r < size(space.reshards); ++r) {
      for (std::int32_t p = 0; p < size(space.prefetches); ++p) {
        for (std::int32_t c = 0; c < size(space.recomputes); ++c) {
          for (std::int32_t m = 0; m < size(space.micro_batches); ++m) {
            Point point;
            point.at = {s, r, p, c, m};
            Plan& plan = point.plan = space.base;
            plan.mesh.shard = get(space.shard_groups, s);
            if (plan.mesh.shard <= 0 || cluster.gpus % plan.mesh.shard != 0) continue;
            plan.mesh.replicate = cluster.gpus / plan.mesh.shard;
            plan.reshard_after_forward.value = get(space.reshards, r);
            const Reshard& reshard = plan.reshard_after_forward.value;
            if (reshard.kind == Reshard::Kind::kGroup &&
                (reshard.group >= plan.mesh.shard || plan.mesh.shard % reshard.group != 0)) {
              continue;
            }
            // With one rank per shard group nothing is gathered: resharding and prefetch change
            // nothing.
            if (plan.mesh.shard == 1 && (r > 0 || p > 0)) continue;
            plan.prefetch = get(space.prefetches, p);
            plan.recompute = get(space.recomputes, c);
            plan.batch.micro_batch = get(space.micro_batches, m);
            if (plan.batch.micro_batch <= 0 || per_rank % plan.batch.micro_batch != 0) continue;
            plan.batch.accumulation = per_rank / plan.batch.micro_batch;
            if (find_problem(plan, model, cluster)) continue;
            points.push_back(std::move(point));
          }
        }
      }
    }
  }
  return points;
}

Candidate candidate(const Point& point, const Outcome& outcome, const Cluster& cluster,
                    std::int64_t global_batch) {
  Candidate c;
  c.plan = point.plan;
  c.verdict = outcome.verdict;
  c.peak_allocated = outcome.peak;
  c.outside_allocator = outcome.outside;
  c.peak_reserved = outcome.reserved;
  if (outcome.verdict == Verdict::kSimulated) {
    c.seconds = outcome.step.seconds();
    c.tokens_per_s_per_gpu = static_cast<double>(global_batch * point.plan.batch.sequence) /
                             (c.seconds * static_cast<double>(cluster.gpus));
  }
  return c;
}

}  // namespace

std::vector<Plan> enumerate(const SearchSpace& space, const ModelSpec& model,
                            const Cluster& cluster) {
  std::vector<Plan> plans;
  for (Point& point : enumerate_points(complete(space, cluster), model, cluster)) {
    plans.push_back(std::move(point.plan));
  }
  return plans;
}

SearchResult search(const SearchSpace& wanted, const ModelSpec& model, const CostModel& costs,
                    const SearchOptions& options) {
  const Cluster& cluster = costs.cluster();
  const SearchSpace space = complete(wanted, cluster);
  const std::vector<Point> points = enumerate_points(space, model, cluster);

  std::map<ProgramKey, LayerPrograms> programs;
  for (const Point& point : points) {
    programs.try_emplace({point.at[3], point.at[4]}, model, point.plan);
  }

  std::vector<Outcome> outcomes(points.size());
  struct Worker {
    Simulator simulator;
    EventGraph graph;
  };
  oneapi::tbb::enumerable_thread_specific<Worker> workers;
  std::atomic<std::int64_t> done = 0;
  std::atomic<bool> stopped = false;
  auto judge = [&](std::size_t i) {
    const Point& point = points[i];
    Outcome& outcome = outcomes[i];
    Worker& worker = workers.local();
    const EventGraph& graph = worker.graph = build_training_step(
        model, point.plan, programs.at({point.at[3], point.at[4]}), std::move(worker.graph));
    outcome.peak = peak_allocated(graph);
    outcome.outside = total(memory_outside(graph, cluster, point.plan.runtime));
    if (may_fit(cluster, outcome.peak, outcome.outside)) {
      outcome.step = worker.simulator.period(graph, costs.price(graph));
      outcome.verdict = Verdict::kSimulated;
    }
    const std::int64_t now = ++done;
    if (options.progress && !options.progress(now, static_cast<std::int64_t>(points.size()))) {
      stopped = true;
    }
  };
  oneapi::tbb::task_arena arena(options.threads > 0 ? options.threads
                                                    : oneapi::tbb::task_arena::automatic);
  arena.execute([&] {
    oneapi::tbb::parallel_for(std::size_t{0}, points.size(), [&](std::size_t i) {
      if (!stopped) judge(i);
    });
  });
  if (stopped) throw Error(ExitCode::kInterrupted, "search was stopped");

  const auto fit_of = [&](std::size_t i) {
    Outcome& outcome = outcomes[i];
    if (outcome.reserved == Bytes()) {
      const Point& point = points[i];
      // From the second micro-batch on all are alike: three of them show what is reserved.
      Plan shorter = point.plan;
      shorter.batch.accumulation = std::min<std::int64_t>(shorter.batch.accumulation, 3);
      const EventGraph graph =
          build_training_step(model, shorter, programs.at({point.at[3], point.at[4]}));
      if (records_streams(graph)) {
        const RowTimes times = row_times(simulate(graph, costs.price(graph)));
        outcome.reserved = peak_reserved(graph, point.plan, cluster, &times);
      } else {
        outcome.reserved = peak_reserved(graph, point.plan, cluster);
      }
    }
    return fit_in(cluster, outcome.peak, outcome.reserved, outcome.outside);
  };
  // Of a plan that the answer is going to name.
  const auto stands = [&](std::size_t i) {
    Outcome& outcome = outcomes[i];
    if (outcome.verdict == Verdict::kSimulated && !fit_of(i).fits()) {
      outcome.verdict = Verdict::kDoesNotFit;
    }
    return outcome.verdict == Verdict::kSimulated;
  };

  const auto is_tight = [&](std::size_t i) {
    return outcomes[i].peak > (cluster.gpu.memory - outcomes[i].outside) * 9 / 10;
  };

  SearchResult result;
  result.enumerated = static_cast<std::int64_t>(points.size());
  std::vector<std::size_t> fastest;  // simulated points
  std::optional<std::size_t> smallest;
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (!smallest || outcomes[i].peak < outcomes[*smallest].peak) smallest = i;
    if (outcomes[i].verdict == Verdict::kSimulated) fastest.push_back(i);
  }
  std::sort(fastest.begin(), fastest.end(), [&](std::size_t a, std::size_t b) {
    return std::tuple(outcomes[a].step, outcomes[a].peak, a) <
           std::tuple(outcomes[b].step, outcomes[b].peak, b);
  });
  auto describe = [&](std::size_t i) {
    return candidate(points[i], outcomes[i], cluster, space.global_batch);
  };
  std::optional<std::size_t> fastest_fitting;
  std::optional<Bytes> least;
  for (std::size_t i : fastest) {
    if ((least && outcomes[i].peak >= *least) || !stands(i)) continue;
    if (!fastest_fitting) fastest_fitting = i;
    least = outcomes[i].peak;
    result.pareto.push_back(describe(i));
  }
  if (fastest_fitting) {
    const std::size_t best = *fastest_fitting;
    result.best = result.pareto.front();
    for (std::size_t i = 0; i < points.size(); ++i) {
      int changed = 0;
      for (std::size_t axis = 0; axis < kAxes; ++axis) {
        changed += points[i].at[axis] != points[best].at[axis];
      }
      if (changed != 1) continue;
      if (is_tight(i)) stands(i);
      result.neighbours.push_back(describe(i));
    }
  }
  std::map<std::pair<std::int32_t, std::int32_t>, std::optional<double>> cells;
  for (const Point& point : points) cells[{point.at[0], point.at[2]}];
  for (std::size_t i : fastest) {
    auto& cell = cells[{points[i].at[0], points[i].at[2]}];
    if (!cell && (!is_tight(i) || stands(i))) cell = outcomes[i].step.seconds();
  }
  for (const auto& [at, seconds] : cells) {
    result.heatmap.push_back({space.shard_groups[static_cast<std::size_t>(at.first)],
                              space.prefetches[static_cast<std::size_t>(at.second)], seconds});
  }
  if (smallest) {
    fit_of(*smallest);
    result.smallest = describe(*smallest);
  }
  for (const Outcome& outcome : outcomes) {
    ++(outcome.verdict == Verdict::kSimulated ? result.simulated : result.rejected_memory);
  }
  return result;
}

}  // namespace foreshard
