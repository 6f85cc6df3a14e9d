// Executes the phases of layer executions (sim/graph/layers/layer_program.h) step by step.
//
// It decides nothing: which tensors exist, which operation reads which, and when each is let go of
// are the program's, the same that the memory forecast replays. Tensors are held by slot; a slot's
// number over the whole step is its buffer id in the EventGraph.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

#include "exec/compute/operations.h"
#include "sim/graph/event_graph.h"

namespace foreshard {

// Told of every step that a runner does. `kernels` are those of the step; `marks` the moments
// between them, fewer where an operation does not tell its kernels apart.
class StepObserver : public KernelClock {
 public:
  virtual void begin(std::span<const Kernel> kernels) = 0;
  virtual void end() = 0;
};

// Segments of a phase, one after the other.
struct SegmentRun {
  std::size_t first = 0, count = 0;
  static constexpr std::size_t kAll = at(-1);
};

class LayerRunner {
 public:
  void observe(StepObserver* observer) { observer_ = observer; }
  // References are kept. `slices`: of the model's operations; none: one of each.
  LayerRunner(const ModelSpec& model, const EventGraph& graph, SlicesOfPart slices = {});

  // `phase` belongs to the program of `execution`; `parameters` to its layer.
  void run(const LayerExecution& execution, const LayerPhaseProgram& phase, SegmentRun segments,
      const OperationContext& context, std::span<const Parameter> parameters);

  // A tensor of a layer by its number in the EventGraph.
  at::Tensor& tensor(std::int32_t buffer) { return slots_[at(buffer)]; }

  // Slots that hold a tensor; none between steps.
  std::int64_t held() const;

 private:
  void run_step(const LayerStep& step, const LayerExecution& execution, const OperationContext& context,
      std::span<const Parameter> parameters);
  std::size_t kind_of(const LayerExecution& execution) const;
  const Operation& operation_of(const LayerStep& step, const LayerExecution& execution) const;
  bool computes(const LayerStep& step, const LayerExecution& execution) const;
  at::Tensor& slot(const LayerExecution& execution, std::int32_t slot) {
    return slots_[at(execution.first_buffer) + at(slot)];
  }

  const ModelSpec& model_;
  StepObserver* observer_ = nullptr;
  SlicesOfPart slices_of_;
  std::vector<at::Tensor> slots_;
};

}
