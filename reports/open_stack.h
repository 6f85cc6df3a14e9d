// What a plan that does not say its stack leaves open: its figures under each of the training codes
// that may run it (sim/spec/open_stack.h). Draws are of all of them, by their weights.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/json.h"
#include "sim/cost/cost_model.h"
#include "sim/memory/capacity.h"
#include "sim/memory/reserved_forecast.h"
#include "sim/search/search.h"
#include "sim/spec/model_spec.h"
#include "sim/spec/open_stack.h"
#include "sim/spec/plan.h"

namespace foreshard {

// Whether an alternative of that name is a code that nobody has read: a loop of one's own.
bool is_unread(std::string_view name);

// One of the codes, with what forecasts it.
struct StackCase {
  std::string name;
  double weight = 0;  // of all cases 1
  ModelSpec model;    // with the plan's variants
  Plan plan;
  CostModel costs;
};

// The codes that may run the plans of a job, made once: of plans that differ in what a search
// chooses, models and costs are the same.
struct StackSet {
  std::vector<StackCase> cases;  // of the job's own plan, which is the first's; empty: said
  // The same of another plan; some may not go with it, or only with it. Fewer than two: said.
  std::function<std::vector<StackAlternative>(const Plan&)> plans_of = {};
  std::function<StackCase(const StackAlternative&)> case_of = {};

  std::vector<StackCase> of(const Plan& plan) const;
};

// How sure a plan is to fit, whichever code runs it, for a search that asks it of many plans, from any thread.
class StackOdds {
 public:
  // `replays`: of the allocator, as FitRule's.
  explicit StackOdds(const StackSet& set, std::shared_ptr<ReservedMemory> replays = nullptr);
  // `first`: the plan's fit under the first code. Where the odds are below `enough`, it may be an
  // upper bound of them that is below it, too.
  double operator()(const Plan& plan, const Fit& first, double enough);
  // Of the first code.
  double share() const { return set_.cases.empty() ? 1 : set_.cases.front().weight; }
  // Whether they may be `enough`, with what every code allocates for what it reserves.
  bool may_be(const Plan& plan, const Fit& least, double enough);

 private:
  struct Code;   // one of the others
  struct Codes;  // those that were asked for, of each thread
  Code& code_of(const StackAlternative& by);
  Fit as_run(Fit fit, const StackAlternative& by) const;
  // What is sure of the odds, and what is at the most, until `is_told` of the two.
  struct Odds {
    double sure = 0, most = 1;
  };
  using FitOf = Fit (*)(Code&, const Plan&);
  Odds odds_of(const Plan& plan, const Fit& first, FitOf fit_of, auto is_told);

  const StackSet& set_;
  std::shared_ptr<Codes> codes_;
};

// The rule under which any of the codes may run a job. Both outlive it.
FitRule rule_of(StackOdds& odds, std::shared_ptr<ReservedMemory> replays, FitRule rule);

// Its figures.
struct StackOutcome {
  std::string name;
  double weight = 0;
  double seconds = 0;  // of a step
  Fit fit;
};

struct OpenStack {
  std::vector<StackOutcome> outcomes;  // what most people run first; empty: the stack is said
  // Of the step's interval, what is gone on average once the stack is said.
  double interval_share = 0;
};

// With the draws of a step's seconds, of which number k is of outcome alternative_of_draw(k), and
// the width of the interval that they make.
OpenStack open_stack(std::vector<StackOutcome> outcomes, const std::vector<double>& draws, double width);

std::vector<double> weights_of(const std::vector<StackOutcome>& outcomes);

// That the step fits, whichever code runs it.
double fit_probability(const std::vector<StackOutcome>& outcomes);

// "training code not told (--set stack=NAME narrows it): 950 ms .. 1.07 s over hf_trainer,
// torchtitan_2025, none, lightning"; "" where it is told.
std::string open_stack_text(const OpenStack& open);
// {key, alternatives: [{name, weight, step_s, peak_bytes}], interval_share}; an empty list where it is told.
Json open_json(const OpenStack& open);

}
