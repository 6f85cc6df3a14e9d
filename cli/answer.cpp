#include "cli/answer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/verbs/verbs.h"
#include "planner/remedy.h"
#include "reports/sizing/long_step.h"
#include "reports/view/layout.h"
#include "sim/simulate/folded.h"

namespace foreshard {

namespace {

// Of a few micro-batches and of fewer.
void answer_by_few(Answer& a, const CostModel& costs) {
  const Plan& whole = a.job.resolved.plan;
  const auto of = [&](std::int64_t micro_batches) {
    return forecast(a.job.model, shortened(whole, micro_batches), costs);
  };
  const LaidOut few = laid_out_of(whole);
  a.forecast = of(few.count);
  ShortSteps steps = short_steps(a.job, a.forecast, costs);
  if (!steps.fewer) steps.fewer = report_of(a.job, of(few.fewer), costs);
  a.report = long_step_report(steps, a.job.model, whole, costs);
}

}

Answer answer(const JobOptions& options, AnswerRows rows) {
  Answer a = {.job = load_job(options)};
  const CostModel costs = cost_model(a.job);
  if (rows == AnswerRows::kFew && laid_out_of(a.job.resolved.plan).fewer < a.job.resolved.plan.batch.accumulation) {
    answer_by_few(a, costs);
  } else {
    a.forecast = forecast(a.job.model, a.job.resolved.plan, costs);
    a.report = report_of(a.job, a.forecast, costs);
  }
  a.report.assumed.insert(
      a.report.assumed.begin(), {"stack", stack_sentence(options, a.job, costs, a.report.open_stack)});
  const Fit& fit = a.report.fit;
  const Plan& plan = a.job.resolved.plan;
  const MemoryTerms terms;
  if (fit.fits()) {
    if (a.report.fit_probability >= terms.confidence) return a;
    const auto surer = free_remedy(a.job, plan, terms);
    if (surer) {
      a.report.warnings.insert(
          a.report.warnings.begin(), fmt::format("hardly fits: --set {} makes it sure ({})",
                                         fmt::join(surer->changes, " --set "), chance_text(surer->fit_probability)));
    }
    return a;
  }
  const RemedySearch remedy = find_remedy(a.job, plan, terms);
  a.shortfall = fmt::format("{}; {}", shortfall_text(fit), remedy_text(remedy, a.job.cluster));
  a.infeasible = remedy_json(fit, remedy);
  a.report.warnings.insert(a.report.warnings.begin(), a.shortfall);
  return a;
}

}
