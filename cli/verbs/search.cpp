// search: the plan's values are where the grid starts; keys of --fix and --set do not vary.
#include "sim/search/search.h"

#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "calibration/prices.h"
#include "cli/output.h"
#include "cli/page.h"
#include "cli/progress.h"
#include "cli/verbs/search_body.h"
#include "cli/verbs/verbs.h"
#include "planner/job_search.h"
#include "planner/remedy.h"
#include "planner/search_space.h"
#include "planner/search_state.h"
#include "reports/sizing/search_depth.h"
#include "reports/view/views.h"
#include "sim/search/deep.h"
#include "sim/spec/checks/plan_check.h"

namespace foreshard {
namespace {

constexpr int kDraws = 64;
// How far above the fastest a plan may be in the central forecast and still be the robust one.
constexpr double kRobustWithin = 1.25;

struct Timed {
  JobSearch found;
  std::optional<DeepResult> deep;
  double deep_seconds = 0;
};

SearchOptions search_options(const SearchCommandOptions& asked) {
  SearchOptions options = {.threads = asked.threads};
  options.fit.terms = {asked.confidence, asked.max_memory};
  options.objective = asked.objective == "memory" ? Objective::kMemory : Objective::kTime;
  if (asked.robust) options.keep_within = kRobustWithin;
  return options;
}

// States of all variants in one file: the places of one come after those of the one before.
std::function<SearchMemory(std::size_t)> memory_after(SearchState& state) {
  return [memory = state.memory()](std::size_t before) {
    return SearchMemory{[=](std::size_t i) { return memory.recall(before + i); },
        [=](std::size_t i, const JudgedPlan& plan) { memory.remember(before + i, plan); }};
  };
}

Timed timed_search(const SearchVariants& variants, const SearchCommandOptions& asked, const SearchOptions& options) {
  Timed timed;
  std::optional<SearchState> state;
  if (!asked.resume.empty()) state.emplace(asked.resume, search_key(variants.list, options.fit.terms));
  timed.found = search_job(variants, options, state ? memory_after(*state) : nullptr);
  if (asked.deep) {
    const auto start = std::chrono::steady_clock::now();
    timed.deep = search_deep(timed.found, options);
    timed.deep_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  return timed;
}

// What is named in the end: by the grid, by its depth, or by what is robust.
const Plan* chosen_plan(const Timed& timed, const std::optional<RobustChoice>& robust) {
  if (robust) return &robust->sized.plan;
  if (timed.deep && timed.deep->best) return &timed.deep->best->plan;
  return timed.found.result.best ? &timed.found.result.best->plan : nullptr;
}

}

ExitCode run_search(const SearchCommandOptions& options) {
  if (options.deep && (options.robust || options.objective == "memory")) {
    throw Error(ExitCode::kUsage,
        "--deep goes on from the fastest plan: it does not go together with --robust or --objective memory");
  }
  JobOptions job_options = options.job;
  job_options.assignments.push_back(options.fix);
  const Job asked = without_choices(load_job(job_options));
  SpaceRequest request{options.global_batch, options.vary};
  SearchVariants variants = search_variants(asked, request);
  variants.each_mesh = !options.html.empty();

  Progress progress("search");
  SearchOptions how = search_options(options);
  how.progress = progress.until_interrupted();
  const Timed timed = timed_search(variants, options, how);
  const SearchResult& result = timed.found.result;
  const Job job = without_choices(timed.found.chosen.job);
  // Axes change what the other keys are at first; what else was chosen is told beside that.
  const Mesh& mesh = job.resolved.plan.mesh;
  const bool has_axes = !mesh.is_plain() || mesh.pp > 1;
  const Job& around = has_axes ? job : asked;
  request.global_batch = std::to_string(timed.found.chosen.space.global_batch);
  const CostModel costs = cost_model(job);

  std::optional<RobustChoice> robust;
  if (options.robust) robust = choose_robust(result, job.model, costs, stack_set(job, costs), kDraws);
  const Plan* const chosen = chosen_plan(timed, robust);
  std::optional<BestPlan> best;
  if (chosen != nullptr) best = best_of(job, *chosen, costs);
  if (best && !options.out.empty()) {
    const std::filesystem::path folder = std::filesystem::path(options.out).parent_path();
    write_file(options.out, plan_file_text(job, best->forecast.plan, folder));
  }
  SearchStory story{result, job.model, job.cluster, around.resolved.plan, timed.found.seconds + timed.deep_seconds,
      options.confidence};
  story.pipelines = timed.found.pipelines;
  story.alternatives = find_alternatives(around, request, result, how);
  if (auto without = find_without_axes(asked, request, result, how)) story.alternatives.push_back(std::move(*without));
  if (result.riskier) story.riskier = best_of(job, result.riskier->plan, costs).report;
  std::string ending;
  Json infeasible;
  if (!best && result.smallest) {
    const Fit fit = fit_in(job.cluster, result.smallest->peak_allocated, result.smallest->peak_reserved,
        result.smallest->outside_allocator);
    RemedySearch remedy = find_remedy(job, result.smallest->plan, how.fit.terms);
    if (!remedy.found) {
      // What the smallest plan has already may be what shuts other keys out.
      RemedySearch of_own = find_remedy(around, around.resolved.plan, how.fit.terms);
      if (of_own.found) remedy = std::move(of_own);
    }
    ending = fmt::format(
        "the smallest plan {}; {}", fit_words(fit, result.smallest->fit_probability), remedy_text(remedy, job.cluster));
    infeasible = remedy_json(fit, remedy);
  } else if (!best) {
    ending = "no plan of the grid is possible";
    infeasible = {{"exceeds_bytes", nullptr}, {"remedy", nullptr}};
  }
  if (!best && !options.out.empty()) note(options.out + " is not written: there is no plan");

  if (!options.html.empty()) {
    PageDocument page(page_title(job), options.output.command);
    if (best) add_forecast(page, job, best->forecast, best->report, "the best plan");
    add_search(page, job, timed.found);
    if (!ending.empty()) page.set("advice", ending);
    write_page(options.html, page);
  }

  if (options.output.form == Form::kText) {
    // Tables are about the grid's own best, which knobs, layers or robustness may have replaced.
    std::optional<BestPlan> grids;
    if (result.best) {
      const bool is_same = *chosen == result.best->plan;
      grids = is_same ? best : best_of(job, result.best->plan, costs);
    }
    const Color color = color_of(options.output.color);
    std::string text = search_text(story, grids ? &grids->forecast : nullptr, grids ? &grids->report : nullptr, color);
    if (grids) text += why_text(why_slower(grids->forecast, result, costs), result.best->plan, color);
    if (timed.deep) text += deep_text(*timed.deep, result.best ? &*result.best : nullptr, timed.deep_seconds, color);
    if (robust) text += robust_text(*robust, *result.best, color);
    if (best && options.objective == "cost") {
      text += fmt::format("\n{:.3g} USD per million tokens at {:.2f} USD per GPU and hour\n",
          dollars_per_million_tokens(job, best->report), listed_price(job.cluster).usd_per_hour);
    }
    write_text(text + (ending.empty() ? "" : "\n" + ending + "\n"));
  } else {
    Json body = search_body(job, story, best ? &*best : nullptr, costs);
    if (timed.deep) body["deep"] = to_json(*timed.deep);
    if (robust) body["robust"] = to_json(*robust);
    if (!ending.empty()) {
      body["infeasible"] = infeasible;
      note(ending);
    }
    write_answer(document("foreshard.search/1", body));
  }
  return best ? ExitCode::kOk : ExitCode::kInfeasible;
}

}
