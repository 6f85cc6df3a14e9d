// After each step the frees among its actions are carried out; allocations are what the operation
// itself made. An in-place result is put into its slot before the slot it took over is freed.
#include "exec/compute/layer_runner.h"

#include <algorithm>

#include "sim/base/error.h"

namespace foreshard {

LayerRunner::LayerRunner(const ModelSpec& model, const EventGraph& graph, SlicesOfPart slices)
    : model_(model), slices_of_(std::move(slices)), slots_(at(graph.first_own_buffer)) {}

void LayerRunner::run(const LayerExecution& execution, const LayerPhaseProgram& phase, SegmentRun segments,
    const OperationContext& context, std::span<const Parameter> parameters) {
  if (phase.segments.empty()) return;
  const std::size_t last = segments.count == SegmentRun::kAll ? phase.segments.size() : segments.first + segments.count;
  const LayerSegment before = segments.first == 0 ? LayerSegment() : phase.segments[segments.first - 1];
  const LayerSegment& end = phase.segments[last - 1];
  std::size_t done = before.actions_end;
  const auto free_up_to = [&](std::size_t end) {
    for (; done < end; ++done) {
      const std::int32_t action = phase.actions[done];
      if (action < 0) slot(execution, -action - 1).reset();
    }
  };
  OperationContext observed = context;
  observed.clock = observer_;
  const std::vector<Slices>* const slices = slices_of_.empty() ? nullptr : &slices_of_[kind_of(execution)];
  std::size_t kernels = before.kernels_end;
  for (const LayerStep& step : phase.steps) {
    const bool is_behind = step.actions_end > before.actions_end || step.kernels_end > before.kernels_end;
    const bool is_inside = step.actions_end <= end.actions_end && step.kernels_end <= end.kernels_end;
    if (!is_inside || (segments.first > 0 && !is_behind)) continue;
    if (!computes(step, execution)) {
      free_up_to(step.actions_end);
      continue;
    }
    if (slices != nullptr && step.kind != LayerStep::Kind::kSum) observed.slices = (*slices)[at(step.operation)];
    if (observer_ != nullptr) observer_->begin(std::span(phase.kernels).subspan(kernels, step.kernels_end - kernels));
    run_step(step, execution, observed, parameters);
    if (observer_ != nullptr) observer_->end();
    kernels = step.kernels_end;
    free_up_to(step.actions_end);
  }
  free_up_to(end.actions_end);
}

std::size_t LayerRunner::kind_of(const LayerExecution& execution) const {
  return at(model_.order[at(execution.layer)].kind);
}

const Operation& LayerRunner::operation_of(const LayerStep& step, const LayerExecution& execution) const {
  return model_.kinds[kind_of(execution)].operations[at(step.operation)];
}

// Collectives are rows of their own; a view and what it is of share a slot.
bool LayerRunner::computes(const LayerStep& step, const LayerExecution& execution) const {
  if (step.kind == LayerStep::Kind::kSum) return true;
  const Operation& operation = operation_of(step, execution);
  return !operation.is_collective() && !(operation.view && step.kind == LayerStep::Kind::kForward);
}

void LayerRunner::run_step(const LayerStep& step, const LayerExecution& execution, const OperationContext& context,
    std::span<const Parameter> parameters) {
  std::vector<at::Tensor> inputs;
  inputs.reserve(step.inputs.size());
  for (const std::int32_t s : step.inputs)
    inputs.push_back(s == LayerStep::kNothing ? at::Tensor() : slot(execution, s));
  std::vector<at::Tensor> outputs;
  if (step.kind == LayerStep::Kind::kSum) {
    const bool into_second = step.outputs[0] == step.inputs[1];
    outputs = {into_second ? inputs[1].add_(inputs[0]) : inputs[0].add(inputs[1])};
  } else {
    const Operation& operation = operation_of(step, execution);
    if (step.kind == LayerStep::Kind::kForward) outputs = run_forward(operation, context, parameters, inputs);
    else outputs = run_backward(operation, context, parameters, inputs[0], std::span(inputs).subspan(1));
  }
  FORESHARD_CHECK(outputs.size() == step.outputs.size(), "an operation made other tensors than listed");
  for (std::size_t i = 0; i < outputs.size(); ++i)
    if (step.outputs[i] != LayerStep::kNothing) slot(execution, step.outputs[i]) = std::move(outputs[i]);
}

std::int64_t LayerRunner::held() const { return std::ranges::count_if(slots_, &at::Tensor::defined); }

}
