// One plan of a search: its memory, its bound, its time. For the parts of search only.
#pragma once

#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "sim/graph/training_step.h"
#include "sim/memory/reserved_forecast.h"
#include "sim/search/axes.h"
#include "sim/search/layers_floor.h"
#include "sim/simulate/simulate.h"

namespace foreshard {

// Programs of layers, shared by all plans that they serve: derived when they are first asked for, from any thread.
class LazyPrograms {
 public:
  LazyPrograms(const ModelSpec& model, Plan plan) : model_(model), plan_(std::move(plan)) {}
  bool serve(const Plan& plan) const { return LayerPrograms::are_alike(plan_, plan); }
  const LayerPrograms& get() const {
    std::call_once(once_, [&] { programs_.emplace(model_, plan_); });
    return *programs_;
  }

 private:
  const ModelSpec& model_;
  const Plan plan_;
  mutable std::once_flag once_;
  mutable std::optional<LayerPrograms> programs_;
};

// Those of all plans of a search. Filled in one thread, read by all.
class ProgramCache {
 public:
  explicit ProgramCache(const ModelSpec& model) : model_(model) {}
  // Of a plan; equal keys are asked first.
  const LazyPrograms& add(const Plan& plan, std::int16_t recompute, std::int16_t micro_batch);
  const LazyPrograms& at(const Plan& plan, std::int16_t recompute, std::int16_t micro_batch) const;

 private:
  using Bucket = std::vector<std::unique_ptr<LazyPrograms>>;

  const ModelSpec& model_;
  std::map<std::pair<std::int16_t, std::int16_t>, Bucket> buckets_;
};

struct PlanOutcome {
  Verdict verdict = Verdict::kPruned;
  Time step;
  Bytes peak;
  Bytes outside;
  Bytes least_reserved;              // no allocator reserves less
  bool is_built = false;             // these three are known
  double may_be = 0, cannot_be = 2;  // odds that FitRule::may_be was asked of: the bounds known
  // Of a plan that was assessed.
  bool is_assessed = false;
  Bytes reserved;
  bool stalls = false;  // the driver's calls in every step are not in `step` yet
  double fit_probability = 0;
  std::size_t allocator = 0;  // of SearchSpace::allocators
};

// Micro-batches that show a step's peak and what each further one adds. Of a pipeline as many as predict lays out.
inline constexpr std::int64_t kTelling = 3;

// Scratch of one thread.
class Judge {
 public:
  Judge(const ModelSpec& model, const CostModel& costs, const FitRule& rule)
      : model_(model),
        costs_(costs),
        rule_(rule),
        reserved_(rule.replays ? rule.replays : std::make_shared<ReservedMemory>()),
        samples_(rule.samples ? rule.samples : std::make_shared<StageSamples>()) {}

  // Peak and outside; false: no allocator could make it fit, and verdict says so.
  bool weigh(const Plan& plan, const LayerPrograms& programs, PlanOutcome& outcome);
  LayersFloor floor(const Plan& plan, const LazyPrograms& programs);
  // Of the plan that was weighed last.
  void time(const Plan& plan, const LayerPrograms& programs, PlanOutcome& outcome);
  // lower_bound of the plan: also of those that gather or recompute more.
  Time bound(const Plan& plan, const LayerPrograms& programs);
  // contended_bound of the plan that was weighed last.
  Time bound_weighed(const Plan& plan, const LayerPrograms& programs);
  // What predict says of the plan's memory: what is reserved, and how sure it is that this fits, as
  // FitRule::probability of `enough`. Returns whether it holds.
  bool assess(const Plan& plan, const LayerPrograms& programs, PlanOutcome& outcome, double enough = 0);
  // The fit alone, of a plan that nothing is known of; and as if nothing were cached.
  Fit fit(const Plan& plan, const LayerPrograms& programs);
  Fit least_fit(const Plan& plan, const LayerPrograms& programs);
  // And of its step: with what the driver's calls cost, of a plan that was assessed.
  void add_stalls(const Plan& plan, PlanOutcome& outcome);
  Fit fit_of(const PlanOutcome& outcome) const {
    return fit_in(costs_.cluster(), outcome.peak, outcome.reserved, outcome.outside);
  }

 private:
  ReservedMemory::Answer reserved_of(const EventGraph& graph, const Plan& plan);

  using Bound = Time(const EventGraph&, const CostTable&);

  // Of a pipeline the fullest rank's, with those of its peers.
  const EventGraph& build(const Plan& plan, const LayerPrograms& programs);
  // The same without peers.
  const EventGraph& build_fullest(const Plan& plan, const LayerPrograms& programs);
  // The period of the plan's step, by one of fewer micro-batches where that shows it.
  Time period(const Plan& plan, const LayerPrograms& programs);
  // Of the plan of which build_fullest was asked last, with told() micro-batches.
  Time extended(const Plan& plan, const LayerPrograms& programs, Bound* of);
  Time pipeline_bound(const Plan& plan, const LayerPrograms& programs, Bound* of);

  const ModelSpec& model_;
  const CostModel& costs_;
  const FitRule& rule_;
  Simulator simulator_;
  std::shared_ptr<ReservedMemory> reserved_;
  std::shared_ptr<StageSamples> samples_;
  EventGraph graph_;
  std::vector<EventGraph> ranks_;  // of a pipeline
};

// A plan of no grid, which passed check(): nothing where it does not hold, or is not faster than `limit` (s).
std::optional<Candidate> judge_plan(const Plan& plan, const ModelSpec& model, const CostModel& costs,
    const FitRule& rule, double limit = std::numeric_limits<double>::infinity());

}
