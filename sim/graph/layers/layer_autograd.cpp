// An operation has a node in autograd's graph, and saves, only where one of its inputs or weights needs a gradient and
// a gradient of the layer's output reaches it; a matrix product, a lookup and the product of an eager norm with its
// weight save their input only for the weight's gradient (a weight that adapters are folded into is the second input).
// A name ends where Operation::released says, else after the last use.
#include "sim/graph/layers/layer_autograd.h"

#include <algorithm>

#include "sim/base/lookup.h"
#include "sim/graph/layers/column_sums.h"
#include "sim/graph/layers/layer_kernels.h"

namespace foreshard {

LayerAutograd::LayerAutograd(const LayerSpec& layer, const ProgramOptions& options)
    : casts_(with_casts(layer, options)),
      layer_(casts_.layer ? *casts_.layer : layer),
      options_(options),
      elements_(element_types(layer_, casts_, options)) {
  bytes_.reserve(tensors());
  for (std::size_t t = 0; t < tensors(); ++t) {
    const TensorSpec& spec = layer_.tensors[t];
    if (spec.in_registers) {
      bytes_.push_back(0);
    } else if (spec.name == kColumnSums) {
      TensorSpec rows = spec;
      rows.fixed = 0;
      bytes_.push_back(column_sum_bytes(elements(rows, options.batch, options.sequence), spec.fixed));
    } else {
      bytes_.push_back(checked_multiply(elements(spec, options.batch, options.sequence), elements_[t].size()));
    }
  }
  find_releases();
  find_border();
  find_nodes();
  if (options.hooks) modules_ = ModuleSpans(layer_);
}

bool LayerAutograd::is_alias(const Operation& op) const {
  if (op.view) return true;
  return op.function == Function::kCast && !op.outputs.empty() && !is_flat() &&
         element(op.inputs.front()) == element(op.outputs.front());
}

bool LayerAutograd::is_cast_input(Index t) const {
  // (A final norm's is only its call's; the head is called after that.)
  if (layer_.operations.empty() || layer_.role == LayerRole::kFinalNorm) return false;
  const Operation& first = layer_.operations.front();
  return first.part == LayerSegment::kBefore && first.outputs.front() == t;
}

// Last operation that reads each tensor, moved later by `released`.
void LayerAutograd::find_releases() {
  std::vector<std::int32_t> last(tensors(), -1);
  std::vector<bool> explicitly(tensors(), false);
  releases_.resize(operations());
  for (std::size_t o = 0; o < operations(); ++o) {
    const Operation& op = operation(o);
    for (Index t : op.outputs) last[at(t)] = static_cast<std::int32_t>(o);
    for (Index t : op.inputs) last[at(t)] = static_cast<std::int32_t>(o);
    for (Index t : op.released) explicitly[at(t)] = true;
    releases_[o] = op.released;
  }
  for (std::size_t t = 0; t < tensors(); ++t) {
    const auto tensor = static_cast<Index>(t);
    if (explicitly[t] || layer_.tensors[t].held || last[t] < 0 || is_cast_input(tensor)) continue;
    // The caller holds the layer's input; the native engine lets go of it like of any other.
    if (t == 0 && !is_flat()) continue;
    releases_[at(last[t])].push_back(tensor);
  }
}

void LayerAutograd::find_border() {
  border_ = layer_.output;
  for (std::size_t o = operations(); o-- > 0;) {
    const Operation& op = operation(o);
    if (is_alias(op) && contains(op.outputs, border_)) border_ = op.inputs.front();
  }
}

// Operations that a gradient of the layer's output reaches: autograd forgets what nothing refers to.
std::vector<bool> LayerAutograd::find_reached() const {
  std::vector<bool> reached(operations(), false);
  std::vector<bool> wanted(tensors(), false);
  wanted[at(layer_.output)] = true;
  for (std::size_t o = reached.size(); o-- > 0;) {
    const Operation& op = operation(o);
    reached[o] = std::ranges::any_of(op.outputs, [&](Index t) { return wanted[at(t)]; });
    if (!reached[o] || op.gradient == GradientRule::kNone) continue;
    for (Index t : op.inputs) wanted[at(t)] = true;
  }
  return reached;
}

void LayerAutograd::find_nodes() {
  needs_.assign(tensors(), false);
  needs_[0] = options_.grad_mode && options_.input_needs_gradient && has_input_buffer();
  if (layer_.joins >= 0) needs_[at(layer_.joins)] = options_.grad_mode && options_.joined_needs_gradient;
  const std::vector<bool> reached = find_reached();
  node_.assign(operations(), false);
  weight_copies_.resize(operations());
  for (std::size_t o = 0; o < operations(); ++o)
    if (operation(o).casts_weight) weight_copies_[o] = {operation(o).outputs.back()};
  trains_.assign(operations(), false);
  is_saved_.assign(tensors(), false);
  first_saver_ = operations();
  for (std::size_t o = 0; o < operations(); ++o) {
    const Operation& op = operation(o);
    if (!reached[o]) continue;
    trains_[o] = options_.grad_mode && std::ranges::any_of(
                                           op.parameters, [&](Index p) { return !is_frozen(p); });
    node_[o] = trains_[o] || (op.gradient != GradientRule::kNone &&
                                 std::ranges::any_of(op.inputs, [&](Index t) { return needs_gradient(t); }));
    if (!node_[o]) continue;
    if (op.view)
      for (Index t : op.outputs) needs_[at(t)] = true;
    else if (!op.outputs.empty()) needs_[at(op.outputs.front())] = true;
    for (Index t : saves(o)) is_saved_[at(t)] = true;
    if (inside(o) && (!saves(o).empty() || op.kind == OperationKind::kGemm)) {
      first_saver_ = std::min(first_saver_, o);
      last_saver_ = o;
    }
  }
  checkpointed_ = options_.recompute != Recompute::kNone && first_saver_ < operations();
}

bool LayerAutograd::is_unread(std::size_t o) const {
  const Operation& op = operation(o);
  return !node_[o] && op.gradient == GradientRule::kOwn && !is_flat() && !op.saved.empty() && !op.view &&
         !op.outputs.empty() && std::ranges::any_of(op.inputs, [&](Index t) { return needs_gradient(t); });
}

const Indices& LayerAutograd::saves(std::size_t o) const {
  static const Indices kNothing;
  const Operation& op = operation(o);
  if (!node_[o] || (op.view && options_.recompute != Recompute::kNone)) return kNothing;
  // (A loss with the head's product in it makes that again, whoever is trained; a convolution keeps its input.)
  const bool is_product = op.kind == OperationKind::kGemm && op.function != Function::kCrossEntropy;
  const bool for_weight = (is_product && !convolves(layer_, op)) || op.kind == OperationKind::kEmbedding ||
                          (op.eager_norm && !op.parameters.empty());
  const bool makes_weight = op.inputs.size() > 1 && needs_gradient(op.inputs[1]);
  const bool keeps =
      options_.keeps_inputs && op.kind == OperationKind::kGemm && op.groups <= 1 && !op.transposed_weight;
  return for_weight && !trains_[o] && !makes_weight && !keeps ? weight_copies_[o] : op.saved;
}

std::size_t LayerAutograd::first_inside() const {
  std::size_t o = 0;
  while (o + 1 < operations() && !inside(o)) ++o;
  return o;
}

Indices LayerAutograd::checkpoint_inputs() const {
  Indices inputs;
  bool casts_input = false;
  for (std::size_t o = 0; o < operations() && !inside(o); ++o) {
    const Operation& op = operation(o);
    inputs.push_back(op.outputs.front());
    casts_input |= contains(op.inputs, Index{0});
  }
  if (!casts_input) inputs.insert(inputs.begin(), Index{0});
  if (layer_.joins >= 0) inputs.push_back(layer_.joins);  // an argument, too
  return inputs;
}

Index LayerAutograd::reentrant_output() const {
  const bool is_block = is_checkpointed() && options_.recompute == Recompute::kFull && !is_flat();
  if (!options_.reentrant || !is_block) return -1;
  std::size_t last = operations() - 1;
  while (last > 0 && !inside(last)) --last;
  return operation(last).outputs.front();
}

bool LayerAutograd::is_frozen(Index p) const {
  return !parameter(p).trainable || (!options_.frozen.empty() && options_.frozen[at(p)]);
}

}
