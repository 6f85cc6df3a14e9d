// Which parameters are communicated together, and what that weighs with every parameter padded
// along the dimension it is sharded in.
//
// Layers are given to units in forward order; what has no unit of its own stays in the root, which
// comes first. A module inside a block that is a unit itself follows its block. Units of the same
// layers share a UnitShape, so that their rows share their Works.
#include <algorithm>
#include <numeric>
#include <utility>

#include "sim/graph/step_builder.h"
#include "sim/spec/checks/condition.h"
#include "sim/spec/checks/plan_check.h"

namespace foreshard {
namespace {

bool has_parameters(const LayerSpec& spec) { return !spec.parameters.empty(); }

// An embedding whose table of tokens is a module inside: what the layer adds to its rows stays in the root.
bool has_table_inside(const LayerSpec& spec) { return spec.role == LayerRole::kEmbedding && !spec.nested.empty(); }

// "layers.4" and "layers.7" -> "layers.4-7".
std::string joined(const std::string& first, const std::string& last) {
  const std::size_t dot = last.rfind('.');
  if (dot == std::string::npos) return first;
  return first.substr(0, first.find('-', first.rfind('.'))) + "-" + last.substr(dot + 1);
}

}

bool StepBuilder::is_trained(std::int32_t layer, const ParameterSpec& parameter) const {
  const LayerSpec& spec = spec_of(layer);
  if (spec.role == LayerRole::kLoss || !parameter.trainable) return false;
  // Freezing the embedding freezes the table of tokens, not what the layer adds to its rows.
  if (has_table_inside(spec) && parameter.part == 0) return true;
  return !is_frozen(plan_.frozen, spec, block_of(layer));
}

void StepBuilder::lower_units(const LayerPrograms& programs) {
  assign_layers(programs);
  size_units();
}

// What the walk over layers has opened.
struct StepBuilder::OpenUnits {
  std::int32_t block = 0;
  std::int32_t blocks = -1;  // unit that still takes blocks
  std::int32_t norm = -1;
  std::int32_t tied = -1;                                // of embedding, norm and head
  std::vector<std::pair<std::int32_t, Module>> owned{};  // by units, in forward order
};

std::int32_t StepBuilder::new_unit(std::string name) {
  graph_.units.push_back({.name = std::move(name), .shards = plan_.mesh.fsdp()});
  return unit_count() - 1;
}

void StepBuilder::assign_layers(const LayerPrograms& programs) {
  const auto layers = static_cast<std::int32_t>(model_.order.size());
  unit_of_layer_.assign(model_.order.size(), -1);
  first_nested_.assign(model_.order.size(), -1);
  block_of_layer_.assign(model_.order.size(), -1);
  std::array<std::int32_t, kPassKinds> none;
  none.fill(-1);
  programs_of_layer_.assign(model_.order.size(), none);
  recompute_of_layer_.assign(model_.order.size(), Recompute::kNone);
  graph_.units.reserve(model_.order.size());
  OpenUnits open;
  open.owned.reserve(model_.order.size());
  const bool has_root = std::ranges::any_of(model_.order, [&](const LayerInstance& layer) {
    const LayerSpec& spec = model_.kinds[at(layer.kind)];
    return has_parameters(spec) && (in_root(plan_.units, spec.role) || has_table_inside(spec));
  });
  if (has_root) root_ = new_unit("root");

  for (std::int32_t l = 0; l < layers; ++l) {
    const auto i = at(l);
    const LayerInstance& layer = model_.order[i];
    const LayerSpec& spec = model_.kinds[at(layer.kind)];
    open.block += layer.blocks_before;
    std::int32_t& unit = unit_of_layer_[i];
    if (layer.same_as >= 0) {
      const auto first = at(layer.same_as);
      unit = unit_of_layer_[first];
      first_nested_[i] = first_nested_[first];
      block_of_layer_[i] = block_of_layer_[first];
    } else if (spec.role == LayerRole::kBlock) {
      unit = unit_of_block(l, open);
    } else if (spec.role != LayerRole::kLoss) {
      unit = in_root(plan_.units, spec.role) ? root_ : unit_of_end(l, open);
    }
    if (block_of_layer_[i] >= 0) recompute_of_layer_[i] = plan_.recompute.at(block_of_layer_[i]);
    if (unit >= 0 && layer.same_as < 0) open.owned.push_back({unit, {l, 0}});
    assign_programs(l, programs);
  }
  list_units(open);
}

std::int32_t StepBuilder::unit_of_block(std::int32_t l, OpenUnits& open) {
  const auto i = at(l);
  const LayerInstance& layer = model_.order[i];
  const LayerSpec& spec = model_.kinds[at(layer.kind)];
  const std::int32_t block = block_of_layer_[i] = open.block++;
  std::int32_t unit = root_;
  if (!in_root(plan_.units, spec.role)) {
    if (block % plan_.units.layers_per_unit == 0) {
      open.blocks = new_unit(layer.name);
    } else {
      std::string& name = graph_.units[at(open.blocks)].name;
      name = joined(name, layer.name);
    }
    unit = open.blocks;
  }
  if (splits_block(plan_.units, block)) {
    for (std::size_t n = 0; n < spec.nested.size(); ++n) {
      const std::int32_t nested = new_unit(layer.name + "." + spec.nested[n]);
      if (n == 0) first_nested_[i] = nested;
      open.owned.push_back({nested, {l, static_cast<std::int8_t>(n + 1)}});
    }
  }
  return unit;
}

// Of an embedding, a last norm or a head outside of the root.
std::int32_t StepBuilder::unit_of_end(std::int32_t l, OpenUnits& open) {
  const LayerInstance& layer = model_.order[at(l)];
  const LayerSpec& spec = model_.kinds[at(layer.kind)];
  const UnitPlacement head = plan_.units.head;
  const bool tied = plan_.units.embedding == UnitPlacement::kWithHead;
  if (spec.role != LayerRole::kEmbedding) {
    if (tied) return open.tied;
    if (spec.role == LayerRole::kFinalNorm)
      return open.norm = new_unit(head == UnitPlacement::kNorm ? "norm" : "norm+head");
    return head == UnitPlacement::kWithNorm ? open.norm : new_unit("head");
  }
  const char* const tied_name = head == UnitPlacement::kWithNorm ? "embedding+norm+head" : "embedding+head";
  const std::int32_t unit = new_unit(spec.tower ? layer.name : tied ? tied_name : "embedding");
  if (tied && !spec.tower) open.tied = unit;
  if (!has_table_inside(spec)) return unit;
  first_nested_[at(l)] = unit;
  for (std::size_t n = 0; n < spec.nested.size(); ++n)
    open.owned.push_back({n == 0 ? unit : new_unit(spec.nested[n]), {l, static_cast<std::int8_t>(n + 1)}});
  return root_;
}

void StepBuilder::assign_programs(std::int32_t l, const LayerPrograms& programs) {
  const auto use = [&](PassKind kind, const std::shared_ptr<const LayerProgram>& program) {
    if (program == nullptr) return;
    auto it = std::ranges::find(graph_.programs, program);
    if (it == graph_.programs.end()) it = graph_.programs.insert(graph_.programs.end(), program);
    programs_of_layer_[at(l)][at(kind)] = static_cast<std::int32_t>(it - graph_.programs.begin());
  };
  const Recompute recompute = recompute_of_layer_[at(l)];
  use(PassKind::kFirst, programs.at(l, recompute));
  if (plan_.batch.accumulation > 1) {
    use(PassKind::kLater, programs.at(l, recompute, StepMicroBatch::kLater));
    use(PassKind::kLast, programs.at(l, recompute, StepMicroBatch::kLastOfSeveral));
  }
  use(PassKind::kSplit, programs.at(l, recompute, StepMicroBatch::kSplit));
  use(PassKind::kSplitLater, programs.at(l, recompute, StepMicroBatch::kSplitLater));
  use(PassKind::kEvaluation, programs.evaluation(l));
}

// modules_of() and layers_of() of all units, one after the other.
void StepBuilder::list_units(const OpenUnits& open) {
  const auto sum_up = [](std::vector<std::int32_t>& first) {
    std::partial_sum(first.begin(), first.end(), first.begin());
  };
  first_module_.assign(graph_.units.size() + 1, 0);
  for (const auto& [unit, module] : open.owned) ++first_module_[at(unit) + 1];
  sum_up(first_module_);
  modules_.resize(open.owned.size());
  std::vector<std::int32_t> place(first_module_.begin(), first_module_.end() - 1);
  for (const auto& [unit, module] : open.owned) modules_[at(place[at(unit)]++)] = module;

  const auto for_each_layer = [&](const auto& visit) {
    for (std::int32_t l = 0; l < static_cast<std::int32_t>(model_.order.size()); ++l)
      if (unit_of_layer(l) >= 0 && model_.order[at(l)].same_as < 0) visit(l, at(unit_of_layer(l)));
  };
  first_layer_.assign(graph_.units.size() + 1, 0);
  for_each_layer([&](std::int32_t, std::size_t unit) { ++first_layer_[unit + 1]; });
  sum_up(first_layer_);
  unit_layers_.assign(at(first_layer_.back()), 0);
  place.assign(first_layer_.begin(), first_layer_.end() - 1);
  for_each_layer([&](std::int32_t l, std::size_t unit) { unit_layers_[at(place[unit]++)] = l; });
}

std::int32_t StepBuilder::add_part_list(std::vector<Bytes> sizes) {
  Bytes sum = sum_of<Bytes>(sizes, std::identity());
  graph_.parts.push_back(std::move(sizes));
  part_sums_.push_back(sum);
  return static_cast<std::int32_t>(graph_.parts.size()) - 1;
}

bool StepBuilder::is_in(const ParameterSpec& parameter, const Module& module) const {
  const bool split = first_nested_[at(module.layer)] >= 0;
  return !split || parameter.part == module.part;
}

// An ignored parameter is whole on every rank. Experts in one tensor that are fewer than the shards are cut along the
// next dimension (torchtitan's shard_placement_fn for experts; along the first one most ranks would hold padding only).
UnitParameter StepBuilder::sharded(std::int32_t layer, const ParameterSpec& parameter) const {
  UnitParameter p;
  const Mesh& mesh = plan_.mesh;
  const bool over_experts = is_over_experts(parameter);
  const std::int64_t shards = is_ignored(parameter) ? 1 : over_experts ? mesh.efsdp() : mesh.fsdp();
  const std::int64_t index = over_experts ? mesh.efsdp_index(plan_.rank()) : mesh.shard_index(plan_.rank());
  const std::int64_t rank = shards == 1 ? 0 : index;
  p.numel = parameter.numel();
  p.shard_dim = shard_dim_of(parameter, plan_.units.shard_dim, shards);
  p.stored_size = size_of(parameter.stored_as_computed ? plan_.param_dtype : plan_.master_dtype);
  p.gathered_size = parameter.gathered_in_fp8 ? 1 : size_of(plan_.param_dtype);
  p.casts =
      p.stored_size != p.gathered_size || (!parameter.stored_as_computed && plan_.param_dtype != plan_.master_dtype);
  const std::int64_t rows = parameter.shape[at(p.shard_dim)];
  const std::int64_t rest = p.numel / rows;
  const std::int64_t chunk = (rows + shards - 1) / shards;
  p.shard_numel = checked_multiply(chunk, rest);
  p.local_numel = std::clamp<std::int64_t>(rows - rank * chunk, 0, chunk) * rest;
  p.trainable = is_trained(layer, parameter);
  // Tied after it was sharded, the table of the head is gone from the list that the optimizer gets;
  // where stacks look the table up in modules of their own, theirs is.
  const LayerSpec& spec = spec_of(layer);
  const bool is_theirs = parts_tied(plan_.units) && stacks_share_table(model_);
  const bool is_table = spec.role == LayerRole::kEmbedding && parameter.name == spec.parameters.front().name &&
                        std::ranges::count(model_.order, layer, &LayerInstance::same_as) > 0;
  const bool is_head = spec.role == LayerRole::kHead && !spec.tower && parameter.shape.size() > 1;
  p.stepped = !(is_theirs ? is_table : is_head) || !model_.tied_embeddings || parameter.tied;
  // torchtitan 0.3 makes it the table again before fully_shard first looks: one storage, gathered for both.
  p.shares_storage = is_head && !p.stepped && plan_.step_frame != StepFrame::kPlain &&
                     plan_.units.embedding == UnitPlacement::kWithHead;
  if (p.shares_storage) p.stored_size = 0;
  p.replicated = parameter.replicated;
  p.partial = parameter.partial;
  p.gradient_numel = parameter.gradient_numel;
  return p;
}

UnitShape StepBuilder::shape_of(std::int32_t unit, Gradients which) {
  UnitShape shape = {.shards = plan_.mesh.fsdp()};
  for (const Module& owned : modules_of(unit)) {
    for (const ParameterSpec& parameter : spec_of(owned.layer).parameters) {
      if (parameter.tied || !is_in(parameter, owned) || is_ignored(parameter)) continue;
      UnitParameter p = sharded(owned.layer, parameter);
      p.trainable = p.trainable && counts(which, owned.layer);
      if (is_over_experts(parameter)) {
        shape.sharded_over = MeshDim::kEfsdp;
        shape.shards = plan_.mesh.efsdp();
      }
      if (p.trainable && (p.partial || p.gradient_numel > 0)) shape.makes_whole_gradients = true;
      shape.numel = checked_add(shape.numel, p.numel);
      shape.shard_numel = checked_add(shape.shard_numel, p.shard_numel);
      shape.shard_bytes = checked_add(shape.shard_bytes, p.shard_numel * p.stored_size);
      shape.gather_bytes = checked_add(shape.gather_bytes, p.shard_numel * p.gathered_size);
      if (p.casts) shape.cast_bytes += p.shard_numel * (p.stored_size + p.gathered_size);
      if (parameter.gathered_in_fp8) shape.fp8_shard_numel += p.shard_numel;
      if (p.shard_dim > 0) shape.cut_numel += p.numel;
      if (p.trainable) {
        shape.trained_numel += p.numel;
        shape.trained_shard_numel += p.shard_numel;
        shape.trained_local_numel += p.local_numel;
        if (!p.stepped && !p.shares_storage) {
          ++shape.unstepped;
          shape.unstepped_local_numel += p.local_numel;
        }
        if (p.shard_dim > 0) shape.trained_cut_numel += p.numel;
        ++shape.trained;
      }
      ++shape.parameters;
      shape.list.push_back(p);
    }
  }
  return shape;
}

// Units of equal layers are of equal shape; what tells layers apart is their kind, the part and
// whether they are trained.
bool StepBuilder::are_alike(std::int32_t unit, std::int32_t other) const {
  const auto is_frozen_block = [&](const Module& module) {
    return block_of(module.layer) >= 0 && plan_.frozen.blocks.at(block_of(module.layer));
  };
  const auto same = [&](const Module& a, const Module& b) {
    return model_.order[at(a.layer)].kind == model_.order[at(b.layer)].kind && a.part == b.part &&
           is_frozen_block(a) == is_frozen_block(b);
  };
  const std::span<const Module> a = modules_of(unit);
  const std::span<const Module> b = modules_of(other);
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), same);
}

void StepBuilder::size_units() {
  const auto dense_numel = [this](std::int32_t unit) {
    std::int64_t numel = 0;
    for (const Module& owned : modules_of(unit)) {
      for (const ParameterSpec& p : spec_of(owned.layer).parameters) {
        if (p.tied || !is_in(p, owned) || is_ignored(p) || is_over_experts(p)) continue;
        numel += sharded(owned.layer, p).numel;
      }
    }
    return numel;
  };
  // By shape: the unit that it was made for, and what its ranks share.
  std::vector<std::int32_t> first_of_shape;
  std::vector<std::int64_t> dense_of_shape;
  shape_of_unit_.reserve(graph_.units.size());
  for (std::int32_t u = 0; u < unit_count(); ++u) {
    Unit& unit = graph_.units[at(u)];
    unit.reshard = plan_.reshard_after_forward.at(u);
    // PyTorch keeps the root unsharded unless told otherwise for it (reshard_after_forward=None): its backward is next.
    const bool named = std::ranges::any_of(
        plan_.reshard_after_forward.ranges, [&](const auto& range) { return range.first <= u && u <= range.last; });
    if (u == root_ && !named) unit.reshard = {Reshard::Kind::kNever, 0};
    const std::int64_t group = unit.reshard.kind == Reshard::Kind::kGroup ? unit.reshard.group : 0;
    std::int32_t index = -1;
    for (std::size_t s = 0; s < shapes_.size() && index < 0; ++s)
      if (shapes_[s].reshard_group == group && are_alike(first_of_shape[s], u)) index = static_cast<std::int32_t>(s);
    if (index < 0) {
      UnitShape shape = shape_of(u);
      shape.reshard_group = group;
      std::vector<Bytes> unsharded, sharded, state;
      for (const UnitParameter& p : shape.list) {
        const std::int64_t padded = checked_multiply(p.shard_numel, shape.shards);
        unsharded.push_back(allocated_size(checked_multiply(padded, p.gathered_size)));
        sharded.push_back(allocated_size(checked_multiply(p.shard_numel, p.stored_size)));
        state.push_back(p.trainable && p.stepped
                            ? allocated_size(checked_multiply(p.local_numel, size_of(plan_.optimizer.state)))
                            : Bytes());
      }
      shape.unsharded_parts = add_part_list(std::move(unsharded));
      shape.sharded_parts = add_part_list(std::move(sharded));
      shape.state_parts = add_part_list(std::move(state));
      index = static_cast<std::int32_t>(shapes_.size());
      dense_of_shape.push_back(shape.sharded_over == MeshDim::kEfsdp ? dense_numel(u) : 0);
      shapes_.push_back(std::move(shape));
      first_of_shape.push_back(u);
    }
    shape_of_unit_.push_back(index);
    const UnitShape& shape = shapes_[at(index)];
    unit.parameters = shape.parameters;
    unit.numel = shape.numel;
    unit.shard_numel = shape.shard_numel;
    unit.shards = shape.shards;
    // Of a unit with experts, which other ranks have as many of, in it besides.
    const std::int64_t dense = dense_of_shape[at(index)];
    if (dense == 0) continue;
    unit.shards = plan_.mesh.fsdp();
    unit.numel = dense + (shape.numel - dense) * unit.shards / shape.shards;
  }
  if (plan_.loss.kind == Loss::Kind::kChunkedHead) size_reductions();
}

// A head that is run by itself is reduced by itself.
void StepBuilder::size_reductions() {
  const auto layers = static_cast<std::int32_t>(model_.order.size());
  for (std::int32_t l = 0; l < layers; ++l)
    if (spec_of(l).role == LayerRole::kHead) chunked_head_ = l;
  if (chunked_head_ < 0 || unit_of_layer(chunked_head_) < 0) return;
  const std::int32_t u = unit_of_layer(chunked_head_);
  if (modules_of(u).size() < 2) return;
  chunked_unit_ = u;
  whole_shape_ = shape_of_unit_[at(u)];
  for (const Gradients which : {Gradients::kOfHead, Gradients::kOfRest}) {
    UnitShape part = shape_of(u, which);
    part.reshard_group = shape(u).reshard_group;
    part.unsharded_parts = shape(u).unsharded_parts;
    part.sharded_parts = shape(u).sharded_parts;
    part.state_parts = shape(u).state_parts;
    shapes_.push_back(std::move(part));
  }
}

// In the unit that a head in chunks shares with others.
void StepBuilder::take_gradients(Gradients which) {
  if (chunked_unit_ < 0) return;
  gradients_ = which;
  const auto last = static_cast<std::int32_t>(shapes_.size()) - 1;
  shape_of_unit_[at(chunked_unit_)] = which == Gradients::kOfAll    ? whole_shape_
                                      : which == Gradients::kOfHead ? last - 1
                                                                    : last;
}

}
