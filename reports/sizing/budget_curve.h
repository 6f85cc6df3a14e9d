// What memory buys: the fastest plan within each of several budgets of a GPU's memory.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "reports/report.h"
#include "reports/view/layout.h"
#include "sim/base/json.h"
#include "sim/search/search.h"

namespace foreshard {

// The fastest plan within `budget`; its report is of a GPU that has no more.
struct BudgetPoint {
  Bytes budget;
  Plan plan;
  Report report;
};

struct BudgetCurve {
  ModelSpec model;
  Cluster cluster;  // with all the memory that its GPUs have
  Plan base;        // around which was searched
  Bytes budget;     // that was asked for
  double confidence = 0;
  std::optional<BudgetPoint> best;  // within it; nothing: the floor is above
  // The least budget within which a plan is known to hold, by steps to the fastest plan of all:
  // none is slower than the one before. Empty: not even the smallest plan holds on these GPUs.
  std::vector<BudgetPoint> points;
  // Of the plan that needs least: points.front(), or more than these GPUs have. Nothing: there is no plan.
  std::optional<BudgetPoint> floor;
};

std::string budget_text(const BudgetCurve& curve, Color color);
// foreshard.fit/1 without its schema.
Json to_json(const BudgetCurve& curve);

}
