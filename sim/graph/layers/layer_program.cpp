// How a layer's allocations follow from its operations.
//
// Tensors name storages; a storage dies with its last reference. References are Python's names (they end where
// Operation::released says, else after the last use), what autograd saved, what checkpointing keeps, and outside of the
// layer the names of its input and output. What autograd makes of the layer is settled first (layer_autograd.h); then
// forward, recompute (layer_forward.cpp) and backward (layer_backward.cpp) are written in the order in which they run,
// by a writer that counts the references (layer_program_writer.h). The end is here: slots of the layer's neighbours get
// their numbers, and how memory swings is summed up.
//
// Held against the allocation log of PyTorch 2.11 in tests/sim/graph/layers/layer_program_test.cpp.
#include "sim/graph/layers/layer_program.h"

#include <algorithm>
#include <utility>

#include "sim/graph/layers/layer_autograd.h"
#include "sim/graph/layers/layer_phases.h"
#include "sim/graph/layers/layer_program_writer.h"
#include "sim/graph/layers/pipelined_products.h"

namespace foreshard {
namespace {

bool is_store(std::int32_t action) { return action >= LayerPhaseProgram::kStore; }

class Finisher {
 public:
  explicit Finisher(LayerProgramWriter& writer)
      : writer_(writer),
        graph_(writer.graph()),
        program_(writer.program()),
        own_(static_cast<std::int32_t>(program_.slots.size())) {}

  void run() {
    const std::int64_t output = graph_.is_loss() ? 0 : graph_.bytes(graph_.layer().output);
    program_.output_bytes = allocated_size(output);
    program_.output_grad_bytes = allocated_size(output);
    if (const std::int64_t made = graph_.options().gradient_elements; made > 0) {
      const TensorSpec& tensor = graph_.tensor(graph_.layer().output);
      const std::int64_t all = elements(tensor, graph_.options().batch, graph_.options().sequence);
      program_.output_grad_bytes = allocated_size(output / all * made);
    }
    list_stored_gradients();
    for (LayerPhaseProgram* phase :
        {&program_.forward, &program_.recompute, &program_.backward, &program_.free_ignored_gradients})
      finish(*phase);
    for (LayerPhaseProgram& phase : program_.free_gradients) finish(phase);
    for (LayerPhaseProgram& phase : program_.free_last_gradient) finish(phase);
    if (!graph_.options().ends_stage) return;
    writer_.add_slot(MemoryCategory::kActivation, output, "output");
    writer_.add_slot(MemoryCategory::kBackwardTemp, output, "output.grad");
  }

 private:
  // A list of Python's loses its last element first.
  void list_stored_gradients() {
    const ProgramOptions& options = graph_.options();
    const std::size_t parts = options.split_parts ? graph_.layer().nested.size() + 1 : 1;
    program_.free_gradients.resize(parts);
    program_.free_last_gradient.resize(parts);
    if (options.sharing == Sharing::kFirstOfBackward || options.sharing == Sharing::kBetween)
      return;  // freed by the call that comes next in backward
    std::vector<bool> seen(parts, false);
    for (std::size_t i = program_.weight_gradients.size(); i-- > 0;) {
      const auto p = static_cast<Index>(i);
      const std::int32_t slot = program_.weight_gradients[i];
      if (slot == LayerProgramWriter::kNoSlot || graph_.parameter(p).tied) continue;
      LayerPhaseProgram* phase = &program_.free_ignored_gradients;
      if (!graph_.is_ignored(p)) {
        const std::size_t part = parts == 1 ? 0 : at(graph_.parameter(p).part);
        phase = seen[part] ? &program_.free_gradients[part] : &program_.free_last_gradient[part];
        seen[part] = true;
      }
      writer_.begin(*phase);
      writer_.free(slot);
    }
  }

  void finish(LayerPhaseProgram& phase) const {
    number_borders(phase);
    if (phase.segments.empty() && !phase.actions.empty()) phase.segments.push_back({});
    if (phase.segments.size() == 1) {
      phase.segments[0].actions_end = static_cast<std::uint32_t>(phase.actions.size());
      phase.segments[0].kernels_end = static_cast<std::uint32_t>(phase.kernels.size());
    }
    std::size_t done = 0, kernel = 0;
    std::int64_t now = 0;
    for (LayerSegment& segment : phase.segments) {
      const std::int64_t start = now;
      for (; done < segment.actions_end; ++done) {
        now += change(phase.actions[done]);
        segment.swing.peak = std::max(segment.swing.peak, now - start);
        phase.swing.peak = std::max(phase.swing.peak, now);
      }
      for (; kernel < segment.kernels_end; ++kernel) segment.flops += phase.kernels[kernel].flops;
      segment.swing.net = now - start;
    }
    phase.swing.net = now;
  }

  // The output and its gradient are the slots behind the layer's own.
  void number_borders(LayerPhaseProgram& phase) const {
    const auto is_border = [](std::int32_t slot) {
      return slot == LayerProgramWriter::kOutputSlot || slot == LayerProgramWriter::kOutputGradSlot;
    };
    for (std::int32_t& action : phase.actions) {
      const std::int32_t slot = (action > 0 ? action : -action) - 1;
      if (is_store(action) || !is_border(slot)) continue;
      const std::int32_t mapped = own_ + (slot - LayerProgramWriter::kOutputSlot) + 1;
      action = action > 0 ? mapped : -mapped;
    }
    for (LayerStep& step : phase.steps) {
      for (std::vector<std::int32_t>* slots : {&step.inputs, &step.outputs}) {
        for (std::int32_t& slot : *slots)
          if (is_border(slot)) slot = own_ + (slot - LayerProgramWriter::kOutputSlot);
      }
    }
  }

  // Of the allocated bytes.
  std::int64_t change(std::int32_t action) const {
    if (is_store(action)) return 0;
    const std::int64_t bytes = slot_bytes((action > 0 ? action : -action) - 1).count();
    return action > 0 ? bytes : -bytes;
  }

  Bytes slot_bytes(std::int32_t slot) const {
    if (slot >= LayerPhaseProgram::kEarlierGradient) {
      return allocated_size(
          graph_.earlier_gradient_bytes(static_cast<Index>(slot - LayerPhaseProgram::kEarlierGradient)));
    }
    if (slot >= LayerPhaseProgram::kWaiting) return allocated_size(graph_.bytes(graph_.layer().joins));
    if (slot < own_) return program_.slots[at(slot)].bytes;
    return slot == own_ ? program_.output_bytes : program_.output_grad_bytes;
  }

  LayerProgramWriter& writer_;
  const LayerAutograd& graph_;
  LayerProgram& program_;
  const std::int32_t own_;
};

}

Bytes LayerProgram::saved_bytes() const {
  return sum_of<Bytes>(
      saved, [&](std::int32_t slot) { return slots[at(slot)].bytes; });
}

LayerProgram build_layer_program(const LayerSpec& layer, const ProgramOptions& options) {
  const LayerAutograd graph(layer, options);
  LayerProgramWriter writer(graph);
  write_forward(writer);
  if (graph.is_checkpointed()) write_recompute(writer);
  write_backward(writer);
  if (options.pipelines_products) {
    LayerProgram& program = writer.program();
    for (LayerPhaseProgram* phase : {&program.forward, &program.recompute, &program.backward})
      pipeline_products(layer, *phase);
  }
  Finisher(writer).run();
  return std::move(writer.program());
}

}
