// The fastest plan within a budget of a GPU's memory, and what more or less memory would do: each
// budget is searched as if the GPU had no more.
#pragma once

#include <optional>

#include "planner/job.h"
#include "reports/sizing/budget_curve.h"
#include "sim/search/search.h"

namespace foreshard {

struct FittedBudget {
  BudgetCurve curve;
  std::optional<Job> job;  // whose model curve.best is of, on GPUs of the budget's memory
};

// `search`: threads, progress (budgets done and in all) and confidence. Throws as load_job.
// A budget above what the GPU has is all that it has.
FittedBudget fit_to_budget(const JobOptions& job, Bytes budget, const SearchOptions& search);

}
