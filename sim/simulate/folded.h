// Steps of many micro-batches by graphs of few of them.
#pragma once

#include <cstdint>
#include <functional>

#include "sim/cost/cost_model.h"
#include "sim/graph/event_graph.h"
#include "sim/simulate/simulate.h"

namespace foreshard {

// A step by the number of micro-batches that its graph has; valid until the next call.
using StepOf = std::function<const EventGraph&(std::int64_t micro_batches)>;

// Simulator::period of the step with `micro_batches`. Exact where a graph of few shows that they repeat, and up to
// kMostInFull of them; of more that do not (a host that waits in the middle of every micro-batch) to what rounding the
// last half of kMostInFull of them leaves. Not of a pipeline, whose schedule may refuse few: period_of().
inline constexpr std::int64_t kMostInFull = 192;
Time folded_period(Simulator& simulator, const CostModel& costs, std::int64_t micro_batches, const StepOf& step);

// Micro-batches of a graph that tells a step's memory, first step and rows, and of one against
// which what more of them add is told: all, of up to kMostLaidOut.
struct LaidOut {
  std::int64_t count = 1, fewer = 1;  // equal: the whole step
};
inline constexpr std::int64_t kMostLaidOut = 64, kLaidOut = 16, kFewer = 8;
inline constexpr std::int64_t kMostOfLong = 512;
// A pipeline's micro-batches repeat, as many of its ranks at a time, from about twice as many on:
// taken as such, not shown (of two cycles that are nearly equal the slower one may lead later).
// Interleaved1F1B's go in rounds, of which all have as many.
inline LaidOut few_of_pipeline(const Plan& plan) {
  const std::int64_t call = plan.pipeline.microbatches;
  if (call > 0) return {3 * call, 2 * call};
  if (plan.pipeline.schedule == PipelineSchedule::kCustom)  // orders are of all
    return {plan.batch.accumulation, plan.batch.accumulation};
  const std::int64_t ranks = plan.mesh.pp, all = plan.batch.accumulation;
  const bool has_rounds = plan.pipeline.schedule == PipelineSchedule::kInterleaved1F1B ||
                          plan.pipeline.schedule == PipelineSchedule::kInterleavedZeroBubble;
  const std::int64_t at_once = has_rounds && all >= ranks ? all / (all / ranks) : ranks;
  return {3 * at_once + all % at_once, 2 * at_once + all % at_once};
}
inline LaidOut laid_out_of(const Plan& plan) {
  const std::int64_t all = plan.batch.accumulation;
  LaidOut few{kLaidOut, kFewer};
  if (plan.mesh.pp > 1) {
    few = few_of_pipeline(plan);
    const std::int64_t at_once = few.count - few.fewer;
    using enum PipelineSchedule;
    const PipelineSchedule schedule = plan.pipeline.schedule;
    // What of every micro-batch stays for long grows with them, and of many the peak may be at another moment.
    const bool keeps =
        schedule == kGPipe || schedule == kLoopedBfs || plan.pipeline.return_outputs || plan.pipeline.splits_backward();
    if (keeps && at_once > 0 && plan.pipeline.microbatches == 0) {
      few.fewer = few.count + kMostOfLong / at_once * at_once;
      few.count = few.fewer + at_once;
    }
  }
  return all <= kMostLaidOut || all <= few.count ? LaidOut{all, all} : few;
}
// Of the whole step, by those of both: of a figure that grows evenly.
inline double of_whole_step(const LaidOut& of, double laid_out, double fewer, std::int64_t all) {
  const double one_more = (laid_out - fewer) / as_double(of.count - of.fewer);
  return laid_out + as_double(all - of.count) * one_more;
}

// Micro-batches whose time tells a step's, for those who ask for it again and again: three, from
// the second on all being alike, or few_of_pipeline().
inline LaidOut drawn_of(const Plan& plan) {
  const LaidOut few = plan.mesh.pp == 1 ? LaidOut{3, 2} : few_of_pipeline(plan);
  const std::int64_t all = plan.batch.accumulation;
  return all <= few.count ? LaidOut{all, all} : few;
}

// The plan's period: folded_period(), or of a pipeline that of laid_out_of(), told by both.
Time period_of(Simulator& simulator, const CostModel& costs, const Plan& plan, const StepOf& step);

}
