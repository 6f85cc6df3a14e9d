// The tables of a search are made of the variant that won. Variants over axes are made where they
// are asked for or needed.
#include "planner/job_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <tuple>
#include <utility>

#include "planner/axes_variants.h"
#include "planner/changes.h"
#include "planner/search_space.h"
#include "sim/search/variant_search.h"
#include "sim/spec/checks/plan_check.h"

namespace foreshard {
namespace {

// The best of all variants so far.
class Variants {
 public:
  Variants(const SearchOptions& options, const std::function<SearchMemory(std::size_t)>& memory_after, bool each_mesh)
      : options_(options), memory_after_(memory_after), each_mesh_(each_mesh), search_(calls(), options_) {}
  Variants(const Variants&) = delete;

  // With the tables where there is one alone, else for the best plan.
  void look_at(const std::vector<JobVariant>& variants) {
    for (const JobVariant& variant : variants) {
      all_.push_back({&variant, places_});
      if (memory_after_) places_ += plans_of(variant).size();
    }
    search_.look_at(variants.size());
  }

  // Whose plan holds; null: none.
  const JobVariant* best_variant() const { return search_.plan() ? all_[*search_.best()].variant : nullptr; }
  // Whether other axes may be faster.
  bool leaves_room() const {
    if (!search_.plan()) return true;
    const Time bare = search_.floors()[0].bare;
    return foreshard::leaves_room(*search_.plan(), bare > Time() ? bare : floor(0).bare);
  }

  // Variants over other axes than the first that the loss in parts may make the best.
  std::vector<const JobVariant*> promising() const {
    std::vector<const JobVariant*> list;
    const Candidate* best = search_.plan() ? &*search_.plan() : nullptr;
    for (std::size_t v = 0; v < all_.size(); ++v) {
      const bool may_win = each_mesh_ || may_win_in_parts(search_.floors()[v], best);
      if (may_win && mesh(v) != mesh(0)) list.push_back(all_[v].variant);
    }
    return list;
  }

  // Of the variant that won, with counts of all. Throws where no variant is possible.
  JobSearch answer() {
    if (!search_.best()) throw *search_.failure();
    const std::size_t best = *search_.best();
    const JobVariant& chosen = *all_[best].variant;
    if (!search_.has_detail() && options_.detail == SearchDetail::kAll) {
      const std::optional<Candidate>& plan = search_.plan();
      search_.replace_found(search_of(best, plan ? settled(chosen.space, plan->plan) : chosen.space, options_));
    }
    JobSearch answer{chosen, search_.found(), 0, {}};
    const SearchResult& counts = search_.counts();
    answer.result.enumerated = counts.enumerated;
    answer.result.rejected_memory = counts.rejected_memory;
    answer.result.simulated = counts.simulated;
    answer.result.pruned = counts.pruned;
    for (const std::size_t v : search_.given_up()) {
      const auto places = static_cast<std::int64_t>(plans_of(*all_[v].variant).size());
      answer.result.enumerated += places;
      answer.result.pruned += places;
    }
    if (each_mesh_ && meshes_.size() > 1) answer.meshes = std::move(meshes_);
    answer.pipelines = pipelines();
    return answer;
  }

 private:
  struct Numbered {
    const JobVariant* variant = nullptr;
    std::size_t start = 0;  // of its places
    std::optional<double> seconds = {};
  };

  VariantSearch::Variants calls() {
    VariantSearch::Variants calls = {[this](std::size_t v) -> const SearchSpace& { return all_[v].variant->space; },
        [this](std::size_t v) { return floor(v); },
        [this](std::size_t v, const SearchSpace& space, const SearchOptions& own) {
          SearchResult result = search_of(v, space, own);
          if (result.best) all_[v].seconds = result.best->seconds;
          std::optional<double>& step = step_with(mesh(v));
          if (result.best && (!step || result.best->seconds < *step)) step = all_[v].seconds;
          return result;
        }};
    if (each_mesh_) calls.own_limit = [this](std::size_t v) { return step_with(mesh(v)).value_or(kAnyStep); };
    return calls;
  }

  const Mesh& mesh(std::size_t v) const { return all_[v].variant->space.base.mesh; }

  SpaceFloor floor(std::size_t v) const {
    const JobVariant& variant = *all_[v].variant;
    return floor_of(variant.space, variant.job.model, cost_model(variant.job), options_.fit.terms, samples_);
  }

  // Of all variants with these axes so far.
  std::optional<double>& step_with(const Mesh& mesh) {
    const auto axes = [](const Mesh& m) { return std::tuple(m.tp, m.cp, m.ep, m.etp, m.pp); };
    auto found = std::ranges::find_if(meshes_, [&](const MeshStep& known) { return axes(known.mesh) == axes(mesh); });
    if (found == meshes_.end()) found = meshes_.insert(found, {mesh, std::nullopt});
    return found->seconds;
  }

  std::vector<PipelineStep> pipelines() const {
    std::map<std::int64_t, PipelineStep> by_ranks;
    for (std::size_t v = 0; v < all_.size(); ++v) {
      const std::int64_t pp = mesh(v).pp;
      const double layers = search_.floors()[v].layers.seconds();
      PipelineStep& step = by_ranks.emplace(pp, PipelineStep{pp, std::nullopt, layers}).first->second;
      step.at_least = std::min(step.at_least, layers);
      const std::optional<double>& seconds = all_[v].seconds;
      if (seconds && (!step.seconds || *seconds < *step.seconds)) step.seconds = seconds;
    }
    return list_of<PipelineStep>(by_ranks, [&](const auto& each) { return each.second; });
  }

  SearchResult search_of(std::size_t v, const SearchSpace& space, SearchOptions own) const {
    const JobVariant& variant = *all_[v].variant;
    const CostModel costs = cost_model(variant.job);
    const bool is_known = memory_after_ && space.base == variant.space.base;
    own.memory = is_known ? memory_after_(all_[v].start) : SearchMemory();
    const StackSet stacks = stack_set(variant.job, costs);
    StackOdds odds(stacks, replays_);
    own.fit = rule_of(odds, replays_, options_.fit);
    own.fit.samples = samples_;
    return search(space, variant.job.model, costs, own);
  }

  const SearchOptions& options_;
  const std::function<SearchMemory(std::size_t)>& memory_after_;
  const bool each_mesh_;
  std::vector<MeshStep> meshes_;
  const std::shared_ptr<ReservedMemory> replays_ = std::make_shared<ReservedMemory>();
  const std::shared_ptr<StageSamples> samples_ = std::make_shared<StageSamples>();
  std::vector<Numbered> all_;
  std::size_t places_ = 0;  // of them, where their memory is asked
  VariantSearch search_;
};

}

JobSearch search_job(const SearchVariants& variants, const SearchOptions& options,
    const std::function<SearchMemory(std::size_t)>& memory_after) {
  const auto start = std::chrono::steady_clock::now();
  Variants all(options, memory_after, variants.each_mesh);
  std::vector<JobVariant> others, around;
  all.look_at(variants.list);
  if (variants.otherwise && all.leaves_room()) {
    others = variants.otherwise(all.best_variant());
    all.look_at(others);
  }
  if (variants.around) {
    around = variants.around(all.promising());
    all.look_at(around);
  }
  JobSearch found = all.answer();
  found.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return found;
}

namespace {

// What the depth of a search judges by: as Variants::search_of.
struct Depth {
  explicit Depth(const JobSearch& found, const SearchOptions& options)
      : job(found.chosen.job),
        costs(cost_model(job)),
        stacks(stack_set(job, costs)),
        odds(stacks, replays),
        how(options) {
    how.fit = rule_of(odds, replays, options.fit);
  }
  Depth(const Depth&) = delete;

  const Job& job;
  const CostModel costs;
  const StackSet stacks;
  const std::shared_ptr<ReservedMemory> replays = std::make_shared<ReservedMemory>();
  StackOdds odds;
  SearchOptions how;
};

}

DeepResult search_deep(const JobSearch& found, const SearchOptions& options) {
  const Depth depth(found, options);
  const auto& [job, space] = found.chosen;
  DeepStart from{found.result.best, std::nullopt};
  const Plan& written = job.resolved.plan;
  if (global_batch(written) == space.global_batch) from.written = written;
  return search_deep(with_all_knobs(space, job.cluster, fixed_keys(job)), job.model, depth.costs, from, depth.how);
}

std::optional<Candidate> search_layers(const JobSearch& found, const SearchOptions& options) {
  if (!found.result.best) return std::nullopt;
  const Depth depth(found, options);
  return search_layers(found.chosen.space, depth.job.model, depth.costs, *found.result.best, depth.how);
}

namespace {

std::optional<Candidate> best_alone(const SearchVariants& variants, SearchOptions search) {
  search.detail = SearchDetail::kBest;
  search.memory = {};
  return search_job(variants, search).result.best;
}

}

std::vector<Alternative> find_alternatives(
    const Job& job, const SpaceRequest& request, const SearchResult& found, const SearchOptions& search) {
  // Less is not worth the change.
  constexpr double kWorthNaming = 0.01;
  std::vector<Alternative> list;
  const SpaceRequest of_knobs{request.global_batch, split_axes(request.vary).others};
  for (const std::vector<std::string>& assignments : costly_assignments(job)) {
    auto other = changed_job(job, assignments);
    if (!other) continue;
    const auto best = best_alone({variants_by_model(std::move(*other), of_knobs)}, search);
    const bool is_worth = best && (!found.best || best->seconds < found.best->seconds * (1 - kWorthNaming));
    if (is_worth) list.push_back({assignments, *best});
  }
  return list;
}

std::optional<Alternative> find_without_axes(
    const Job& job, const SpaceRequest& request, const SearchResult& found, const SearchOptions& search) {
  if (!split_axes(request.vary).axes.empty() || !found.best) return std::nullopt;
  const Mesh& mesh = found.best->plan.mesh;
  std::vector<std::string> without;
  for (const auto& [key, ranks] : {std::pair(kExpertAxis, mesh.ep), std::pair("mesh.etp", mesh.etp),
           std::pair(kContextAxis, mesh.cp), std::pair("mesh.tp", mesh.tp)})
    if (ranks > 1 && !is_fixed(job, key)) without.push_back(fmt::format("{}=1", key));
  auto other = without.empty() ? std::nullopt : changed_job(job, without);
  if (!other) return std::nullopt;
  const std::int64_t ranks = job.cluster.gpus / other->resolved.plan.mesh.sharing();
  if (read_global_batch(*request.global_batch) % ranks != 0) return std::nullopt;
  const auto best = best_alone({search_variants(*other, request).list}, search);
  if (!best) return std::nullopt;
  return Alternative{without, *best};
}

}
