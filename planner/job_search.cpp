// Every variant is searched for its best plan alone, the last first, each for what is not slower
// than the best so far: of equally fast ones the job as it was given wins. The tables are then made
// of the one that won.
#include "planner/job_search.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "planner/changes.h"
#include "planner/search_space.h"
#include "sim/base/spelling.h"
#include "sim/search/knobs.h"

namespace foreshard {
namespace {

std::vector<KnobAxis> asked_knobs(const std::vector<std::string>& keys, const Plan& base) {
  std::vector<KnobAxis> axes;
  for (const std::string& key : keys) {
    auto axis = knob_axis(key, base);
    if (!axis) {
      std::vector<std::string> known = knob_keys();
      for (const std::string& more : requested_knob_keys()) known.push_back(more);
      const std::string near = nearest_spelling(key, known);
      throw Error(
          ExitCode::kUsage,
          fmt::format("--vary: {} does not vary; expected {}{}", quote(key), fmt::join(known, ", "),
                      near.empty() ? "" : fmt::format("; did you mean {}?", near)));
    }
    const bool is_there = std::any_of(axes.begin(), axes.end(),
                                      [&](const KnobAxis& known) { return known.key == key; });
    if (!is_there) axes.push_back(std::move(*axis));
  }
  return axes;
}

SearchSpace space_of_variant(const Job& job, const SpaceRequest& request) {
  SearchSpace space = space_of(job);
  if (request.global_batch) space.global_batch = read_global_batch(*request.global_batch);
  std::vector<std::string> fixed = fixed_keys(job);
  fixed.insert(fixed.end(), request.vary.begin(), request.vary.end());
  space = with_free_knobs(std::move(space), job.model, fixed);
  for (KnobAxis& axis : asked_knobs(request.vary, space.base)) {
    space.knobs.push_back(std::move(axis));
  }
  return space;
}

void add_counts(SearchResult& all, const SearchResult& other) {
  all.enumerated += other.enumerated;
  all.rejected_memory += other.rejected_memory;
  all.simulated += other.simulated;
  all.pruned += other.pruned;
}

// Which of two results without a best plan answers better: one that at least fits, else the
// smaller.
bool is_nearer(const SearchResult& a, const SearchResult& b) {
  if (a.riskier || b.riskier) {
    return a.riskier && (!b.riskier || a.riskier->seconds < b.riskier->seconds);
  }
  return a.smallest && (!b.smallest || a.smallest->peak_allocated < b.smallest->peak_allocated);
}

}  // namespace

std::vector<JobVariant> search_variants(const Job& job, const SpaceRequest& request) {
  std::vector<JobVariant> variants = {{job, space_of_variant(job, request)}};
  for (Job& other : free_variants(job)) {
    SearchSpace space = space_of_variant(other, request);
    variants.push_back({std::move(other), std::move(space)});
  }
  return variants;
}

JobSearch search_job(const std::vector<JobVariant>& variants, const SearchOptions& options,
                     const std::function<SearchMemory(std::size_t)>& memory_of) {
  const auto start = std::chrono::steady_clock::now();
  const auto replays = std::make_shared<ReservedMemory>();
  const auto result_of = [&](std::size_t v, SearchDetail detail, std::optional<double> limit) {
    const JobVariant& variant = variants[v];
    SearchOptions own = options;
    own.detail = detail;
    own.faster_than = limit;
    const CostModel costs = cost_model(variant.job);
    if (memory_of) own.memory = memory_of(v);
    const StackSet stacks = stack_set(variant.job, costs);
    StackOdds odds(stacks, replays);
    own.fit.probability = std::ref(odds);
    own.fit.replays = replays;
    own.fit.at_most = [&](const Plan& plan, const Fit& least) { return odds.at_most(plan, least); };
    return search(variant.space, variant.job.model, costs, own);
  };
  JobSearch found;
  std::vector<SearchResult> results(variants.size());
  const SearchResult* best = nullptr;
  const bool is_alone = variants.size() == 1;
  for (std::size_t v = variants.size(); v-- > 0;) {
    std::optional<double> limit;
    if (best != nullptr && best->best && options.objective == Objective::kTime) {
      limit = best->best->seconds * (1 + options.tie);
    }
    results[v] = result_of(v, is_alone ? options.detail : SearchDetail::kBest, limit);
    const SearchResult& r = results[v];
    const bool wins =
        best == nullptr ||
        (best->best ? r.best && (limit || r.best->peak_allocated <= best->best->peak_allocated)
                    : r.best || is_nearer(r, *best));
    if (!wins) continue;
    best = &r;
    found.variant = v;
  }
  found.result = results[found.variant];
  if (!is_alone && options.detail == SearchDetail::kAll) {
    found.result = result_of(found.variant, SearchDetail::kAll, std::nullopt);
  }
  for (std::size_t v = 0; v < variants.size(); ++v) {
    if (v != found.variant) add_counts(found.result, results[v]);
  }
  found.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return found;
}

std::vector<Alternative> find_alternatives(const Job& job, const SpaceRequest& request,
                                           const SearchResult& found, const SearchOptions& search) {
  // Less is not worth the change.
  constexpr double kWorthNaming = 0.01;
  SearchOptions best_alone = search;
  best_alone.detail = SearchDetail::kBest;
  best_alone.memory = {};
  std::vector<Alternative> list;
  for (const std::vector<std::string>& assignments : costly_assignments(job)) {
    auto other = changed_job(job, assignments);
    if (!other) continue;
    SearchSpace space = space_of_variant(*other, request);
    const SearchResult result =
        search_job({{std::move(*other), std::move(space)}}, best_alone).result;
    const bool is_worth =
        result.best &&
        (!found.best || result.best->seconds < found.best->seconds * (1 - kWorthNaming));
    if (is_worth) list.push_back({assignments, *result.best});
  }
  return list;
}

}  // namespace foreshard
