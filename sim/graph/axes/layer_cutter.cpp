// Walks the operations in order. Tensors keep their numbers; what a gather or a reduction adds gets
// new ones, and later operations read those.
#include "sim/graph/axes/layer_cutter.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "sim/base/error.h"
#include "sim/graph/axes/cut_loss.h"

namespace foreshard {
namespace {

using Index = std::int16_t;
using Indices = std::vector<Index>;

std::size_t at(Index i) { return static_cast<std::size_t>(i); }

class Cutter {
 public:
  Cutter(const LayerSpec& layer, const Plan& plan, Placement input)
      : old_(layer),
        plan_(plan),
        tp_(plan.mesh.tp),
        sequence_(plan.tensor_parallel.sequence),
        layer_(layer),
        placement_(layer.tensors.size(), Placement::kWhole),
        known_(layer.tensors.size(), false),
        gathered_(layer.tensors.size(), kNone) {
    layer_.operations.clear();
    place(0, layer.role == LayerRole::kEmbedding ? Placement::kWhole : input);
  }

  CutLayer run() {
    for (const Operation& op : old_.operations) cut(op);
    Placement output = placement_[at(layer_.output)];
    if (old_.role == LayerRole::kHead && output == Placement::kFeature &&
        !plan_.tensor_parallel.loss) {
      gather_logits();
      output = Placement::kWhole;
    }
    return {std::move(layer_), output};
  }

 private:
  static constexpr Index kNone = -1;

  // --- tensors ---

  void place(Index t, Placement placement) {
    if (known_[at(t)]) return;
    known_[at(t)] = true;
    placement_[at(t)] = placement;
    TensorSpec& spec = layer_.tensors[at(t)];
    if (placement != Placement::kWhole && spec.per_token > 0) spec.split *= tp_;
  }
  void place(const Indices& tensors, Placement placement) {
    for (Index t : tensors) place(t, placement);
  }
  Index add_tensor(TensorSpec spec, Placement placement) {
    layer_.tensors.push_back(std::move(spec));
    placement_.push_back(placement);
    known_.push_back(true);
    gathered_.push_back(kNone);
    return static_cast<Index>(layer_.tensors.size() - 1);
  }
  TensorSpec whole(Index t, const char* suffix) const {
    TensorSpec spec = layer_.tensors[at(t)];
    if (placement_[at(t)] != Placement::kWhole && spec.per_token > 0) spec.split /= tp_;
    spec.name += suffix;
    return spec;
  }

  // --- collectives ---

  Operation& move(Index from, Index to, std::int8_t part) {
    Operation& op = layer_.operations.emplace_back();
    op.name = layer_.tensors[at(to)].name;
    op.function = Function::kCopy;
    op.inputs = {from};
    op.outputs = {to};
    op.part = part;
    return op;
  }

  // All positions of a sequence-parallel tensor, where a module that multiplies begins.
  Index gather(Index t, std::int8_t part) {
    if (gathered_[at(t)] != kNone) return gathered_[at(t)];
    const Index all = add_tensor(whole(t, " gathered"), Placement::kWhole);
    gathered_[at(t)] = all;
    Operation& op = move(t, all, part);
    op.collective = {.kind = CollectiveKind::kAllGather, .unpacks = true, .waits = true};
    // A block's modules take their inputs apart themselves (PrepareModuleInput), and wait there.
    const bool waits = old_.role == LayerRole::kBlock;
    op.collective_backward = {
        .kind = CollectiveKind::kReduceScatter, .packs = true, .waits = waits};
    return all;
  }

  // Without sequence parallel the gradient of a product's input is summed over the ranks.
  Index own_input(Index t, std::int8_t part) {
    const Index same = add_tensor(whole(t, " of each rank"), Placement::kWhole);
    Operation& op = move(t, same, part);
    op.view = true;
    op.collective_backward = {.kind = CollectiveKind::kAllReduce, .waits = true};
    return same;
  }

  // The last operation's output, of which each rank has a summand, becomes `result`.
  void reduce(Index result, std::int8_t part) {
    Operation& product = layer_.operations.back();
    const Index partial = add_tensor(layer_.tensors[at(result)], Placement::kWhole);
    layer_.tensors[at(partial)].name += " (summand)";
    std::replace(product.outputs.begin(), product.outputs.end(), result, partial);
    Indices released = std::exchange(product.released, {});
    place(result, sequence_ ? Placement::kSequence : Placement::kWhole);
    Operation& op = move(partial, result, part);
    op.released = {partial};
    op.released.insert(op.released.end(), released.begin(), released.end());
    if (sequence_) {
      op.collective = {.kind = CollectiveKind::kReduceScatter, .packs = true};
      op.collective_backward = {.kind = CollectiveKind::kAllGather, .unpacks = true, .waits = true};
      op.kept_by_selective = true;
    } else {
      op.collective = {.kind = CollectiveKind::kAllReduce};
    }
  }

  // Every rank's part of the vocabulary, padded to the first one's.
  void gather_logits() {
    const std::int64_t all = old_.tensors[at(old_.output)].per_token;
    const std::int64_t widest = chunk_of(all, tp_, 0);
    const auto logits = [&](const char* suffix, std::int64_t width) {
      TensorSpec spec = layer_.tensors[at(old_.output)];
      spec.per_token = width;
      spec.name += suffix;
      return add_tensor(std::move(spec), Placement::kWhole);
    };
    Index cut = layer_.output;
    if (layer_.tensors[at(cut)].per_token < widest) {
      const Index padded = logits(" padded", widest);
      move(cut, padded, 0);
      cut = padded;
    }
    Index whole = logits(" gathered", widest * tp_);
    Operation& op = move(cut, whole, 0);
    op.collective = {.kind = CollectiveKind::kAllGather, .reorders = true, .waits = true};
    if (widest * tp_ > all) {
      const Index narrowed = logits(" of all", all);
      move(whole, narrowed, 0).view = true;
      whole = narrowed;
    }
    layer_.output = whole;
  }

  // --- operations ---

  void cut(const Operation& old) {
    Operation op = old;
    for (Indices* list : {&op.inputs, &op.saved}) {
      std::replace(list->begin(), list->end(), renamed_.first, renamed_.second);
    }
    if (std::find(op.released.begin(), op.released.end(), renamed_.first) != op.released.end()) {
      op.released.push_back(renamed_.second);
    }
    for (Indices* list : {&op.inputs, &op.saved}) {
      for (Index& t : *list) {
        if (gathered_[at(t)] != kNone && reads_whole(op)) t = gathered_[at(t)];
      }
    }
    add_gathered_names(op);
    switch (op.kind) {
      case OperationKind::kGemm:
        return cut_product(std::move(op));
      case OperationKind::kEmbedding:
        return cut_lookup(std::move(op));
      default:
        return cut_other(std::move(op));
    }
  }

  static bool reads_whole(const Operation& op) { return op.kind == OperationKind::kGemm; }

  // The name of a gathered input ends with that of what was gathered.
  void add_gathered_names(Operation& op) const {
    Indices names;
    for (Index t : op.released) {
      if (gathered_[at(t)] != kNone) names.push_back(gathered_[at(t)]);
      names.push_back(t);
    }
    op.released = std::move(names);
  }

  void cut_product(Operation op) {
    const Index read = op.inputs.front();
    const Index result = op.outputs.front();
    const ParameterSpec& old_weight = old_.parameters[at(op.parameters.front())];
    FORESHARD_CHECK(old_weight.shape.size() == 2, "a stack of weights is not cut here");
    ParameterSpec& weight = layer_.parameters[at(op.parameters.front())];
    if (tp_ == 1) {
      layer_.operations.push_back(std::move(op));
      return;
    }
    if (placement_[at(read)] == Placement::kFeature) {  // by rows of the input
      op.k /= tp_;
      weight.shape[op.transposed_weight ? 0 : 1] /= tp_;
      const std::int8_t part = op.part;
      layer_.operations.push_back(std::move(op));
      return reduce(result, part);
    }
    Index input = read;
    if (placement_[at(read)] == Placement::kSequence) {
      input = gather(read, op.part);
    } else if (!sequence_) {
      input = own_input(read, op.part);
    }
    for (Indices* list : {&op.inputs, &op.saved})
      std::replace(list->begin(), list->end(), read, input);
    const std::size_t rows = op.transposed_weight ? 1 : 0;
    const std::int64_t columns = chunk_of(op.n, tp_, plan_.mesh.tp_index(plan_.rank));
    op.n = columns;
    weight.shape[rows] = columns;
    for (std::size_t i = 1; i < op.parameters.size(); ++i) {
      layer_.parameters[at(op.parameters[i])].shape[0] = columns;
    }
    known_[at(result)] = true;
    placement_[at(result)] = Placement::kFeature;
    layer_.tensors[at(result)].per_token = columns;
    layer_.operations.push_back(std::move(op));
  }

  // A masked lookup in a part of the vocabulary; the gradient is made for all of it.
  void cut_lookup(Operation op) {
    if (tp_ == 1) {
      layer_.operations.push_back(std::move(op));
      return;
    }
    const Index result = op.outputs.front();
    ParameterSpec& table = layer_.parameters[at(op.parameters.front())];
    table.gradient_numel = table.numel();
    table.shape[0] = chunk_of(table.shape[0], tp_, plan_.mesh.tp_index(plan_.rank));
    const std::int8_t part = op.part;
    layer_.operations.push_back(std::move(op));
    reduce(result, part);
  }

  // The rank's own positions: their part of the rotary table is gathered once and kept.
  void rotate_own_positions(Operation& op) {
    if (op.backward_temporaries.empty()) return;
    TensorSpec& table = layer_.tensors[at(op.backward_temporaries.front())];
    table.per_token = std::exchange(table.per_position, 0);
    if (rotary_ == kNone) {
      TensorSpec own = table;
      own.name = "rotary of own positions";
      rotary_ = add_tensor(std::move(own), Placement::kWhole);
      Operation& gather = layer_.operations.emplace_back();
      gather.name = "gather_positions";
      gather.function = Function::kGather;
      gather.outputs = {rotary_};
      gather.gradient = GradientRule::kNone;
    }
    op.inputs.push_back(rotary_);
    op.saved.push_back(rotary_);
  }

  // Keys and values of the other ranks of cp come round. What a step with a part of the queries
  // leaves is merged in another order of dimensions and copied back.
  void ring(const Operation& op) {
    const Mesh& mesh = plan_.mesh;
    const ContextParallel& how = plan_.context_parallel;
    RingAttention ring{.ranks = mesh.cp,
                       .rank = mesh.cp_index(plan_.rank),
                       .exchanges = how.rotate == ContextParallel::Rotate::kAllToAll,
                       .balanced = how.balance == ContextParallel::Balance::kHeadTail};
    layer_.operations.back().ring = ring;
    if (!ring.halves(mesh.cp - 1)) return;
    const Index made = op.outputs.front();
    TensorSpec spec = layer_.tensors[at(made)];
    spec.name += " in order";
    const Index copy = add_tensor(std::move(spec), placement_[at(made)]);
    move(made, copy, op.part);
    renamed_ = {made, copy};
  }

  void cut_other(Operation op) {
    if (plan_.mesh.cp > 1 && op.function == Function::kRotary) rotate_own_positions(op);
    Placement placement = Placement::kWhole;
    for (Index t : op.inputs) {
      if (placement_[at(t)] != Placement::kWhole) placement = placement_[at(t)];
    }
    for (Indices* list : {&op.outputs, &op.saved, &op.backward_temporaries, &op.forward_workspace,
                          &op.backward_workspace}) {
      place(*list, placement);
    }
    if (placement == Placement::kFeature) {
      op.attention.heads /= tp_;
      op.attention.kv_heads /= tp_;
    }
    if (tp_ > 1 && op.kind == OperationKind::kNorm && placement != Placement::kWhole) {
      for (Index p : op.parameters) layer_.parameters[at(p)].partial = true;
    }
    const bool attends = op.kind == OperationKind::kAttention && plan_.mesh.cp > 1;
    layer_.operations.push_back(std::move(op));
    if (attends) ring(Operation(layer_.operations.back()));
  }

  const LayerSpec& old_;
  const Plan& plan_;
  const std::int64_t tp_;
  const bool sequence_;
  LayerSpec layer_;
  std::vector<Placement> placement_;  // of tensors
  std::vector<bool> known_;
  Indices gathered_;  // tensors: what is read of them by products
  Index rotary_ = kNone;
  std::pair<Index, Index> renamed_{kNone, kNone};  // later operations read the second instead
};

}  // namespace

std::int64_t chunk_of(std::int64_t all, std::int64_t parts, std::int64_t index) {
  const std::int64_t chunk = (all + parts - 1) / parts;
  return std::clamp<std::int64_t>(all - index * chunk, 0, chunk);
}

CutLayer cut_layer(const LayerSpec& layer, const Plan& plan, Placement input) {
  if (layer.role == LayerRole::kLoss && input == Placement::kFeature) {
    return {cut_loss(layer, plan), Placement::kWhole};
  }
  return Cutter(layer, plan, input).run();
}

}  // namespace foreshard
