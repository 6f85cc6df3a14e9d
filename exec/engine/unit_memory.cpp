// Every buffer of EventGraph::persistent says whose it is and which (Buffer::role); slots, which
// units share, are named by rows.
#include "exec/engine/unit_memory.h"

#include <algorithm>

#include "sim/base/error.h"

namespace foreshard {

std::vector<std::vector<std::int32_t>> layers_of_units(const ModelSpec& model, const EventGraph& graph) {
  std::vector<std::vector<std::int32_t>> layers(graph.units.size());
  for (std::size_t l = 0; l < model.order.size(); ++l) {
    const std::int32_t unit = graph.executions[l].unit;
    if (unit >= 0) layers[static_cast<std::size_t>(unit)].push_back(static_cast<std::int32_t>(l));
  }
  return layers;
}

UnitSet::UnitSet(const ModelSpec& model, const Plan& plan, const EventGraph& graph, int shard_index, RankMemory& memory)
    : plan_(plan),
      memory_(memory),
      pinned_(memory),
      offloads_(plan.offload != Offload::kNone),
      gathers_(plan.mesh.shard > 1 || offloads_),
      offsets_(lay_out_arena(graph)),
      arena_(static_cast<std::size_t>(offsets_.size.count()), memory),
      host_arena_(static_cast<std::size_t>(offsets_.host_size.count()), pinned_) {
  for (const std::int32_t id : graph.persistent) persistent_.push_back(graph.buffer(id));
  const auto layers = layers_of_units(model, graph);
  units_.resize(graph.units.size());
  for (std::size_t u = 0; u < units_.size(); ++u) {
    UnitMemory& unit = units_[u];
    unit.name = graph.units[u].name;
    unit.layout = flatten(model, layers[u], plan);
    unit.shard = unit.layout.shard_numel;
    unit.first = unit.shard * shard_index;
    unit.counted = unit.shard;
    unit.cuts.resize(unit.layout.parameters.size());
    unit.values = FlatStorage(unit.padded(), scalar_type(plan.param_dtype), memory.device());
    unit.gradients = FlatStorage(unit.padded(), scalar_type(plan.reduce_dtype), memory.device());
    unit.written.assign(unit.layout.parameters.size(), false);
  }
  place_buffers();
  make_views(model);
}

std::byte* UnitSet::place(std::size_t number) const {
  const Arena& arena = persistent_[number].on_host ? host_arena_ : arena_;
  return arena.at(static_cast<std::size_t>(offsets_.offsets[number].count()));
}

std::vector<std::span<std::byte>> UnitSet::scratches() const {
  std::vector<std::span<std::byte>> list;
  for (std::size_t i = 0; i < persistent_.size(); ++i) {
    if (persistent_[i].role != BufferRole::kScratch) continue;
    list.emplace_back(place(i), static_cast<std::size_t>(persistent_[i].bytes.count()));
  }
  return list;
}

void UnitSet::place_buffers() {
  for (std::size_t i = 0; i < persistent_.size(); ++i) {
    const Buffer& buffer = persistent_[i];
    if (buffer.unit < 0) continue;  // slots: rows name them
    UnitMemory& unit = at(buffer.unit);
    std::byte* place = this->place(i);
    switch (buffer.role) {
      case BufferRole::kMaster: unit.master = place; break;
      case BufferRole::kShadow: unit.shadow = place; break;
      case BufferRole::kGradient: unit.gradient = reinterpret_cast<float*>(place); break;
      case BufferRole::kFirstMoment:
      case BufferRole::kSecondMoment:
        unit.moments.resize(2);
        unit.moments[buffer.role == BufferRole::kFirstMoment ? 0 : 1] = place;
        break;
      case BufferRole::kPostForward:  // rows name it
      case BufferRole::kScratch:
      case BufferRole::kUnitGradient:
      case BufferRole::kNone: break;
    }
  }
  for (UnitMemory& unit : units_) {
    FORESHARD_CHECK(unit.master != nullptr, "the graph has no memory for the shard of unit " + unit.name);
    if (unit.shadow == nullptr) unit.shadow = unit.master;
    if (!gathers_) unit.values.attach(unit.shadow);
  }
}

void UnitSet::make_views(const ModelSpec& model) {
  layers_.resize(model.order.size());
  const auto kind_of = [&](std::size_t layer) -> const LayerSpec& {
    return model.kinds[static_cast<std::size_t>(model.order[layer].kind)];
  };
  for (std::size_t l = 0; l < model.order.size(); ++l) layers_[l].resize(kind_of(l).parameters.size());
  const Parameter* table = nullptr;  // the embedding's, which a tied head uses again
  for (UnitMemory& unit : units_) {
    for (std::size_t p = 0; p < unit.layout.parameters.size(); ++p) {
      const FlatParameter& flat = unit.layout.parameters[p];
      const auto layer = static_cast<std::size_t>(flat.layer);
      const auto number = static_cast<std::size_t>(flat.parameter);
      const ParameterSpec& spec = kind_of(layer).parameters[number];
      layers_[layer][number] = {
          unit.values.view(flat.offset, spec.shape), unit.gradients.view(flat.offset, spec.shape), &unit.written[p]};
    }
  }
  for (std::size_t l = 0; l < model.order.size(); ++l)
    if (kind_of(l).role == LayerRole::kEmbedding) table = &layers_[l][0];
  for (std::size_t l = 0; l < model.order.size(); ++l) {
    for (std::size_t p = 0; p < layers_[l].size(); ++p)
      if (kind_of(l).parameters[p].tied) layers_[l][p] = *table;
  }
}

void UnitSet::set_cuts(const ModelSpec& whole, const ModelSpec& part, std::int64_t index) {
  for (UnitMemory& unit : units_) {
    for (std::size_t p = 0; p < unit.layout.parameters.size(); ++p) {
      const FlatParameter& flat = unit.layout.parameters[p];
      const auto kind = static_cast<std::size_t>(part.order[static_cast<std::size_t>(flat.layer)].kind);
      const auto number = static_cast<std::size_t>(flat.parameter);
      const std::vector<std::int64_t>& shape = whole.kinds[kind].parameters[number].shape;
      const std::vector<std::int64_t>& own = part.kinds[kind].parameters[number].shape;
      if (own == shape) continue;
      const std::int64_t dimension = own[0] != shape[0] ? 0 : 1;
      const auto d = static_cast<std::size_t>(dimension);
      unit.cuts[p] = cut_of(shape, dimension, shape[d] / own[d], index);
    }
    if (index == 0) continue;
    unit.counted = std::clamp<std::int64_t>(unit.layout.partial_offset - unit.first, 0, unit.shard);
  }
}

void UnitSet::begin_gradients(UnitMemory& unit, std::byte* memory, bool fill_with_nan) {
  unit.gradients.attach(memory);
  std::ranges::fill(unit.written, false);
  const auto size = static_cast<std::size_t>(size_of(plan_.reduce_dtype));
  if (fill_with_nan) memory_.fill(memory, 0xff, static_cast<std::size_t>(unit.padded()) * size);
  std::int64_t end = 0;
  const auto zero = [&](std::int64_t begin, std::int64_t until) {
    if (begin == until) return;
    memory_.fill(memory + static_cast<std::size_t>(begin) * size, 0, static_cast<std::size_t>(until - begin) * size);
  };
  for (const FlatParameter& parameter : unit.layout.parameters) {
    zero(end, parameter.offset);
    end = parameter.offset + parameter.numel;
  }
  zero(end, unit.padded());
}

}
