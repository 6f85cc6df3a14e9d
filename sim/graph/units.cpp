// Which parameters are communicated together, and what that weighs with every parameter padded
// along dim 0.
//
// Layers are given to units in forward order; what has no unit of its own stays in the root, which
// comes first. Sizes are worked out once per kind of layer and summed per unit; units with equal
// sums share a UnitShape, so that their rows share their Works.
#include <algorithm>

#include "sim/base/error.h"
#include "sim/graph/step_builder.h"

namespace foreshard {

void StepBuilder::lower_units(const LayerPrograms& programs) {
  const auto layers = static_cast<std::int32_t>(model_.order.size());
  unit_of_layer_.assign(model_.order.size(), -1);
  program_of_layer_.assign(model_.order.size(), -1);
  recompute_of_layer_.assign(model_.order.size(), Recompute::kNone);

  // Which layers stay in the root unit.
  bool has_root = false;
  for (const LayerInstance& layer : model_.order) {
    const LayerSpec& spec = model_.kinds[static_cast<std::size_t>(layer.kind)];
    if (spec.parameters.empty()) continue;
    if (spec.role == LayerRole::kEmbedding)
      has_root |= plan_.units.embedding == UnitPlacement::kRoot;
    if (spec.role == LayerRole::kFinalNorm)
      has_root |= plan_.units.head != UnitPlacement::kWithNorm;
    if (spec.role == LayerRole::kHead) has_root |= plan_.units.head == UnitPlacement::kRoot;
  }
  graph_.units.reserve(model_.order.size());
  auto new_unit = [&](std::string name) {
    Unit& unit = graph_.units.emplace_back();
    unit.name = std::move(name);
    unit.shards = plan_.mesh.shard;
    return unit_count() - 1;
  };
  if (has_root) root_ = new_unit("root");

  std::int64_t block = 0;
  std::int32_t open_blocks = -1;  // unit that still takes blocks
  std::int32_t norm_unit = -1;
  for (std::int32_t l = 0; l < layers; ++l) {
    const LayerInstance& layer = model_.order[static_cast<std::size_t>(l)];
    const LayerSpec& spec = model_.kinds[static_cast<std::size_t>(layer.kind)];
    Recompute recompute = Recompute::kNone;
    std::int32_t unit = -1;
    switch (spec.role) {
      case LayerRole::kEmbedding:
        unit = plan_.units.embedding == UnitPlacement::kRoot ? root_ : new_unit("embedding");
        break;
      case LayerRole::kBlock: {
        recompute = plan_.recompute.at(block);
        if (block % plan_.units.layers_per_unit == 0) {
          open_blocks = new_unit(layer.name);
        } else if (const std::size_t dot = layer.name.rfind('.'); dot != std::string::npos) {
          std::string& name = graph_.units[static_cast<std::size_t>(open_blocks)].name;
          const std::size_t dash = name.find('-', dot);
          name = name.substr(0, dash) + "-" + layer.name.substr(dot + 1);
        }
        unit = open_blocks;
        ++block;
        break;
      }
      case LayerRole::kFinalNorm:
        unit = plan_.units.head == UnitPlacement::kWithNorm ? new_unit("norm+head") : root_;
        norm_unit = unit;
        break;
      case LayerRole::kHead:
        unit = plan_.units.head == UnitPlacement::kRoot       ? root_
               : plan_.units.head == UnitPlacement::kWithNorm ? norm_unit
                                                              : new_unit("head");
        break;
      case LayerRole::kLoss:
        break;
    }
    unit_of_layer_[static_cast<std::size_t>(l)] = unit;
    recompute_of_layer_[static_cast<std::size_t>(l)] = recompute;
    const auto& program = programs.at(layer.kind, recompute);
    auto it = std::find(graph_.programs.begin(), graph_.programs.end(), program);
    if (it == graph_.programs.end()) it = graph_.programs.insert(graph_.programs.end(), program);
    program_of_layer_[static_cast<std::size_t>(l)] =
        static_cast<std::int32_t>(it - graph_.programs.begin());
  }

  // Padded sizes per kind of layer, then summed per unit. Units with equal sums share a shape.
  const std::int64_t shards = plan_.mesh.shard;
  std::vector<UnitShape> of_kind(model_.kinds.size());
  for (std::size_t k = 0; k < model_.kinds.size(); ++k) {
    UnitShape& shape = of_kind[k];
    for (const ParameterSpec& parameter : model_.kinds[k].parameters) {
      if (parameter.tied) continue;
      const std::int64_t numel = parameter.numel();
      const std::int64_t rows = parameter.shape.front();
      const std::int64_t rest = numel / rows;
      const std::int64_t chunk = (rows + shards - 1) / shards;
      const std::int64_t padded = checked_multiply(chunk, rest);
      const std::int64_t local = std::min(chunk, rows) * rest;
      shape.numel = checked_add(shape.numel, numel);
      shape.shard_numel = checked_add(shape.shard_numel, padded);
      shape.local_numel += local;
      shape.unsharded += allocated_size(
          checked_multiply(checked_multiply(padded, shards), size_of(plan_.param_dtype)));
      shape.sharded += allocated_size(checked_multiply(padded, size_of(plan_.master_dtype)));
      shape.optimizer_state +=
          allocated_size(checked_multiply(local, size_of(plan_.optimizer.state)));
      shape.largest_parameter = std::max(
          shape.largest_parameter, allocated_size(padded * shards * size_of(plan_.param_dtype)));
      ++shape.parameters;
    }
  }
  // Layers by unit: units are in the order of their first layers but for the root, whose layers are
  // spread.
  first_layer_.assign(graph_.units.size() + 1, 0);
  unit_layers_.reserve(model_.order.size());
  for (std::int32_t u = 0, l = 0; u < unit_count(); ++u) {
    if (u == root_) {
      for (std::int32_t each = 0; each < layers; ++each) {
        if (unit_of_layer(each) == root_) unit_layers_.push_back(each);
      }
    } else {
      while (unit_of_layer(l) != u) ++l;
      for (; l < layers && unit_of_layer(l) == u; ++l) unit_layers_.push_back(l);
    }
    first_layer_[static_cast<std::size_t>(u) + 1] = static_cast<std::int32_t>(unit_layers_.size());
  }
  shape_of_unit_.reserve(graph_.units.size());
  for (std::int32_t u = 0; u < unit_count(); ++u) {
    Unit& unit = graph_.units[static_cast<std::size_t>(u)];
    UnitShape sum;
    for (std::int32_t l : layers_of(u)) {
      const UnitShape& s =
          of_kind[static_cast<std::size_t>(model_.order[static_cast<std::size_t>(l)].kind)];
      sum.numel = checked_add(sum.numel, s.numel);
      sum.shard_numel = checked_add(sum.shard_numel, s.shard_numel);
      sum.local_numel += s.local_numel;
      sum.unsharded += s.unsharded;
      sum.sharded += s.sharded;
      sum.optimizer_state += s.optimizer_state;
      sum.parameters += s.parameters;
      sum.largest_parameter = std::max(sum.largest_parameter, s.largest_parameter);
    }
    unit.reshard = plan_.reshard_after_forward.at(u);
    // PyTorch keeps the root unsharded unless told otherwise for it (reshard_after_forward=None):
    // its backward is next.
    const bool named = std::any_of(
        plan_.reshard_after_forward.ranges.begin(), plan_.reshard_after_forward.ranges.end(),
        [&](const auto& range) { return range.first <= u && u <= range.last; });
    if (u == root_ && !named) unit.reshard = {Reshard::Kind::kNever, 0};
    if (unit.reshard.kind == Reshard::Kind::kGroup) sum.reshard_group = unit.reshard.group;
    auto same = std::find(shapes_.begin(), shapes_.end(), sum);
    if (same == shapes_.end()) same = shapes_.insert(shapes_.end(), sum);
    shape_of_unit_.push_back(static_cast<std::int32_t>(same - shapes_.begin()));
    unit.parameters = sum.parameters;
    unit.numel = sum.numel;
    unit.shard_numel = sum.shard_numel;
  }
}

}  // namespace foreshard
