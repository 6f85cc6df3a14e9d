// fit: a budget of memory in, the fastest plan within it out.
#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "cli/output.h"
#include "cli/progress.h"
#include "cli/verbs/verbs.h"
#include "planner/memory_budget.h"
#include "sim/base/unit_strings.h"

namespace foreshard {
namespace {

Bytes budget_of(const std::string& text) {
  try {
    const Bytes budget = parse_bytes(text);
    if (budget > Bytes(0)) return budget;
  } catch (const std::invalid_argument& error) {
    throw Error(ExitCode::kUsage, "--budget: " + std::string(error.what()));
  }
  throw Error(ExitCode::kUsage, "--budget: expected more than nothing, such as 60GiB");
}

}

ExitCode run_fit(const FitOptions& options) {
  const Bytes budget = budget_of(options.budget);
  Progress progress("fit");
  SearchOptions search = {.threads = options.threads};
  search.fit.terms.confidence = options.confidence;
  search.progress = progress.until_interrupted();
  const FittedBudget fitted = blame_profile(options.job, [&] { return fit_to_budget(options.job, budget, search); });
  const BudgetCurve& curve = fitted.curve;
  if (budget > curve.cluster.gpu.memory) {
    note(fmt::format(
        "--budget {}: a GPU has {}, all of which is taken", options.budget, format_bytes(curve.cluster.gpu.memory)));
  }
  if (curve.best && !options.out.empty()) {
    const std::filesystem::path folder = std::filesystem::path(options.out).parent_path();
    write_file(options.out, plan_file_text(*fitted.job, curve.best->plan, folder));
  }
  if (!curve.best && !options.out.empty()) note(options.out + " is not written: there is no plan");
  if (options.output.form == Form::kJson) write_answer(document("foreshard.fit/1", to_json(curve)));
  else write_text(budget_text(curve, color_of(options.output.color)));
  return curve.best ? ExitCode::kOk : ExitCode::kInfeasible;
}

}
