// What is told of every step (losses, the norm) costs nothing to look at; gradients and parameters are read only where
// that shows something, and before a checkpoint. Gradients are gone after the step: a CPU rank looks where it makes the
// norm, on a device the norm's row is the first one that tells.
#include <ATen/Functions.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "exec/engine/engine.h"
#include "exec/engine/update.h"
#include "exec/memory/flat_storage.h"

namespace foreshard {
namespace {

EventId first_row(const EventGraph& graph, EventKind kind, std::int64_t microbatch) {
  for (std::size_t id = 0; id < graph.rows.size(); ++id) {
    if (graph.rows[id].kind != kind) continue;
    if (microbatch < 0 || graph.details[id].microbatch == microbatch) return static_cast<EventId>(id);
  }
  return kNoEvent;
}

// By unit, the row that made its gradient what the optimizer reads.
std::vector<EventId> last_gradient_rows(const EventGraph& graph) {
  std::vector<EventId> rows(graph.units.size(), kNoEvent);
  for (std::size_t id = 0; id < graph.rows.size(); ++id) {
    const EventKind kind = graph.rows[id].kind;
    const std::int32_t unit = graph.details[id].unit;
    if (unit >= 0 && (kind == EventKind::kReduceScatter || kind == EventKind::kAccumulate ||
                         kind == EventKind::kAllReduce || kind == EventKind::kBackward))
      rows[at(unit)] = static_cast<EventId>(id);
  }
  return rows;
}

}

EventId Engine::find_not_finite(const StepResult& result) {
  for (std::size_t m = 0; m < result.losses.size(); ++m) {
    if (std::isfinite(result.losses[m])) continue;
    return first_row(graph_, EventKind::kLoss, static_cast<std::int64_t>(m));
  }
  if (std::isfinite(result.gradient_norm)) return kNoEvent;
  EventId first = first_row(graph_, EventKind::kGradNorm, -1);
  if (first == kNoEvent) first = first_row(graph_, EventKind::kHostOptimizer, -1);
  const std::vector<EventId> rows = last_gradient_rows(graph_);
  for (const std::int32_t unit : backend_->not_finite_units()) {
    const EventId made = rows[at(unit)];
    if (made != kNoEvent) first = std::min(first, made);
  }
  return first;
}

std::string Engine::find_not_finite_parameter() {
  backend_->sync();
  const c10::Device device = units_.states().device();
  static constexpr const char* kMoments[] = {" (exp_avg)", " (exp_avg_sq)"};
  for (const UnitMemory& unit : units_.all()) {
    for (std::size_t array = 0; array <= unit.moments.size(); ++array) {
      const bool is_master = array == 0;
      const DType dtype = is_master ? plan_.master_dtype : plan_.optimizer.state;
      std::byte* const data = is_master ? unit.master : unit.moments[array - 1];
      const at::Tensor values = tensor_over(data, unit.shard, scalar_type(dtype), device);
      const std::int64_t at = first_not_finite(values);
      if (at == unit.shard) continue;
      std::string name = unit.name;
      for (const ShardPiece& piece : pieces_of(unit))
        if (at >= piece.begin && at < piece.begin + piece.count) name = parameter_name(model_, *piece.parameter);
      return name + (is_master ? "" : kMoments[array - 1]);
    }
  }
  return "";
}

}
