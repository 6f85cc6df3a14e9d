// A kernel makes a norm's gradients in its weight's dtype, as does a loss with the head's product in it, other ones in
// the incoming gradient's; a bias is a sum over the incoming gradient. validate_outputs casts them where the
// parameter's gradient has another dtype. A linear layer's weight is used transposed, which is a node more: its
// gradient is cast and stored once that one is done.
//
// The native engine (GradientStorage::kFlat) writes them into the unit's flat buffer.
#include "sim/graph/layers/layer_weight_gradients.h"

#include <algorithm>

#include "sim/base/error.h"
#include "sim/graph/layers/layer_kernels.h"

namespace foreshard {

WeightGradients::WeightGradients(LayerProgramWriter& writer) : writer_(writer), graph_(writer.graph()) {
  writer.program().weight_gradients.assign(graph_.layer().parameters.size(), LayerProgramWriter::kNoSlot);
}

DType WeightGradients::made_dtype(const Operation& op) const {
  if (op.parameters.empty()) return graph_.element(op.outputs.front()).dtype;
  // In the weight's own dtype, which autocast leaves it.
  if (op.function == Function::kCrossEntropy) return graph_.gradient_dtype_of(op.parameters.front());
  return op.kind == OperationKind::kNorm ? graph_.dtype_of(op.parameters.front())
                                         : graph_.element(op.outputs.front()).dtype;
}

bool WeightGradients::hang_on_node(const Operation& op) const {
  return op.kind == OperationKind::kNorm ||
         (!op.parameters.empty() && graph_.parameter(op.parameters.front()).shape.size() > 2);
}

std::int32_t WeightGradients::make_slot(Index p, DType dtype, const char* suffix) {
  return writer_.make_temporary(graph_.gradient_bytes(p, dtype), graph_.parameter(p).name + suffix);
}

void WeightGradients::make(const Operation& op, bool by_product) {
  if (graph_.is_flat()) {
    const ProgramOptions& options = graph_.options();
    if (options.flat_gradient == options.compute || op.kind != OperationKind::kGemm) return;
    writer_.free(make_slot(op.parameters.front(), options.compute, ""));
    return;
  }
  const bool norm = op.kind == OperationKind::kNorm;
  if (op.kind == OperationKind::kEmbedding)
    for (const Index t : op.backward_temporaries)
      whole_.push_back(writer_.make_temporary(graph_.bytes(t), graph_.tensor(t).name));
  for (Index p : op.parameters) {
    if (!norm && (graph_.is_frozen(p) || p != op.parameters.front())) continue;
    fresh_.push_back({p, make_slot(p, made_dtype(op), ".grad")});
    if (!norm && by_product) writer_.use_workspace({}, writer_.library_slot(op, Pass::kBackward));
  }
}

void WeightGradients::validate(const Operation& op) {
  if (graph_.is_flat()) return;
  const DType made = made_dtype(op);
  const bool norm = op.kind == OperationKind::kNorm;
  for (std::size_t i = 1; !norm && i < op.parameters.size(); ++i) {
    const Index p = op.parameters[i];
    if (!graph_.is_frozen(p)) fresh_.push_back({p, make_slot(p, made, ".grad")});
  }
  if (op.casts_weight && hang_on_node(op)) return;  // (a stack's cast is a node more, too)
  for (Fresh& each : fresh_) {
    const Index p = each.parameter;
    const bool later =
        op.kind == OperationKind::kGemm && p == op.parameters.front() && graph_.parameter(p).shape.size() == 2;
    const DType wanted = later ? graph_.dtype_of(p) : graph_.gradient_dtype_of(p);
    if (wanted == made) continue;
    const std::int32_t cast = make_slot(p, wanted, ".grad");
    add_memory_kernel(writer_.phase(), Function::kCast, Pass::kBackward,
        graph_.parameter(p).numel() * (size_of(made) + size_of(wanted)));
    writer_.free(std::exchange(each.slot, cast));
  }
}

LayerProgramWriter::Slots WeightGradients::settle(const Operation& op) {
  LayerProgramWriter::Slots dying;
  if (!hang_on_node(op)) return dying;
  for (const Fresh& each : std::exchange(fresh_, {}))
    if (settle(each)) dying.push_back(each.slot);
  return dying;
}

bool WeightGradients::settle(const Fresh& fresh) {
  const Index p = fresh.parameter;
  if (graph_.is_frozen(p)) return true;
  const ProgramOptions& options = graph_.options();
  const bool adds = options.sharing == Sharing::kBetween || options.sharing == Sharing::kLastOfBackward ||
                    (options.tied != Tying::kNone && p == 0);
  std::int32_t slot = fresh.slot;
  if (adds) {
    // A cast made the earlier one, to which the engine then adds in place (can_accumulate_inplace):
    // the sum takes its bytes. What a product makes is a transposed view.
    const bool casts = graph_.gradient_dtype_of(p) != graph_.dtype_of(p);
    const bool in_place = options.tied == Tying::kOwned || (options.tied != Tying::kHeld && casts);
    if (in_place) writer_.free(LayerPhaseProgram::kEarlierGradient + p);
    slot = make_slot(p, graph_.gradient_dtype_of(p), ".grad sum");
    add_memory_kernel(writer_.phase(), Function::kAdd, Pass::kBackward, 3 * graph_.gradient_bytes(p));
    if (!in_place) writer_.free(LayerPhaseProgram::kEarlierGradient + p);
  }
  std::int32_t& place = writer_.program().weight_gradients[at(p)];
  FORESHARD_CHECK(place == LayerProgramWriter::kNoSlot, "a parameter is used by two operations of one layer");
  place = slot;
  settled_.push_back(p);
  return adds;
}

void WeightGradients::store(const Operation& op) {
  if (hang_on_node(op)) {
    for (Index p : std::exchange(settled_, {})) store(p);
    return;
  }
  std::vector<Fresh> fresh = std::exchange(fresh_, {});
  // Of what a node hands on, the latest made goes first: a bias, for the weight is transposed before the product.
  // Autocast, though, casts the last of its arguments first and the input at last.
  const DType stored = graph_.options().stored;
  const bool is_cast = !fresh.empty() && stored != graph_.dtype_of(fresh.front().parameter) &&
                       stored == graph_.gradient_dtype_of(fresh.front().parameter);
  if (!is_cast || op.transposed_weight) std::ranges::reverse(fresh);
  for (const Fresh& each : fresh) {
    if (settle(each)) writer_.free(each.slot);
    for (Index p : std::exchange(settled_, {})) store(p);
  }
  for (const std::int32_t slot : std::exchange(whole_, {})) writer_.free(slot);
}

// AccumulateGrad.
void WeightGradients::store(Index p) {
  LayerProgram& program = writer_.program();
  const ProgramOptions& options = graph_.options();
  std::int32_t& slot = program.weight_gradients[at(p)];
  const std::int64_t bytes = graph_.gradient_bytes(p);
  const std::int64_t made = graph_.gradient_bytes(p, graph_.dtype_of(p));
  if (allocated_size(bytes) != program.slots[at(slot)].bytes) {
    const std::int32_t cast = make_slot(p, graph_.gradient_dtype_of(p), ".grad");
    add_memory_kernel(writer_.phase(), Function::kCast, Pass::kBackward, bytes + made);
    writer_.free(std::exchange(slot, cast));
  }
  if (graph_.parameter(p).tied && graph_.layer().role != LayerRole::kHead) {
    add_memory_kernel(writer_.phase(), Function::kAdd, Pass::kBackward, 3 * made);
    // Another use of it ran before: autograd adds to that one's in place.
    const std::string& name = graph_.parameter(p).name;
    const bool is_first = again_of_.insert(name.substr(0, name.find(" again "))).second;
    is_first ? again_.push_back(slot) : writer_.free(slot);
    return;
  }
  const bool earlier =
      options.sharing == Sharing::kFirstOfBackward || options.sharing == Sharing::kBetween || graph_.parameter(p).tied;
  if (earlier) return;
  const bool exists = options.existing == ExistingGradients::kAll ||
                      (options.existing == ExistingGradients::kIgnored && graph_.is_ignored(p));
  if (exists) {
    add_memory_kernel(writer_.phase(), Function::kAdd, Pass::kBackward, 3 * made);
    const std::int32_t gone = std::exchange(slot, LayerProgramWriter::kNoSlot);
    options.splits_backward ? added_.push_back(gone) : writer_.free(gone);
  } else if (!graph_.is_ignored(p) && !options.wraps_gradients && !graph_.parameter(p).is_expert) {
    program.slots[at(slot)].stored = MemoryCategory::kUnshardedGrad;
    writer_.phase().actions.push_back(LayerPhaseProgram::kStore + slot);
  }
  writer_.add_hook(LayerHook::Kind::kGradient, p);
}

}
