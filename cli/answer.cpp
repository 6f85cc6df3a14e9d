#include "cli/answer.h"

#include <fmt/format.h>

#include "cli/remedy.h"
#include "cli/stacks.h"

namespace foreshard {

Answer answer(const JobOptions& options) {
  Answer a;
  a.job = load_job(options);
  const CostModel costs = cost_model(a.job);
  a.forecast = forecast(a.job.model, a.job.resolved.plan, costs);
  a.report = report_of(a.job, a.forecast, costs);
  a.report.assumed.insert(a.report.assumed.begin(),
                          {"stack", stack_sentence(options, a.job, costs, a.report.open_stack)});
  const Fit& fit = a.report.fit;
  if (fit.fits()) return a;
  const auto remedy = find_remedy(a.job.model, a.job.resolved.plan, a.job.cluster);
  a.shortfall = fmt::format("{}; {}", shortfall_text(fit), remedy_text(remedy, a.job.cluster));
  a.infeasible = remedy_json(fit, remedy);
  a.report.warnings.insert(a.report.warnings.begin(), a.shortfall);
  return a;
}

}  // namespace foreshard
