// search: the plan's values are where the grid starts; keys of --fix and --set do not vary.
#include "sim/search/search.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "calibration/prices.h"
#include "cli/interrupt.h"
#include "cli/job.h"
#include "cli/output.h"
#include "cli/page.h"
#include "cli/progress.h"
#include "cli/remedy.h"
#include "cli/search_body.h"
#include "cli/search_space.h"
#include "cli/search_state.h"
#include "cli/verbs.h"
#include "reports/search_depth.h"
#include "reports/views.h"
#include "sim/base/spelling.h"
#include "sim/search/deep.h"
#include "sim/spec/plan_check.h"

namespace foreshard {
namespace {

constexpr int kDraws = 64;
// How far above the fastest a plan may be in the central forecast and still be the robust one.
constexpr double kRobustWithin = 1.25;

struct Timed {
  SearchResult result;
  double seconds = 0;
  std::optional<DeepResult> deep;
  double deep_seconds = 0;
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Keys that the further axes leave alone.
std::vector<std::string> fixed_keys(const Job& job) {
  std::vector<std::string> keys;
  for (const std::string& key : knob_keys()) {
    const auto given = job.document.given.find(key);
    if (given != job.document.given.end() && given->second.layer == PlanLayer::kSet) {
      keys.push_back(key);
    }
  }
  return keys;
}

std::vector<KnobAxis> asked_knobs(const SearchCommandOptions& options, const Plan& base) {
  std::vector<KnobAxis> axes;
  for (const std::string& key : options.vary) {
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

Timed timed_search(const SearchSpace& space, const Job& job, const CostModel& costs,
                   const SearchCommandOptions& asked) {
  const InterruptGuard guard;
  Progress progress("search");
  SearchOptions options;
  options.threads = asked.threads;
  options.max_memory = asked.max_memory;
  options.objective = asked.objective == "memory" ? Objective::kMemory : Objective::kTime;
  if (asked.robust) options.keep_within = kRobustWithin;
  options.progress = [&](std::int64_t done, std::int64_t all) {
    progress.show(done, all);
    return !InterruptGuard::interrupted();
  };
  std::optional<SearchState> state;
  if (!asked.resume.empty()) {
    state.emplace(asked.resume, search_key(space, job, costs, asked.max_memory));
    options.memory = state->memory();
  }
  const auto start = std::chrono::steady_clock::now();
  Timed timed{search(space, job.model, costs, options), 0, std::nullopt, 0};
  timed.seconds = seconds_since(start);
  if (asked.deep) {
    options.memory = {};  // of other places
    const auto deep_start = std::chrono::steady_clock::now();
    DeepStart from{timed.result.best, std::nullopt};
    const Plan& written = job.resolved.plan;
    if (global_batch(written) == space.global_batch) from.written = written;
    timed.deep = search_deep(with_all_knobs(space, job.cluster, fixed_keys(job)), job.model, costs,
                             from, options);
    timed.deep_seconds = seconds_since(deep_start);
  }
  return timed;
}

std::string answer_text(const Timed& timed, const BestPlan* best, const Job& job, Color color) {
  return search_text(timed.result, best == nullptr ? nullptr : &best->forecast,
                     best == nullptr ? nullptr : &best->report, job.model, job.cluster,
                     timed.seconds, color);
}

// What is named in the end: by the grid, by its depth, or by what is robust.
const Plan* chosen_plan(const Timed& timed, const std::optional<RobustChoice>& robust) {
  if (robust) return &robust->sized.plan;
  if (timed.deep && timed.deep->best) return &timed.deep->best->plan;
  return timed.result.best ? &timed.result.best->plan : nullptr;
}

}  // namespace

ExitCode run_search(const SearchCommandOptions& options) {
  if (options.deep && (options.robust || options.objective == "memory")) {
    throw Error(ExitCode::kUsage,
                "--deep goes on from the fastest plan: it does not go together "
                "with --robust or --objective memory");
  }
  JobOptions job_options = options.job;
  job_options.assignments.push_back(options.fix);
  const Job job = without_choices(load_job(job_options));
  const CostModel costs = cost_model(job);
  SearchSpace space = space_of(job);
  if (options.global_batch) space.global_batch = read_global_batch(*options.global_batch);
  space.knobs = asked_knobs(options, space.base);
  const Timed timed = timed_search(space, job, costs, options);

  std::optional<RobustChoice> robust;
  if (options.robust) robust = choose_robust(timed.result, job.model, costs, kDraws);
  const Plan* const chosen = chosen_plan(timed, robust);
  std::optional<BestPlan> best;
  if (chosen != nullptr) best = best_of(job, *chosen, costs);
  if (best && !options.out.empty()) {
    const std::filesystem::path folder = std::filesystem::path(options.out).parent_path();
    write_file(options.out, plan_file_text(job, best->forecast.plan, folder));
  }
  std::string ending;
  Json infeasible;
  if (!best && timed.result.smallest) {
    const Cluster limited = with_memory_limit(job.cluster, options.max_memory);
    const Fit fit =
        fit_in(limited, timed.result.smallest->peak_allocated, timed.result.smallest->peak_reserved,
               timed.result.smallest->outside_allocator);
    const auto remedy = find_remedy(job.model, timed.result.smallest->plan, limited);
    ending = fmt::format("the smallest plan {}; {}", shortfall_text(fit),
                         remedy_text(remedy, job.cluster));
    infeasible = remedy_json(fit, remedy);
  } else if (!best) {
    ending = "no plan of the grid is possible";
    infeasible = {{"exceeds_bytes", nullptr}, {"remedy", nullptr}};
  }
  if (!best && !options.out.empty()) note(options.out + " is not written: there is no plan");

  if (!options.html.empty()) {
    PageDocument page(page_title(job), options.output.command);
    if (best) add_forecast(page, job, best->forecast, best->report, "the best plan");
    add_search(page, job, timed.result, timed.seconds);
    if (!ending.empty()) page.set("advice", ending);
    write_page(options.html, page);
  }

  if (options.output.form == Form::kText) {
    // Tables are about the grid's own best, which knobs, layers or robustness may have replaced.
    std::optional<BestPlan> grids;
    if (timed.result.best) {
      const bool is_same = *chosen == timed.result.best->plan;
      grids = is_same ? best : best_of(job, timed.result.best->plan, costs);
    }
    const Color color = color_of(options.output.color);
    std::string text = answer_text(timed, grids ? &*grids : nullptr, job, color);
    if (grids) {
      text += why_text(why_slower(grids->forecast, timed.result, costs), timed.result.best->plan,
                       color);
    }
    if (timed.deep) {
      text += deep_text(*timed.deep, timed.result.best ? &*timed.result.best : nullptr,
                        timed.deep_seconds, color);
    }
    if (robust) text += robust_text(*robust, *timed.result.best, color);
    if (best && options.objective == "cost") {
      text += fmt::format("\n{:.3g} USD per million tokens at {:.2f} USD per GPU and hour\n",
                          dollars_per_million_tokens(job, best->report),
                          listed_price(job.cluster).usd_per_hour);
    }
    write_answer(text + (ending.empty() ? "" : "\n" + ending + "\n"));
  } else {
    Json body = search_body(job, timed.result, best ? &*best : nullptr, costs,
                            timed.seconds + timed.deep_seconds);
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

}  // namespace foreshard
