#include "sim/graph/axes/layer_part.h"

#include <algorithm>

#include "sim/base/integers.h"
#include "sim/base/lookup.h"
#include "sim/spec/checks/plan_check.h"

namespace foreshard {

LayerPart::LayerPart(const LayerSpec& layer, const Plan& plan)
    : source(layer),
      plan(plan),
      tp(plan.mesh.tp),
      sequence(plan.tensor_parallel.sequence),
      native(plan.runtime.kind == RuntimeKind::kNative),
      own_rows(plan.runtime.kind == RuntimeKind::kMegatron || (is_titan_3(plan) && plan.mesh.ep > 1)),
      by_plan(plan.mesh.tp > 1 && plan.runtime.kind == RuntimeKind::kFsdp2 &&
              plan.tensor_parallel.tables != TensorParallel::Tables::kCut),
      titan_3(is_titan_3(plan) && tp > 1),
      megatron(plan.runtime.kind == RuntimeKind::kMegatron),
      slices(static_cast<std::int16_t>(slices_of_rank(plan))),
      layer(layer),
      places(layer.tensors.size(), Placement::kWhole),
      known(layer.tensors.size(), false),
      gathered(layer.tensors.size(), kNone),
      shared_out(layer.tensors.size(), false) {
  this->layer.operations.clear();
  for (const Operation& op : layer.operations) experts = std::max(experts, op.groups);
}

void LayerPart::place(Index t, Placement placement) {
  if (known[at(t)]) return;
  known[at(t)] = true;
  places[at(t)] = placement;
  TensorSpec& spec = layer.tensors[at(t)];
  if (placement == Placement::kWhole || spec.per_token == 0) return;
  if (placement == Placement::kFeature && spec.per_token % tp != 0)
    spec.per_token = chunk_of(spec.per_token, tp, plan.mesh.tp_index(plan.rank()));
  else spec.split *= tp;
}

void LayerPart::place(const Indices& tensors, Placement placement) {
  for (Index t : tensors) place(t, placement);
}

Index LayerPart::add_tensor(TensorSpec spec, Placement placement) {
  layer.tensors.push_back(std::move(spec));
  places.push_back(placement);
  known.push_back(true);
  gathered.push_back(kNone);
  shared_out.push_back(false);
  return static_cast<Index>(layer.tensors.size() - 1);
}

Index LayerPart::add_like(TensorSpec spec, const char* suffix, Placement placement) {
  spec.name += suffix;
  return add_tensor(std::move(spec), placement);
}

Index LayerPart::add_like(Index t, const char* suffix, std::int64_t times) {
  TensorSpec spec = tensor(t);
  spec.per_token *= times;
  return add_like(std::move(spec), suffix, places[at(t)]);
}

TensorSpec LayerPart::whole(Index t) const {
  TensorSpec spec = layer.tensors[at(t)];
  if (places[at(t)] != Placement::kWhole && spec.per_token > 0) spec.split /= tp;
  return spec;
}

TensorSpec& LayerPart::tensor(Index t) { return layer.tensors[at(t)]; }
ParameterSpec& LayerPart::parameter(Index p) { return layer.parameters[at(p)]; }
void LayerPart::add(Operation op) {
  if (std::ranges::any_of(op.inputs, [&](Index t) { return shared_out[at(t)]; })) {
    for (Index t : op.outputs) shared_out[at(t)] = places[at(t)] == Placement::kWhole;
    for (Index p : op.parameters) parameter(p).partial |= parameter(p).shape == source.parameters[at(p)].shape;
  }
  layer.operations.push_back(std::move(op));
}

Operation& LayerPart::move(Index from, Index to, std::int8_t part) {
  Operation& op = layer.operations.emplace_back();
  op.name = layer.tensors[at(to)].name;
  op.function = Function::kCopy;
  op.inputs = {from};
  op.outputs = {to};
  op.part = part;
  return op;
}

bool LayerPart::gathers_in_fp8(const Operation& op) const {
  return tp > 1 && sequence && op.fp8 != Float8::kNone && op.fp8 != Float8::kRowwise && op.fp8 != Float8::kRowwiseGwHp;
}

Index LayerPart::gather(Index t, std::int8_t part, bool in_fp8) {
  if (gathered[at(t)] != kNone) return gathered[at(t)];
  Index all = t;
  if (tp > 1) {
    all = add_like(whole(t), " gathered", Placement::kWhole);
    Operation& op = move(t, all, part);
    const bool copies = !native && !megatron;
    op.collective = {.kind = CollectiveKind::kAllGather, .unpacks = copies, .waits = true, .in_fp8 = in_fp8};
    // A block's modules take their inputs apart themselves (PrepareModuleInput), and wait there.
    const bool waits = !copies || source.role == LayerRole::kBlock;
    op.collective_backward = {.kind = CollectiveKind::kReduceScatter, .packs = copies, .waits = waits};
  }
  if (slices > 1) all = view_of_slices(all, part);
  gathered[at(t)] = all;
  shared_out[at(all)] = titan_3;
  return all;
}

Slices& LayerPart::of_last() {
  sliced.resize(layer.operations.size());
  return sliced.back();
}

Index LayerPart::view_of_slices(Index t, std::int8_t part) {
  const Index each = add_like(t, " of each slice", slices);
  places[at(each)] = Placement::kWhole;
  Operation& op = move(t, each, part);
  op.view = true;
  of_last().columns = slices;
  return each;
}

bool LayerPart::is_gathered(Index t) const { return contains(gathered, t); }

Index LayerPart::own_input(Index t, std::int8_t part) {
  const Index same = add_like(whole(t), " of each rank", Placement::kWhole);
  Operation& op = move(t, same, part);
  op.view = true;
  op.collective_backward = {.kind = CollectiveKind::kAllReduce, .waits = true};
  shared_out[at(same)] = titan_3;
  if (titan_3) gathered[at(t)] = same;
  return same;
}

void LayerPart::reduce(Index result, std::int8_t part, bool has_returned, bool whole) {
  if (tp == 1) return place(result, Placement::kSequence);
  if (sums_later) return place(result, Placement::kWhole);
  const bool scatters = sequence && !whole;
  Operation& product = layer.operations.back();
  const Index partial = add_like(tensor(result), " (summand)", Placement::kWhole);
  std::ranges::replace(product.outputs, result, partial);
  const Indices released = has_returned ? Indices() : std::exchange(product.released, {});
  const bool in_fp8 = gathers_in_fp8(product);
  if (in_fp8) product.fp8_gradients = tp;
  place(result, scatters ? Placement::kSequence : Placement::kWhole);
  shared_out[at(result)] = false;
  Operation& op = move(partial, result, part);
  op.released = {partial};
  append(op.released, released);
  if (scatters) {
    // The engine's parts are rows of tokens, Megatron-Core's first dimension is positions:
    // neither needs copies.
    const bool by_rows = native || megatron;
    op.collective = {.kind = CollectiveKind::kReduceScatter, .packs = !by_rows, .waits = by_rows};
    op.collective_backward = {.kind = CollectiveKind::kAllGather,
        .unpacks = !by_rows,
        .waits = true,
        .in_fp8 = in_fp8,
        .finds_amax = in_fp8 && product.fp8 == Float8::kCurrent};
    op.kept_by_selective = !is_titan_3(plan);
  } else {
    op.collective = {.kind = CollectiveKind::kAllReduce, .waits = megatron};
  }
}

void read_instead(Operation& op, Index from, Index to) {
  for (Indices* list : {&op.inputs, &op.saved}) std::ranges::replace(*list, from, to);
}

void LayerPart::reduce_and_add(Index result, Index bias, std::int8_t part) {
  const Index sum = add_like(tensor(result), " without bias", Placement::kWhole);
  known[at(sum)] = false;
  Operation& product = layer.operations.back();
  std::ranges::replace(product.outputs, result, sum);
  Indices released = std::exchange(product.released, {});
  reduce(sum, part);
  place(result, places[at(sum)]);
  Operation& op = move(sum, result, part);
  op.function = Function::kAdd;
  op.gradient = GradientRule::kAlias;
  op.parameters = {bias};
  of_last().rows = slices;
  op.released = {sum};
  append(op.released, released);
  layer.parameters[at(bias)].partial = tp > 1;
}

}
