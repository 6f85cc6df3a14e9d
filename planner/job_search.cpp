// Every variant is searched for its best plan alone, each for what is not slower than the best so
// far: of equally fast ones the first wins, which is the job as it was given. The tables are then
// made of the one that won.
//
// Variants over axes are made where they are asked for or needed, and taken by what their layers
// and the collectives inside them take: the first that fits is then near the best, and most of the
// others are given up after a graph for each of their families (sim/search/best_first.cpp).
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
#include "sim/search/knobs.h"
#include "sim/search/search.h"
#include "sim/spec/checks/plan_check.h"

namespace foreshard {
namespace {

void add_counts(SearchResult& all, const SearchResult& other, std::int64_t sign) {
  all.enumerated += sign * other.enumerated;
  all.rejected_memory += sign * other.rejected_memory;
  all.simulated += sign * other.simulated;
  all.pruned += sign * other.pruned;
}

// Which of two results without a best plan answers better: one that at least fits, else the
// smaller.
bool is_nearer(const SearchResult& a, const SearchResult& b) {
  if (a.riskier || b.riskier) {
    return a.riskier && (!b.riskier || a.riskier->seconds < b.riskier->seconds);
  }
  return a.smallest && (!b.smallest || a.smallest->peak_allocated < b.smallest->peak_allocated);
}

// The rule under which any of the codes may run the job. Both outlive it.
FitRule rule_of(StackOdds& odds, const std::shared_ptr<ReservedMemory>& replays, FitRule rule) {
  rule.probability = std::ref(odds);
  rule.replays = replays;
  rule.may_be = [&odds](const Plan& plan, const Fit& least, double enough) {
    return odds.may_be(plan, least, enough);
  };
  rule.share = odds.share();
  return rule;
}

// The best of all variants so far.
class VariantSearch {
 public:
  VariantSearch(const SearchOptions& options,
                const std::function<SearchMemory(std::size_t)>& memory_after, bool each_mesh)
      : options_(options), memory_after_(memory_after), each_mesh_(each_mesh) {}

  // With the tables where there is one alone, else for the best plan. Where something was looked at
  // before, what does not even fit is no answer.
  void look_at(const std::vector<JobVariant>& variants) {
    const bool is_first = looked_ == 0;
    std::vector<std::size_t> starts;
    for (const JobVariant& variant : variants) {
      starts.push_back(places_);
      if (memory_after_) places_ += plans_of(variant).size();
    }
    const bool is_alone = is_first && variants.size() == 1;
    const SearchDetail detail = is_alone ? options_.detail : SearchDetail::kBest;
    const std::vector<SpaceFloor> floors = floors_of(variants);
    for (std::size_t v = 0; v < variants.size(); ++v) {
      all_.push_back({&variants[v], looked_ + v, starts[v], floors[v]});
    }
    for (const std::size_t v : search_order(floors)) consider(all_[looked_ + v], detail, is_first);
    looked_ += variants.size();
  }

  // Whose plan holds; null: none.
  const JobVariant* best_variant() const { return found_.best ? best_.variant : nullptr; }
  // Whether other axes may be faster.
  bool leaves_room() const {
    if (!found_.best) return true;
    const Numbered& first = all_.front();
    const Time bare = first.floor.bare > Time() ? first.floor.bare : floor(*first.variant).bare;
    return foreshard::leaves_room(*found_.best, bare);
  }

  // Variants over other axes than the first that the loss in parts may make the best.
  std::vector<const JobVariant*> promising() const {
    std::vector<const JobVariant*> list;
    for (const Numbered& at : all_) {
      const bool may_win = each_mesh_ || may_win_in_parts(at.floor, best());
      if (may_win && at.variant->space.base.mesh != all_[0].variant->space.base.mesh)
        list.push_back(at.variant);
    }
    return list;
  }

  // Of the variant that won, with counts of all. Throws where no variant is possible.
  JobSearch answer() {
    if (best_.variant == nullptr) throw *failure_;
    if (!has_detail_ && options_.detail == SearchDetail::kAll) {
      add_counts(counts_, found_, -1);
      JobVariant around = *best_.variant;
      if (found_.best) around.space = settled(around.space, found_.best->plan);
      const bool is_known = around.space.base == best_.variant->space.base;
      found_ = search_of(around, is_known ? memory_of(best_) : SearchMemory(), SearchDetail::kAll,
                         std::nullopt);
      add_counts(counts_, found_, 1);
    }
    JobSearch answer{*best_.variant, std::move(found_), 0, {}};
    answer.result.enumerated = counts_.enumerated;
    answer.result.rejected_memory = counts_.rejected_memory;
    answer.result.simulated = counts_.simulated;
    answer.result.pruned = counts_.pruned;
    if (each_mesh_ && meshes_.size() > 1) answer.meshes = std::move(meshes_);
    for (const auto& [pp, step] : pipelines_) answer.pipelines.push_back(step);
    return answer;
  }

 private:
  struct Numbered {
    const JobVariant* variant = nullptr;
    std::size_t number = 0;
    std::size_t start = 0;  // of its places
    SpaceFloor floor;
  };

  const Candidate* best() const { return found_.best ? &*found_.best : nullptr; }

  SpaceFloor floor(const JobVariant& variant) const {
    return floor_of(variant.space, variant.job.model, cost_model(variant.job), options_.fit.terms,
                    samples_);
  }

  std::vector<SpaceFloor> floors_of(const std::vector<JobVariant>& variants) const {
    std::vector<const SearchSpace*> spaces;
    for (const JobVariant& variant : variants) spaces.push_back(&variant.space);
    return variant_floors(
        spaces, [&](std::size_t v) { return floor(variants[v]); }, options_.threads);
  }

  void consider(const Numbered& at, SearchDetail detail, bool is_first) {
    std::optional<double> limit;
    if (!is_first) limit = kAnyStep;
    const bool has_limit = found_.best && options_.objective == Objective::kTime;
    const double tie = 1 + (at.number < best_.number ? options_.tie : -options_.tie);
    const double to_beat = has_limit ? found_.best->seconds * tie : kAnyStep;
    note_pipeline(at);
    if (has_limit) {
      limit = found_.best->unfinished_seconds * tie;
      if (each_mesh_) limit = step_with(at.variant->space.base.mesh).value_or(kAnyStep) * tie;
      if (at.floor.layers.seconds() >= (each_mesh_ ? *limit : to_beat)) {
        const auto places = static_cast<std::int64_t>(plans_of(*at.variant).size());
        counts_.enumerated += places;
        counts_.pruned += places;
        return;
      }
    }
    try {
      SearchResult r = search_of(*at.variant, memory_of(at), detail, limit);
      add_counts(counts_, r, 1);
      compare_mesh(*at.variant, r.best);
      std::optional<double>& step = pipelines_[at.variant->space.base.mesh.pp].seconds;
      if (r.best && (!step || r.best->seconds < *step)) step = r.best->seconds;
      const bool wins =
          best_.variant == nullptr ||
          (found_.best
               ? r.best && (has_limit ? r.best->seconds < to_beat
                                      : r.best->peak_allocated <= found_.best->peak_allocated)
               : r.best || is_nearer(r, found_));
      if (!wins) return;
      found_ = std::move(r);
      best_ = at;
      has_detail_ = detail == options_.detail;
    } catch (const Error& error) {
      // A global batch that does not divide over these ranks.
      if (error.exit_code() != ExitCode::kInvalidInput) throw;
      failure_ = error;
    }
  }

  // Of all variants with these axes so far.
  std::optional<double>& step_with(const Mesh& mesh) {
    const auto axes = [](const Mesh& m) { return std::tuple(m.tp, m.cp, m.ep, m.etp, m.pp); };
    auto found = std::ranges::find_if(
        meshes_, [&](const MeshStep& known) { return axes(known.mesh) == axes(mesh); });
    if (found == meshes_.end()) found = meshes_.insert(found, {mesh, std::nullopt});
    return found->seconds;
  }
  void compare_mesh(const JobVariant& variant, const std::optional<Candidate>& best) {
    std::optional<double>& step = step_with(variant.space.base.mesh);
    if (best && (!step || best->seconds < *step)) step = best->seconds;
  }

  void note_pipeline(const Numbered& at) {
    const std::int64_t pp = at.variant->space.base.mesh.pp;
    const double layers = at.floor.layers.seconds();
    const auto [known, is_new] = pipelines_.emplace(pp, PipelineStep{pp, std::nullopt, layers});
    if (!is_new) known->second.at_least = std::min(known->second.at_least, layers);
  }

  SearchMemory memory_of(const Numbered& at) const {
    return memory_after_ ? memory_after_(at.start) : SearchMemory();
  }

  SearchResult search_of(const JobVariant& variant, const SearchMemory& memory, SearchDetail detail,
                         std::optional<double> limit) const {
    const bool begins = limit && found_.best;
    const SearchSpace space = begins ? begun_as(variant.space, found_.best->plan) : variant.space;
    SearchOptions own = options_;
    own.detail = detail;
    own.faster_than = limit;
    const CostModel costs = cost_model(variant.job);
    if (space.base == variant.space.base) own.memory = memory;
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
  std::map<std::int64_t, PipelineStep> pipelines_;  // by ranks
  const std::shared_ptr<ReservedMemory> replays_ = std::make_shared<ReservedMemory>();
  const std::shared_ptr<StageSamples> samples_ = std::make_shared<StageSamples>();
  std::size_t looked_ = 0;  // variants
  std::vector<Numbered> all_;
  std::size_t places_ = 0;  // of them, where their memory is asked
  Numbered best_;
  SearchResult found_;  // of it
  bool has_detail_ = false;
  SearchResult counts_;
  std::optional<Error> failure_;
};

}

JobSearch search_job(const SearchVariants& variants, const SearchOptions& options,
                     const std::function<SearchMemory(std::size_t)>& memory_after) {
  const auto start = std::chrono::steady_clock::now();
  VariantSearch all(options, memory_after, variants.each_mesh);
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

// What the depth of a search judges by: as VariantSearch::search_of.
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
  return search_deep(with_all_knobs(space, job.cluster, fixed_keys(job)), job.model, depth.costs,
                     from, depth.how);
}

std::optional<Candidate> search_layers(const JobSearch& found, const SearchOptions& options) {
  if (!found.result.best) return std::nullopt;
  const Depth depth(found, options);
  return search_layers(found.chosen.space, depth.job.model, depth.costs, *found.result.best,
                       depth.how);
}

namespace {

std::optional<Candidate> best_alone(const SearchVariants& variants, SearchOptions search) {
  search.detail = SearchDetail::kBest;
  search.memory = {};
  return search_job(variants, search).result.best;
}

}

std::vector<Alternative> find_alternatives(const Job& job, const SpaceRequest& request,
                                           const SearchResult& found, const SearchOptions& search) {
  // Less is not worth the change.
  constexpr double kWorthNaming = 0.01;
  std::vector<Alternative> list;
  const SpaceRequest of_knobs{request.global_batch, split_axes(request.vary).others};
  for (const std::vector<std::string>& assignments : costly_assignments(job)) {
    auto other = changed_job(job, assignments);
    if (!other) continue;
    const auto best = best_alone({variants_by_model(std::move(*other), of_knobs)}, search);
    const bool is_worth =
        best && (!found.best || best->seconds < found.best->seconds * (1 - kWorthNaming));
    if (is_worth) list.push_back({assignments, *best});
  }
  return list;
}

std::optional<Alternative> find_without_axes(const Job& job, const SpaceRequest& request,
                                             const SearchResult& found,
                                             const SearchOptions& search) {
  if (!split_axes(request.vary).axes.empty() || !found.best) return std::nullopt;
  const Mesh& mesh = found.best->plan.mesh;
  std::vector<std::string> without;
  for (const auto& [key, ranks] :
       {std::pair(kExpertAxis, mesh.ep), std::pair("mesh.etp", mesh.etp),
        std::pair(kContextAxis, mesh.cp), std::pair("mesh.tp", mesh.tp)}) {
    if (ranks > 1 && !is_fixed(job, key)) without.push_back(fmt::format("{}=1", key));
  }
  auto other = without.empty() ? std::nullopt : changed_job(job, without);
  if (!other) return std::nullopt;
  const std::int64_t ranks = job.cluster.gpus / other->resolved.plan.mesh.sharing();
  if (read_global_batch(*request.global_batch) % ranks != 0) return std::nullopt;
  const auto best = best_alone({search_variants(*other, request).list}, search);
  if (!best) return std::nullopt;
  return Alternative{without, *best};
}

}
