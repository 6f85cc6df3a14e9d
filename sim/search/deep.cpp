// Meshes for the per-layer stage: every shard group and micro-batch with the other keys of the best plan so far. Each
// is bounded as if nothing were recomputed or gathered twice; those whose bound is above the best so far cannot win, of
// the others the kMeshes with the lowest bounds are optimised, the best plan's own among them. A mesh's units may be
// resharded to any group that divides its shards; of many, kMostGroups are tried.
#include "sim/search/deep.h"

#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>

#include <algorithm>
#include <tuple>

#include "sim/base/lookup.h"
#include "sim/search/axes.h"
#include "sim/search/judge.h"
#include "sim/search/knobs.h"
#include "sim/spec/checks/plan_check.h"

namespace foreshard {
namespace {

constexpr std::size_t kMeshes = 6;
constexpr std::size_t kMostGroups = 3;

bool is_faster(const Candidate& a, const std::optional<Candidate>& b) {
  return !b || std::tuple(a.seconds, a.peak_allocated) < std::tuple(b->seconds, b->peak_allocated);
}

struct Frame {
  Plan plan;
  Time bound;
};

Plan least_work(Plan plan, const LayerChoices& choices) {
  plan.recompute = {choices.recomputes.front(), {}};
  plan.reshard_after_forward = {{Reshard::Kind::kNever, 0}, {}};
  return plan;
}

bool uses(const RangedPolicy<Reshard>& policy, const Reshard& value) {
  return policy.value == value || std::ranges::any_of(
                                      policy.ranges, [&](const auto& range) { return range.value == value; });
}

class Layers {
 public:
  Layers(const SearchSpace& space, const ModelSpec& model, const CostModel& costs, const SearchOptions& options)
      : cluster_(costs.cluster()), space_(complete(space, cluster_)), model_(model), costs_(costs), options_(options) {
    choices_.fit = options.fit;
    choices_.recomputes.clear();
    for (const auto& recompute : space_.recomputes) {
      possible_ &= recompute.ranges.empty();
      choices_.recomputes.push_back(recompute.value);
    }
    possible_ &= space_.base.reshard_after_forward.ranges.empty();
    possible_ &= space_.base.mesh.pp == 1;  // whose ranks have units of their own
    // Always first, groups by falling size, never last: by the memory they save.
    choices_.reshards = space_.reshards;
    std::ranges::stable_sort(choices_.reshards, [](const Reshard& a, const Reshard& b) { return order(a) < order(b); });
    possible_ &= !choices_.reshards.empty();
  }

  void run(const Candidate& best, DeepResult& result) {
    if (!possible_) return;
    std::vector<Frame> frames = frames_around(best);
    std::vector<std::optional<LayerResult>> found(frames.size());
    oneapi::tbb::task_arena arena(options_.threads > 0 ? options_.threads : oneapi::tbb::task_arena::automatic);
    arena.execute([&] {
      oneapi::tbb::parallel_for(std::size_t{0}, frames.size(), [&](std::size_t i) {
        found[i] = optimise_layers(frames[i].plan, model_, costs_, choices_for(frames[i].plan));
      });
    });
    for (auto& layers : found) {
      if (!layers) continue;
      result.judged += layers->judged;
      const bool is_best = !result.layers || is_faster(layers->candidate, result.layers->candidate);
      if (is_best) result.layers = std::move(layers);
    }
  }

 private:
  static std::int64_t order(const Reshard& r) {
    if (r.kind == Reshard::Kind::kAlways) return -(std::int64_t{1} << 40);
    return r.kind == Reshard::Kind::kNever ? 1 : -r.group;
  }

  // Groups that a mesh does not have would rule out all its combinations. Of more than kMostGroups:
  // the plan's own, those inside a node or a domain of NVLink, then the largest.
  LayerChoices choices_for(const Plan& plan) const {
    LayerChoices choices = choices_;
    std::vector<Reshard> groups;
    std::erase_if(choices.reshards, [&](const Reshard& r) {
      if (r.kind != Reshard::Kind::kGroup) return false;
      if (r.group < plan.mesh.shard && plan.mesh.shard % r.group == 0) groups.push_back(r);
      return true;
    });
    const std::int64_t node = cluster_.gpus_per_node();
    const auto is_usual = [&](const Reshard& r) {
      return r.group == node || r.group == node * cluster_.node.link_domain;
    };
    std::ranges::stable_sort(groups, [&](const Reshard& a, const Reshard& b) {
      const auto rank = [&](const Reshard& r) {
        return std::tuple(!uses(plan.reshard_after_forward, r), !is_usual(r), -r.group);
      };
      return rank(a) < rank(b);
    });
    if (groups.size() > kMostGroups) groups.resize(kMostGroups);
    append(choices.reshards, groups);
    std::ranges::stable_sort(choices.reshards, [](const Reshard& a, const Reshard& b) { return order(a) < order(b); });
    return choices;
  }

  std::vector<Frame> frames_around(const Candidate& best) {
    Judge judge(model_, costs_, options_.fit);
    std::vector<Frame> frames;
    for (const std::int64_t shard : space_.shard_groups) {
      for (const std::int64_t micro_batch : space_.micro_batches) {
        Frame frame{best.plan, Time()};
        const std::int64_t ranks = best.plan.mesh.data_parallel();
        frame.plan.mesh.shard = shard;
        frame.plan.mesh.replicate = ranks / shard;
        const LayerChoices choices = choices_for(frame.plan);
        if (choices.reshards.empty()) continue;
        frame.plan.batch.micro_batch = micro_batch;
        frame.plan.batch.accumulation = space_.global_batch / ranks / micro_batch;
        if (frame.plan.mesh == best.plan.mesh && frame.plan.batch == best.plan.batch) frame.plan = best.plan;
        else frame.plan.reshard_after_forward = {choices.reshards.front(), {}};
        const Plan least = least_work(frame.plan, choices_);
        if (find_problem(least, model_, cluster_)) continue;
        frame.bound = judge.bound(least, LayerPrograms(model_, least));
        if (frame.bound.seconds() > best.seconds) continue;
        frames.push_back(std::move(frame));
      }
    }
    const auto is_own = [&](const Frame& f) { return f.plan == best.plan; };
    std::ranges::stable_sort(frames, [&](const Frame& a, const Frame& b) {
      return std::tuple(!is_own(a), a.bound) < std::tuple(!is_own(b), b.bound);
    });
    if (frames.size() > kMeshes) frames.resize(kMeshes);
    return frames;
  }

  const Cluster cluster_;
  const SearchSpace space_;
  const ModelSpec& model_;
  const CostModel& costs_;
  const SearchOptions& options_;
  LayerChoices choices_;
  bool possible_ = true;
};

}

SearchSpace with_all_knobs(SearchSpace space, const Cluster& cluster, const std::vector<std::string>& fixed) {
  for (const std::string& key : knob_keys()) {
    const bool is_there =
        contains(fixed, key) || std::ranges::any_of(space.knobs, [&](const KnobAxis& axis) { return axis.key == key; });
    // Inside one node all places are alike.
    const bool matters = key != "mesh.inner" || (cluster.nodes() > 1 && cluster.gpus_per_node() > 1);
    if (!is_there && matters) space.knobs.push_back(*knob_axis(key, space.base));
  }
  if (space.reshards.empty()) {
    space.reshards = {{Reshard::Kind::kAlways, 0}, {Reshard::Kind::kNever, 0}};
    for (std::int64_t group = 2; group < cluster.gpus; ++group) {
      const bool is_even = (group & (group - 1)) == 0 || group == cluster.gpus_per_node();
      if (is_even && cluster.gpus % group == 0) space.reshards.push_back({Reshard::Kind::kGroup, group});
    }
  }
  if (space.prefetches.empty()) space.prefetches = prefetches_of(space.base, {Prefetch::kImplicit, 1, 2, 3}, {1, 2, 3});
  return space;
}

DeepResult search_deep(const SearchSpace& deep, const ModelSpec& model, const CostModel& costs, const DeepStart& start,
    const SearchOptions& options) {
  DeepResult result = {.best = start.grid};
  if (start.written) {
    result.written = judge_plan(*start.written, model, costs, options.fit);
    if (result.written && is_faster(*result.written, result.best)) result.best = result.written;
  }
  SearchOptions best_alone = options;
  best_alone.detail = SearchDetail::kBest;
  result.knobs = search(deep, model, costs, best_alone);
  if (result.knobs.best && is_faster(*result.knobs.best, result.best)) result.best = result.knobs.best;
  // Where nothing uniform fits, mixtures do not either.
  if (!result.best) return result;
  Layers(deep, model, costs, options).run(*result.best, result);
  if (result.layers && is_faster(result.layers->candidate, result.best)) result.best = result.layers->candidate;
  return result;
}

Candidate search_layers(const SearchSpace& space, const ModelSpec& model, const CostModel& costs, const Candidate& best,
    const SearchOptions& options) {
  DeepResult result;
  Layers(space, model, costs, options).run(best, result);
  return result.layers && is_faster(result.layers->candidate, best) ? result.layers->candidate : best;
}

}
