#include <algorithm>
#include <utility>

#include "sim/base/lookup.h"
#include "sim/graph/axes/layer_part.h"
#include "sim/spec/checks/plan_check.h"
#include "sim/spec/latent_attention.h"

namespace foreshard {

AttentionCutter::AttentionCutter(LayerPart& part) : part_(part), has_latents_(has_latents(part.source)) {}

void AttentionCutter::attend(Operation op) {
  const auto rotate = part_.plan.context_parallel.rotate;
  if (rotate == ContextParallel::Rotate::kUlysses) return attend_with_heads(std::move(op));
  const bool gathers = part_.megatron && rotate == ContextParallel::Rotate::kAllGather;
  if (gathers || part_.plan.attention == AttentionKernel::kFlex) return attend_to_all(std::move(op));
  part_.add(std::move(op));
  ring();
}

void AttentionCutter::rotate_own_positions(Operation& op) {
  if (op.backward_temporaries.empty()) return;
  TensorSpec& table = part_.tensor(op.backward_temporaries.front());
  table.per_token = std::exchange(table.per_position, 0);
  // Latent attention rotates queries and keys in calls of their own (0.3: in one).
  if (rotary_ == LayerPart::kNone || (has_latents_ && !is_titan_3(part_.plan))) {
    rotary_ = part_.add_tensor(table, Placement::kWhole);
    part_.tensor(rotary_).name = "rotary of own positions";
    // Of models with norms of heads or sinks: cosines and sines of each element, not of pairs (CosSinRoPE).
    const bool is_of_elements = std::ranges::any_of(part_.source.parameters,
        [](const ParameterSpec& p) { return contains(p.name, "sinks") || contains(p.name, "attn.q_norm"); });
    if (is_titan_3(part_.plan)) {
      if (is_of_elements) part_.tensor(rotary_).per_token *= 2;
      // Each layer has a table of all positions (models/common/decoder.py, rope.py).
      part_.layer.resident_bytes += checked_multiply(part_.plan.batch.sequence, 4 * part_.tensor(rotary_).per_token);
    }
    Operation& gather = part_.layer.operations.emplace_back();
    gather.name = "gather_positions";
    gather.function = Function::kGather;
    gather.outputs = {rotary_};
    gather.gradient = GradientRule::kNone;
  }
  op.inputs.push_back(rotary_);
  op.saved.push_back(rotary_);
}

void AttentionCutter::ring() {
  const Mesh& mesh = part_.plan.mesh;
  const ContextParallel& how = part_.plan.context_parallel;
  RingAttention ring{.ranks = mesh.cp,
      .rank = mesh.cp_index(part_.plan.rank()),
      .exchanges = how.rotate == ContextParallel::Rotate::kAllToAll,
      .balanced = how.balance == ContextParallel::Balance::kHeadTail,
      .narrow = part_.megatron};
  Operation& op = part_.layer.operations.back();
  op.ring = ring;
  // One head's result is in order whatever the order of dimensions; TransformerEngine merges in place.
  if (ring.halves(mesh.cp - 1) && op.attention.heads > 1 && !part_.megatron) put_in_order();
}

void AttentionCutter::put_in_order() {
  const Index made = part_.layer.operations.back().outputs.front();
  const Index copy = part_.add_like(made, " in order");
  part_.move(made, copy, part_.layer.operations.back().part).released = {made};
  part_.renamed = {made, copy};
}

void AttentionCutter::replace_read(Operation& op, Index from, Index to) {
  read_instead(op, from, to);
  if (contains(op.released, from)) op.released.push_back(to);
}

Index AttentionCutter::make_contiguous(Operation& op, std::size_t i) {
  const Index from = op.inputs[i];
  const Index copy = part_.add_like(from, " contiguous");
  part_.move(from, copy, op.part).gradient = GradientRule::kAlias;
  replace_read(op, from, copy);
  return copy;
}

void AttentionCutter::attend_to_all(Operation op) {
  const auto keys_and_values = {std::size_t{1}, std::size_t{2}};
  Indices copies;
  // As in the ring, those of one head are contiguous as they are.
  for (const std::size_t i : keys_and_values)
    if (!part_.megatron && op.attention.kv_heads > 1) copies.push_back(make_contiguous(op, i));
  for (const std::size_t i : keys_and_values) {
    const Index own = op.inputs[i];
    const Index all = part_.add_like(own, " of all ranks", part_.plan.mesh.cp);
    Operation& gather = part_.move(own, all, op.part);
    gather.collective = {.kind = CollectiveKind::kAllGather, .dim = MeshDim::kCp, .reorders = true, .waits = true};
    gather.collective_backward = {
        .kind = CollectiveKind::kReduceScatter, .dim = MeshDim::kCp, .packs = true, .waits = true};
    replace_read(op, own, all);
    if (part_.megatron) {  // TransformerEngine keeps the rank's own
      std::erase(op.saved, all);
      gather.saved = {own};
      op.gathers = gather.collective;
    }
  }
  part_.layer.operations.back().released = std::move(copies);
  // (_cp_custom_ops.py, flex_cp_allgather: one operator for both)
  part_.layer.operations.back().continues_node = !part_.megatron;
  op.attention.key_ranks = part_.plan.mesh.cp;
  part_.add(std::move(op));
  // TransformerEngine keeps the two halves that it put together.
  if (part_.megatron) put_in_order();
}

void AttentionCutter::attend_with_heads(Operation op) {
  const LayerCollective exchange{
      .kind = CollectiveKind::kAllToAll, .dim = MeshDim::kCp, .packs = true, .reorders = true, .waits = true};
  const std::int8_t part = op.part;
  const std::int64_t ranks = part_.plan.mesh.cp;
  const std::int64_t repeats = std::max<std::int64_t>(1, ranks / op.attention.kv_heads);
  const Index queries = op.inputs.front();
  for (Index own : Indices(op.inputs)) {
    if (own != queries && repeats > 1) {
      const Index all = part_.add_like(own, " repeated", repeats);
      part_.move(own, all, part);
      replace_read(op, own, all);
      own = all;
    }
    const Index heads = part_.add_like(own, " by heads");
    Operation& there = part_.move(own, heads, part);
    there.collective = there.collective_backward = exchange;
    replace_read(op, own, heads);
  }
  const Index result = op.outputs.front();
  const Index heads = part_.add_like(result, " by heads");
  for (Indices* list : {&op.outputs, &op.saved}) std::ranges::replace(*list, result, heads);
  op.attention.heads /= ranks;
  op.attention.kv_heads = op.attention.kv_heads * repeats / ranks;
  op.attention.query_ranks = op.attention.key_ranks = ranks;
  part_.add(std::move(op));
  Operation& back = part_.move(heads, result, part);
  back.collective = back.collective_backward = exchange;
}

}
