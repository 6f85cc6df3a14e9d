// A gather and the products that read it run chunk by chunk, the own chunk first; a product and its reduce-scatter, the
// own chunk last. Either pair takes as long as the longer of the two: here both begin together and what follows waits
// for both. A sum of several products is not taken apart, nor is a product behind anything but the gather
// (torch/_inductor/fx_passes/micro_pipeline_tp.py; Megatron-Core's tp_comm_overlap is the same with user buffers).
#include "sim/graph/layers/pipelined_products.h"

#include <algorithm>
#include <cstddef>

namespace foreshard {
namespace {

class Pipeline {
 public:
  Pipeline(const LayerSpec& layer, LayerPhaseProgram& phase) : layer_(layer), phase_(phase) {}

  void run() {
    for (LayerCall& call : phase_.calls) {
      if (call.collective.dim != MeshDim::kTp || call.collective.beside || call.launch == LayerCall::kOfLayerBefore)
        continue;
      const bool waits = call.kind == LayerCall::Kind::kWait;
      if (waits && call.collective.kind == CollectiveKind::kAllGather) wait_behind_products(call);
      const bool launches = call.kind == LayerCall::Kind::kLaunch;
      if (launches && call.collective.kind == CollectiveKind::kReduceScatter) launch_early(call);
    }
  }

 private:
  struct Place {
    std::uint32_t actions = 0, kernels = 0;
  };

  Place end_of(const LayerStep& step) const { return {step.actions_end, step.kernels_end}; }
  Place begin_of(std::size_t segment) const {
    if (segment == 0) return {};
    const LayerSegment& before = phase_.segments[segment - 1];
    return {before.actions_end, before.kernels_end};
  }
  const Operation* operation_of(const LayerStep& step) const {
    if (step.kind == LayerStep::Kind::kSum || step.operation < 0) return nullptr;
    return &layer_.operations[at(step.operation)];
  }
  bool is_product(const LayerStep& step) const {
    const Operation* op = operation_of(step);
    return op != nullptr && op->kind == OperationKind::kGemm && op->groups == 1;
  }
  bool is_move(const LayerStep& step) const {
    const Operation* op = operation_of(step);
    return op != nullptr && op->is_collective();
  }

  // The segment ends at `place`; the rest of it, and all that stands behind, moves up by one.
  void split(std::size_t segment, Place place) {
    LayerSegment first = phase_.segments[segment];
    first.host_waits = first.host_copies = false;
    first.actions_end = place.actions;
    first.kernels_end = place.kernels;
    phase_.segments.insert(phase_.segments.begin() + segment, first);
    const auto shift = [&](std::uint16_t& at) {
      if (at > segment) ++at;
    };
    for (LayerCall& call : phase_.calls) shift(call.segment);
    for (LayerHook& hook : phase_.hooks) shift(hook.segment);
  }

  void wait_behind_products(LayerCall& call) {
    const std::size_t segment = call.segment;
    const std::uint32_t from = begin_of(segment).kernels;
    const std::uint32_t to = phase_.segments[segment].kernels_end;
    const LayerStep* last = nullptr;
    for (const LayerStep& step : phase_.steps) {
      if (step.kernels_end <= from) continue;
      if (step.kernels_end > to || (!is_product(step) && (last != nullptr || !is_move(step)))) break;
      if (is_product(step)) last = &step;
    }
    if (last == nullptr) return;
    split(segment, end_of(*last));
    call.segment = static_cast<std::uint16_t>(segment + 1);
  }

  void launch_early(LayerCall& call) {
    if (call.segment == 0) return;
    // Neither the room for the result nor what stands behind it need have kernels of their own.
    std::size_t segment = call.segment - 1U;
    const std::uint32_t to = phase_.segments[segment].kernels_end;
    while (segment > 0 && begin_of(segment).kernels == to) --segment;
    const Place begin = begin_of(segment);
    const auto first = phase_.steps.begin();
    auto made = std::ranges::find_if(phase_.steps, [&](const LayerStep& step) { return step.kernels_end >= to; });
    if (made == phase_.steps.end()) return;
    while (made != first && is_move(*made)) --made;
    if (made->kernels_end <= begin.kernels || !is_product(*made)) return;
    const auto before = made - 1;
    const bool inside = made != first && before->kernels_end >= begin.kernels && before->actions_end >= begin.actions;
    split(segment, inside ? end_of(*before) : begin);
    call.segment = static_cast<std::uint16_t>(segment + 1);
  }

  const LayerSpec& layer_;
  LayerPhaseProgram& phase_;
};

}

void pipeline_products(const LayerSpec& layer, LayerPhaseProgram& phase) { Pipeline(layer, phase).run(); }

}
