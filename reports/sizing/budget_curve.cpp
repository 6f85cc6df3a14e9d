#include "reports/sizing/budget_curve.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "reports/sizing/search_advice.h"
#include "reports/view/plan_words.h"
#include "reports/view/views.h"
#include "sim/base/unit_strings.h"
#include "sim/spec/plan_config.h"

namespace foreshard {
namespace {

std::vector<std::string> cells(const BudgetPoint& point) {
  const Plan& plan = point.plan;
  return {"  " + format_bytes(point.budget), seconds_text(point.report.seconds.value),
      cardinal(point.report.tokens_per_s_per_gpu.value), std::to_string(plan.mesh.shard), reshard_words(plan),
      recompute_words(plan), fmt::format("{} x {}", plan.batch.micro_batch, plan.batch.accumulation)};
}

Json to_json(const BudgetPoint& point) {
  return {{"budget_bytes", point.budget.count()}, {"seconds", point.report.seconds.value},
      {"tokens_per_s_per_gpu", point.report.tokens_per_s_per_gpu.value},
      {"fit_probability", point.report.fit_probability}, {"plan", foreshard::to_json(point.plan)}};
}

}

std::string budget_text(const BudgetCurve& curve, Color color) {
  const Paint paint(color);
  Lines lines = {paint.bold(curve.model.name), cluster_words(curve.cluster), ""};
  if (curve.best) {
    const BudgetPoint& best = *curve.best;
    lines.push_back(paint.bold(fmt::format(
        "best plan within {}: fits with {}", format_bytes(curve.budget), chance_text(best.report.fit_probability))));
    append(lines, indented(plan_in_words(curve.base, best.plan)));
    lines.push_back(paint.green(fmt::format("  {} per step, {} tokens/s per GPU, peak {} allocated, {} to spare",
        seconds_text(best.report.seconds.value), cardinal(best.report.tokens_per_s_per_gpu.value),
        format_bytes(best.report.fit.allocated), format_bytes(best.report.fit.margin()))));
    if (!best.report.open_stack.outcomes.empty()) append(lines, indented(open_stack_text(best.report.open_stack)));
  } else if (curve.floor) {
    lines.push_back(paint.red(fmt::format("no plan fits {} with {}: the least is {}", format_bytes(curve.budget),
        chance_text(curve.confidence), format_bytes(curve.floor->budget))));
    append(lines, indented(plan_in_words(curve.base, curve.floor->plan)));
  } else {
    lines.push_back(paint.red("no plan is possible"));
  }
  if (!curve.points.empty()) {
    lines.emplace_back();
    lines.push_back(paint.bold("what memory buys: the fastest plan within so much per GPU"));
    std::vector<std::vector<std::string>> table = {
        {"  memory", "step", "tokens/s/GPU", "shard", "reshard", "recompute", "micro-batch"}};
    for (const BudgetPoint& point : curve.points) table.push_back(cells(point));
    Lines rows = aligned(table);
    for (std::size_t i = 0; i < curve.points.size(); ++i)
      rows[i + 1] += " " + settings_words(curve.base, curve.points[i].plan);
    append(lines, rows);
  }
  return fmt::format("{}\n", fmt::join(lines, "\n"));
}

Json to_json(const BudgetCurve& curve) {
  Json json = {{"budget_bytes", curve.budget.count()}, {"gpu_memory_bytes", curve.cluster.gpu.memory.count()},
      {"confidence", curve.confidence}, {"best", nullptr},
      {"floor", curve.floor ? to_json(*curve.floor) : Json(nullptr)}, {"curve", Json::array()}};
  if (curve.best) json["best"] = {{"plan", to_json(curve.best->plan)}, {"report", to_json(curve.best->report)}};
  for (const BudgetPoint& point : curve.points) json["curve"].push_back(to_json(point));
  return json;
}

}
