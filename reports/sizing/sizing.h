// The best plan of a model on one cluster, with what a forecast of a whole run needs of it. Every
// one is found by search and simulated; nothing is scaled from another size.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "calibration/prices.h"
#include "reports/report.h"
#include "sim/cost/cost_model.h"
#include "sim/search/search.h"

namespace foreshard {

struct SizedJob;

struct SizedPlan {
  Cluster cluster;
  Plan plan;
  std::shared_ptr<const SizedJob> job;  // the one of the JobVariants that the plan is of
  std::int64_t enumerated = 0;          // by the search that found it
  std::int64_t simulated = 0;
  Quantity step;              // s
  std::vector<double> draws;  // s of a step, one for each draw of the machine's factors
  // That the step fits under the code that draw k is of; a draw for a draw. `fit_probability`: all.
  std::vector<double> fit_draws;
  double fit_probability = 1;
  OpenStack open_stack;  // `step` is of its first outcome, intervals and draws are of all
  Quantity mfu;
  Quantity tokens_per_s;     // of all GPUs
  double exposed_share = 0;  // of the step
  double forward_share = 0;  // of the step, in forward work
  Bytes state;               // what a checkpoint holds: stored parameters and optimizer state, of all ranks
  Fit fit;

  double fit_probability_of(std::size_t draw) const {
    return draw < fit_draws.size() ? fit_draws[draw] : fit_probability;
  }
};

// A job on one cluster, complete but for what the search chooses. Jobs that differ in what costs
// nothing to change (another implementation of the loss) are searched together: variants.
struct SizedJob {
  ModelSpec model;
  SearchSpace space;
  CostModel costs;
  Price price;
  StackSet stacks = {};
  // Of the allocator, shared by all jobs that may allocate alike.
  std::shared_ptr<ReservedMemory> replays = std::make_shared<ReservedMemory>();
};
struct JobVariants {
  std::vector<SizedJob> list;  // one at the least: the job as it was asked for
  // More, made and searched where none of the list holds, or beside the best of it, by its number,
  // where that recomputes (other axes), and around those over axes that may be the best, by their
  // numbers in the list and then these; may be empty.
  std::function<std::vector<SizedJob>(std::optional<std::size_t>)> otherwise = {};
  std::function<std::vector<SizedJob>(const std::vector<std::size_t>&)> around = {};

  const SizedJob& front() const { return list.front(); }
};

// Calls `judge` for every i below `count`, on `threads` threads (0: all cores), and tells `progress` how many are done;
// where that says no, the rest is left out and Error(kInterrupted) thrown: "`who` was stopped".
struct Judging {
  int threads = 0;
  std::function<bool(std::int64_t, std::int64_t)> progress;  // done and in all; may be empty
  const char* who = "";
};
void judge_each(std::size_t count, const Judging& judging, const std::function<void(std::size_t)>& judge);

// The fastest plan of all variants that holds; nothing where none does. With `draws` re-simulations
// behind the intervals.
std::optional<SizedPlan> best_plan(const JobVariants& variants, const MemoryTerms& terms, int draws);

// The same for a given plan, which passed check(). Its step is that of predict: search's is without
// what the driver's allocations cost.
struct Sizing {
  int draws = 64;
  std::vector<StackCase> cases = {};  // as of summarize()
  ReservedMemory* replays = nullptr;  // as of forecast()
};
SizedPlan size_up(const ModelSpec& model, const Plan& plan, const CostModel& costs, const Sizing& sizing);

// The fewest GPUs of the cluster's kind, doubling from one GPU to a node and from there in nodes,
// on which a plan that asks for least memory holds: everything sharded, one sequence a
// micro-batch, full recompute (keys that the spaces fix stay). Nothing: not even on `most`.
std::optional<std::int64_t> smallest_that_holds(
    const JobVariants& variants, const MemoryTerms& terms, std::int64_t most);

// Of GPUs and tokens/s, in any order: the last size up to which every doubling brought kKneeGain
// times the tokens/s or more. Nothing where all doublings did: there is no knee among the sizes.
inline constexpr double kKneeGain = 1.6;  // 80 % of what twice as many could bring
std::optional<std::int64_t> knee_of(std::vector<std::pair<std::int64_t, double>> curve);

// GPU counts that a machine can have: 1, 2, 4 ... of a node, then nodes doubling. The next above.
std::int64_t next_size(std::int64_t gpus, const Cluster& cluster);

}
