// What plans have at the least that have the same layers: time and memory, for bounds. For the
// parts of search and for who divides a space (planner/axes_variants.cpp).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "sim/cost/cost_model.h"
#include "sim/graph/training_step.h"

namespace foreshard {

// Runtimes whose every row and buffer is told by the plan's own keys, so that bounds may lean on it.
inline bool is_fully_known(RuntimeKind runtime) {
  return runtime == RuntimeKind::kFsdp2 || runtime == RuntimeKind::kNative;
}

// Bytes that a rank holds between steps at the least: its part of the stored parameters and their optimizer state. 0
// where that is not so simple: parts that are not trained, shards on the host, runtimes that keep other things whole.
Bytes state_floor(const Plan& plan, const ModelSpec& model);

// What plans of FSDP2 with the same layer programs and micro-batches share, whatever their mesh,
// prefetch, reshard and reductions: the time of their layers (layers_bound), and the activations,
// at their most and when forward ends, which are on top of what lives between steps.
// Of a pipeline for each rank.
struct LayersFloor {
  struct Held {
    Bytes activations;
    Bytes activations_at_loss;
    // Of a rank of a pipeline: its parameters, before they are spread over axes, and whether they
    // have gradients, which it keeps whole, while activations are at their most.
    std::int64_t parameters = 0;
    bool has_gradients = false;
  };
  Time step;
  std::vector<Held> ranks;
  // The peak of the plan itself, which those have at the least that differ in what is gathered when
  // and in the shard group, where theirs is not larger. 0: not told.
  Bytes least = {};
};

// A lower bound of the peak, without a graph: what lives between steps, and on top of it the most
// of what does not live at one time with certainty: the gradients that the optimizer reads;
// activations; when forward ends, activations and the parameters that stay gathered.
Bytes memory_floor(const Plan& plan, const ModelSpec& model, const LayersFloor& floor);

// Of a graph without peers, whose buffers are all replayed.
LayersFloor::Held activations_of(const EventGraph& graph);

// What stages take and hold of a micro-batch, told by graphs of few of their blocks. Shared by
// plans that differ in how many ranks and stages a pipeline has, in its order and in how parameters
// are sharded, and by searches of one job. From any thread.
class StageSamples {
 public:
  struct Sample {
    Time forward, backward;   // with loss and recomputation
    std::int64_t held = 0;    // activations of a micro-batch from its forward to its backward
    std::int64_t beside = 0;  // and what is beside them when there are most
    bool operator==(const Sample&) const = default;
  };
  StageSamples();
  ~StageSamples();
  StageSamples& operator=(StageSamples&&) = delete;  // nor is it copied
  // Of each stage of the plan, in their order; nothing where its blocks are not all treated alike.
  std::vector<Sample> of(const ModelSpec& model, const Plan& plan, const CostModel& costs);

 private:
  class Memory;
  std::unique_ptr<Memory> memory_;
};

// Of a pipeline; nothing but zeros where that is not known.
LayersFloor pipeline_floor(const ModelSpec& model, const Plan& plan, const CostModel& costs, StageSamples& samples);

// A lower bound of the step, of the graphs of all ranks of a pipeline in their order: a rank begins when all stages
// before its first have passed a micro-batch on, and what it has computed last they pass back. The first rank, which
// neither waits before nor has anything behind, begins its next step no earlier.
Time stages_bound(
    std::span<const EventGraph> ranks, std::span<const CostTable> costs, const ModelSpec& model, const Plan& plan);

}
