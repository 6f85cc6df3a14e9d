// What DeepSpeed's coordinator decides in a steady step, micro-batch by micro-batch: what is
// fetched, waited for, prefetched and let go of at each place of the script. It depends on the
// model and on thresholds in elements, not on the ranks, so the plans of a search share one.
//
// Places at which nothing happens are left out; the hook calls they cost are counted at the next one.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "sim/graph/training_step.h"
#include "sim/graph/zero/zero3_script.h"

namespace foreshard {

struct Zero3Trace {
  using Parameters = std::span<const std::int32_t>;

  // A place of the script and what was decided there. `segment` and `layer` are where the walk over
  // the layers is by then, whatever the place: of a container the place before it.
  struct Stop {
    Zero3Place place;
    std::uint16_t hooks = 0;      // calls of the place and of those left out before it
    bool ends_gradients = false;  // no gradient arrives behind it
    // Into `lists`, one behind the other. kEnter: fetched, waited for, prefetched, read ahead from
    // NVMe; kExit: let go of (the first), which were waited for before (the second).
    std::uint32_t begin = 0, first_end = 0, second_end = 0, third_end = 0, fourth_end = 0;
  };
  struct Range {
    std::uint32_t begin = 0, end = 0;
  };
  struct Pass {
    Range stale, stale_in_base;  // in flight when the forward, the base's begins
    std::vector<Stop> forward, base, backward;
    Range leftovers;
  };

  // forward_alone: of an engine that trains nothing. base: the places of a second forward, whose
  // trace ends where it differs from the first's.
  Zero3Trace(const StepBuilder& builder, const ModelSpec& model, const Plan& plan, bool forward_alone = false,
      const std::vector<Zero3Place>& base = {});
  // Whether another plan of the same model and programs has the same one.
  bool serves(const Plan& plan) const;

  // Of a micro-batch. Those that begin as the one before it share its pass.
  const Pass& pass(std::int64_t micro_batch) const {
    const auto last = std::ssize(passes) - 1;
    return passes[at(micro_batch < last ? micro_batch : last)];
  }
  Parameters list(std::uint32_t begin, std::uint32_t end) const { return {lists.data() + begin, end - begin}; }
  Parameters list(Range range) const { return list(range.begin, range.end); }

  Zero3Script script;
  std::vector<Pass> passes;
  Range at_start;   // gathered when the step begins: the persistent ones
  Range in_flight;  // behind the last backward
  Range at_end;     // gathered or in flight behind the last backward
  std::vector<std::int32_t> lists;

 private:
  ZeroOptions zero_;
  RangedPolicy<Recompute> recompute_;
  Frozen frozen_;
  std::int64_t accumulation_ = 1;
  // Which partitions are large enough for NVMe depends on the ranks: of those; 0: none is there.
  std::int64_t ranks_ = 0;
};

// For LayerPrograms. Precondition: runtime zero3; the programs serve the plan.
std::shared_ptr<const Zero3Trace> trace_zero3(const ModelSpec& model, const Plan& plan, const LayerPrograms& programs);

}
