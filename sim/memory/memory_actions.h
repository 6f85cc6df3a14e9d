// The memory log of a step, buffer by buffer, in host order: the one place that knows how
// EventGraph::actions are written down.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "sim/base/error.h"
#include "sim/graph/event_graph.h"

namespace foreshard {

// The program slice that a layer's action replays.
inline const LayerPhaseProgram& phase_of(const LayerProgram& program, const MemoryAction& action) {
  switch (action.kind) {
    case MemoryAction::Kind::kForward: return program.forward;
    case MemoryAction::Kind::kRecompute: return program.recompute;
    case MemoryAction::Kind::kBackward: return program.backward;
    case MemoryAction::Kind::kFreeGradients: return program.free_gradients[action.segment];
    case MemoryAction::Kind::kFreeLastGradient: return program.free_last_gradient[action.segment];
    case MemoryAction::Kind::kAllocate:
    case MemoryAction::Kind::kFree:
    case MemoryAction::Kind::kStore:
    case MemoryAction::Kind::kKeep: break;
  }
  FORESHARD_CHECK(false, "not a layer's action");
  return program.forward;
}

// Whether the action replays some segments of its phase and not all of them.
inline bool is_segment(const MemoryAction& action) {
  const bool of_phase = action.kind == MemoryAction::Kind::kForward || action.kind == MemoryAction::Kind::kRecompute ||
                        action.kind == MemoryAction::Kind::kBackward;
  return of_phase && action.segment != MemoryAction::kWhole;
}

inline std::span<const std::int32_t> steps_of(const LayerPhaseProgram& phase, const MemoryAction& action) {
  if (!is_segment(action)) return phase.actions;
  const std::uint32_t begin = action.segment == 0 ? 0 : phase.segments[action.segment - 1U].actions_end;
  const std::size_t last = action.segment + action.segments - 1U;
  return {phase.actions.data() + begin, phase.segments[last].actions_end - begin};
}

// Of the phase's first product: the step that allocates what it makes (a tile where the product is made by tiles, which
// goes with it); cuBLAS' workspace of its thread is taken behind that. The number of steps: there is none.
inline std::size_t product_step(const LayerPhaseProgram& phase) {
  std::uint32_t kernel = 0, begin = 0;
  for (const LayerStep& step : phase.steps) {
    for (; kernel < step.kernels_end; ++kernel) {
      if (phase.kernels[kernel].kind != KernelKind::kGemm) continue;
      const auto allocates = [&](std::size_t a) {
        return phase.actions[a] > 0 && phase.actions[a] < LayerPhaseProgram::kStore;
      };
      std::size_t a = begin;
      while (a < step.actions_end && !allocates(a)) ++a;
      if (a == step.actions_end) return begin;
      for (std::size_t tile = a; tile < step.actions_end && allocates(tile); ++tile) {
        const auto behind = phase.actions.begin() + tile;
        const auto end = phase.actions.begin() + step.actions_end;
        if (std::find(behind, end, -phase.actions[tile]) != end) a = tile;
      }
      return a;
    }
    begin = step.actions_end;
  }
  return phase.actions.size();
}

inline MemorySwing swing_of(const LayerPhaseProgram& phase, const MemoryAction& action) {
  if (!is_segment(action)) return phase.swing;
  MemorySwing swing = phase.segments[action.segment].swing;
  for (std::size_t s = action.segment + 1U; s < action.segment + std::size_t{action.segments}; ++s) {
    swing.peak = std::max(swing.peak, swing.net + phase.segments[s].swing.peak);
    swing.net += phase.segments[s].swing.net;
  }
  return swing;
}

// The buffer of a slot: of the layer's own, or of what it joins.
inline std::int32_t slot_buffer(const EventGraph& graph, const LayerExecution& e, std::int32_t slot) {
  if (slot < LayerPhaseProgram::kWaiting) return e.first_buffer + slot;
  const LayerExecution& joined = graph.executions[at(e.joined)];
  return joined.first_buffer + slot - LayerPhaseProgram::kWaiting;
}

// The buffer that a freeing step of a layer's program names.
inline std::int32_t freed_buffer(const EventGraph& graph, const LayerExecution& e, std::int32_t step) {
  const std::int32_t slot = -step - 1;
  if (slot < LayerPhaseProgram::kEarlierGradient) return slot_buffer(graph, e, slot);
  const LayerExecution& earlier = graph.executions[at(e.earlier)];
  const auto parameter = at(slot - LayerPhaseProgram::kEarlierGradient);
  return earlier.first_buffer + graph.program(earlier).weight_gradients[parameter];
}

// What a buffer counts as once it is stored.
inline MemoryCategory stored_category(const EventGraph& graph, std::int32_t buffer) {
  const LayerExecution* e = graph.execution_of(buffer);
  if (e == nullptr) return MemoryCategory::kShardedGrad;
  return graph.program(*e).slots[at(buffer - e->first_buffer)].stored;
}

// Whether streams were recorded on any buffer that is freed: its block then comes back only with
// time (sim/memory/reserved.h).
inline bool records_streams(const EventGraph& graph) {
  return std::ranges::any_of(
      graph.actions, [](const MemoryAction& action) { return action.recorded() != 0; });
}

// Calls visitor.allocate(buffer id), visitor.free(buffer id) and visitor.store(buffer id, category), which says what
// the buffer counts as from now on, for one action of the graph. A visitor that has free_recorded(buffer id, streams)
// is told where streams were recorded, one that has backward() of every phase of a layer's backward, one with
// awaits_product(kind) of the first product.
void visit_action(const EventGraph& graph, const MemoryAction& action, auto& visitor) {
  switch (action.kind) {
    case MemoryAction::Kind::kAllocate: return visitor.allocate(action.target);
    case MemoryAction::Kind::kFree:
      if constexpr (requires { visitor.free_recorded(action.target, action.recorded()); }) {
        if (action.recorded() != 0) return visitor.free_recorded(action.target, action.recorded());
      }
      return visitor.free(action.target);
    case MemoryAction::Kind::kStore: return visitor.store(action.target, stored_category(graph, action.target));
    case MemoryAction::Kind::kKeep: return visitor.store(action.target, MemoryCategory::kAccumulatedGrad);
    default: break;
  }
  if constexpr (requires { visitor.backward(); }) {
    using Kind = MemoryAction::Kind;
    if (action.kind == Kind::kRecompute || action.kind == Kind::kBackward) visitor.backward();
  }
  const LayerExecution& e = graph.executions[at(action.target)];
  const LayerPhaseProgram& phase = phase_of(graph.program(e), action);
  const std::int32_t* product = nullptr;
  if constexpr (requires { visitor.awaits_product(action.kind); }) {
    if (visitor.awaits_product(action.kind)) product = phase.actions.data() + product_step(phase);
  }
  for (const std::int32_t& step : steps_of(phase, action)) {
    if (step >= LayerPhaseProgram::kStore) {
      const std::int32_t buffer = e.first_buffer + step - LayerPhaseProgram::kStore;
      visitor.store(buffer, stored_category(graph, buffer));
    } else if (step > 0) {
      visitor.allocate(slot_buffer(graph, e, step - 1));
    } else {
      visitor.free(freed_buffer(graph, e, step));
    }
    if constexpr (requires { visitor.product(action.kind); }) {
      if (&step == product) visitor.product(action.kind);
    }
  }
}

// All actions of the step's first `rows` rows, visitor.row(EventId) before those of each row.
// Persistent buffers are alive before and do not appear.
void for_each_action(const EventGraph& graph, auto& visitor, std::size_t rows) {
  for (std::size_t row = 0; row < rows; ++row) {
    visitor.row(static_cast<EventId>(row));
    const RowDetail& detail = graph.details[row];
    for (std::uint32_t a = detail.actions_begin; a < detail.actions_end; ++a)
      visit_action(graph, graph.actions[a], visitor);
  }
}
void for_each_action(const EventGraph& graph, auto& visitor) { for_each_action(graph, visitor, graph.rows.size()); }

}
