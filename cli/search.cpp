// search: the plan's values are where the grid starts; keys of --fix and --set do not vary.
#include "sim/search/search.h"

#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "cli/interrupt.h"
#include "cli/job.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/remedy.h"
#include "cli/search_space.h"
#include "cli/verbs.h"
#include "reports/views.h"

namespace foreshard {
namespace {

struct Timed {
  SearchResult result;
  double seconds = 0;
};

Timed timed_search(const SearchSpace& space, const Job& job, const CostModel& costs, int threads) {
  const InterruptGuard guard;
  Progress progress("search");
  SearchOptions options;
  options.threads = threads;
  options.progress = [&](std::int64_t done, std::int64_t all) {
    progress.show(done, all);
    return !InterruptGuard::interrupted();
  };
  const auto start = std::chrono::steady_clock::now();
  Timed timed{search(space, job.model, costs, options), 0};
  timed.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return timed;
}

struct Best {
  Forecast forecast;
  Report report;
};

Best best_of(const Job& job, const Plan& plan, const CostModel& costs) {
  Best best{forecast(job.model, plan, costs), {}};
  best.report = report_of(job, best.forecast, costs);
  return best;
}

std::string answer_text(const Timed& timed, const Best* best, const Job& job, Color color) {
  return search_text(timed.result, best == nullptr ? nullptr : &best->forecast,
                     best == nullptr ? nullptr : &best->report, job.model, job.cluster,
                     timed.seconds, color);
}

Json answer_json(const Timed& timed, const Best* best, const Job& job, const CostModel& costs) {
  std::vector<Report> reports;
  for (const Candidate& candidate : timed.result.pareto) {
    reports.push_back(best_of(job, candidate.plan, costs).report);
  }
  return search_json(timed.result, reports, best == nullptr ? nullptr : &best->report,
                     timed.seconds);
}

}  // namespace

ExitCode run_search(const SearchCommandOptions& options) {
  JobOptions job_options = options.job;
  job_options.assignments.push_back(options.fix);
  const Job job = without_choices(load_job(job_options));
  const CostModel costs = cost_model(job);
  SearchSpace space = space_of(job);
  if (options.global_batch) space.global_batch = read_global_batch(*options.global_batch);
  const Timed timed = timed_search(space, job, costs, options.threads);

  std::optional<Best> best;
  if (timed.result.best) best = best_of(job, timed.result.best->plan, costs);
  if (best && !options.out.empty()) {
    const std::filesystem::path folder = std::filesystem::path(options.out).parent_path();
    write_file(options.out, plan_file_text(job, best->forecast.plan, folder));
  }
  std::string ending;
  Json infeasible;
  if (!best && timed.result.smallest) {
    const Fit fit =
        fit_in(job.cluster, timed.result.smallest->peak_allocated,
               timed.result.smallest->peak_reserved, timed.result.smallest->outside_allocator);
    const auto remedy = find_remedy(job.model, timed.result.smallest->plan, job.cluster);
    ending = fmt::format("the smallest plan {}; {}", shortfall_text(fit),
                         remedy_text(remedy, job.cluster));
    infeasible = remedy_json(fit, remedy);
  } else if (!best) {
    ending = "no plan of the grid is possible";
    infeasible = {{"exceeds_bytes", nullptr}, {"remedy", nullptr}};
  }
  if (!best && !options.out.empty()) note(options.out + " is not written: there is no plan");

  const Best* found = best ? &*best : nullptr;
  if (options.output.form == Form::kText) {
    write_answer(answer_text(timed, found, job, color_of(options.output.color)) +
                 (ending.empty() ? "" : "\n" + ending + "\n"));
  } else {
    Json body = answer_json(timed, found, job, costs);
    if (!ending.empty()) {
      body["infeasible"] = infeasible;
      note(ending);
    }
    write_answer(document("foreshard.search/1", body));
  }
  return best ? ExitCode::kOk : ExitCode::kInfeasible;
}

}  // namespace foreshard
