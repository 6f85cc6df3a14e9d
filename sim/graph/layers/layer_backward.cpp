// Backward walks the nodes in reverse, as autograd's engine does for a chain. A node allocates the gradients of its
// weights and inputs; sums and casts that give a gradient its tensor's shape and dtype follow (validate_outputs); it
// drops the gradient of its output, then what it had saved (recomputed tensors go before, with the node's local names).
// Gradients that meet at a tensor are added into a new buffer. Then weight gradients are stored, which is when they
// become the parameter's: added to an earlier call's, or to the one that exists. What checkpointing holds goes when the
// first operation's node is done.
//
// The native engine (GradientStorage::kFlat) lets go of everything after its last use and adds in place.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "sim/base/error.h"
#include "sim/base/integers.h"
#include "sim/graph/layers/column_sums.h"
#include "sim/graph/layers/fused_region.h"
#include "sim/graph/layers/layer_kernels.h"
#include "sim/graph/layers/layer_phases.h"
#include "sim/graph/layers/layer_weight_gradients.h"

namespace foreshard {
namespace {

using Slots = LayerProgramWriter::Slots;

constexpr std::int32_t kNoGradient = -1;

// The part of the layer whose unit's hooks a backward node runs between.
std::int8_t part_in_backward(const Operation& op) {
  if (op.part == LayerSegment::kBefore) return LayerSegment::kAfter;
  return op.part == LayerSegment::kAfter ? LayerSegment::kBefore : op.part;
}

class Backward {
 public:
  explicit Backward(LayerProgramWriter& writer)
      : writer_(writer),
        graph_(writer.graph()),
        splits_(graph_.options().splits_backward),
        weights_(writer),
        gradient_of_(graph_.tensors(), kNoGradient),
        captured_(graph_.operations(), LayerProgramWriter::kNoSlot) {
    regions_.made_by.assign(graph_.tensors(), -1);
    regions_.parts.assign(graph_.tensors(), 1);
    for (const Operation& op : graph_.layer().operations)
      if (op.region >= 0) regions_.made_by[at(op.outputs.front())] = op.region;
    gradients_.reserve(graph_.tensors() * 3);
  }

  void run() {
    begin();
    for (std::size_t o = graph_.operations(); o-- > 0;) {
      if (graph_.inside(o)) hold_output();
      if (graph_.has_node(o)) run_node(o);
    }
    let_go_of_output();
    for (const std::int32_t slot : weights_.take_again()) writer_.free(slot);
    end();
    if (splits_ && !graph_.is_loss()) write_weight_backward(writer_, weights_, captured_);
  }

 private:
  static constexpr std::int16_t kLanded = -2;
  struct Gradient {
    std::int32_t slot = LayerProgramWriter::kNoSlot;
    std::int32_t references = 0;
    std::int16_t flight = kLanded;                    // the launch that fills it
    std::int32_t kept = LayerProgramWriter::kNoSlot;  // what that holds until it is waited for
  };
  struct Contribution {
    Index tensor;
    std::int32_t gradient;
  };
  using Contributions = std::vector<Contribution>;

  // --- gradients of tensors ---

  Gradient& gradient(std::int32_t g) { return gradients_[at(g)]; }

  std::int32_t make_gradient(std::int64_t bytes, std::string name) {
    gradients_.push_back({writer_.make_temporary(bytes, std::move(name)), 1});
    return static_cast<std::int32_t>(gradients_.size()) - 1;
  }
  std::int32_t make_gradient_of(Index t, std::int64_t bytes) {
    return make_gradient(bytes, graph_.tensor(t).name + ".grad");
  }
  std::int32_t share(std::int32_t g) {
    ++gradient(g).references;
    return g;
  }
  void drop(std::int32_t g) {
    if (--gradient(g).references == 0) writer_.free(gradient(g).slot);
  }

  void add_kernel(Function function, std::int64_t bytes) {
    add_memory_kernel(writer_.phase(), function, Pass::kBackward, bytes);
  }
  std::int64_t output_bytes(const Operation& op) const { return graph_.bytes(op.outputs.front()); }
  bool casts(const Operation& op, Index input) const {
    return graph_.element(input) != graph_.element(op.outputs.front());
  }

  // --- one node ---

  void run_node(std::size_t o) {
    const Operation& op = graph_.operation(o);
    const std::vector<std::int32_t> incoming = take_incoming(op);
    if (incoming.empty()) return;  // no gradient arrives: the output is not differentiated
    if (splits_ && graph_.trains(o)) captured_[o] = gradient(share(incoming.front())).slot;
    if (op.is_collective()) return communicate(o, incoming.front());
    if (graph_.is_alias(op) && op.outputs.size() == 1) {
      recompute_before(o);
      for (std::size_t i = op.inputs.size(); i-- > 1;)
        if (graph_.needs_gradient(op.inputs[i])) accumulate({op.inputs[i], share(incoming.front())});
      accumulate({op.inputs.front(), summed_over_copies(o, incoming.front())});
      free_dying();
      if (!retains(o)) drop_saved(graph_.saves(o));
      end_checkpoint_at(o);
      return;
    }
    writer_.enter(part_in_backward(op));
    if (op.gradient != GradientRule::kAlias || casts_any(op)) settle(incoming.front());
    recompute_before(o);
    writer_.enter_modules(graph_.modules().ending(o));
    const std::size_t first_kernel = writer_.phase().kernels.size();
    LayerStep step = LayerProgramWriter::begin_step(LayerStep::Kind::kBackward, o);
    step.inputs = {gradient(incoming.front()).slot};
    for (Index t : graph_.saves(o)) step.inputs.push_back(writer_.slot_of(t));
    const std::int32_t addend = take_addend(op);
    const Indices& saved = graph_.saves(o);
    if (replaces(op)) drop_saved(saved);
    const bool is_taken = takes_incoming(op) && is_sole(incoming.front());
    Contributions contributions = op.gradient == GradientRule::kAlias ? hand_through(o, incoming.front())
                                                                      : differentiate(o, incoming.front(), addend);
    if (addend != kNoGradient) step.inputs.push_back(gradient(addend).slot);
    for (const Contribution& each : contributions) step.outputs.push_back(gradient(each.gradient).slot);
    if (op.kind == OperationKind::kAttention && !graph_.is_flat()) drop_unneeded(contributions);
    const bool unpacked = replaces(op) || (graph_.is_checkpointed() && graph_.inside(o) && !graph_.is_flat());
    // (DeepSpeed's own F.linear makes that sum itself: zero3_places.cpp.)
    const bool sums_inside = graph_.options().keeps_inputs && !op.transposed_weight;
    if (sums_inside) writer_.use_workspace(workspace(op, true));
    if (unpacked && !replaces(op)) drop_saved(Indices(saved.rbegin(), saved.rend()));
    if (!sums_inside && op.reduces.kind == CollectiveKind::kNone) writer_.use_workspace(workspace(op, true));
    if (!splits_) weights_.validate(op);
    validate_inputs(op, contributions);
    if (!is_taken)
      for (std::int32_t each : incoming) drop(each);
    if (addend != kNoGradient && !adds_in_place(op)) drop(addend);
    if (!unpacked && !retains(o)) drop_saved(saved);
    end_checkpoint_at(o);
    if (op.gradient != GradientRule::kAlias || graph_.trains(o)) writer_.end_step(std::move(step));
    // What the norm's input gets from elsewhere is added outside of the norm.
    regions_.runs = op.region >= 0;
    if (regions_.runs) replace_by_region(o, first_kernel);
    const bool begins_norm = o == 0 || !graph_.operation(o - 1).eager_norm;
    if (begins_norm) mark_eager_norm(op, first_kernel, writer_.phase());
    hand_on(op, contributions);
    regions_.runs = false;
    if (!begins_norm) mark_eager_norm(op, first_kernel, writer_.phase());
    writer_.exit_modules(graph_.modules().beginning(o));
  }

  // Of a node that makes a gradient of one input alone, whose incoming one ends with it.
  void end_step_of(std::size_t o, std::int32_t incoming, std::int32_t made) {
    LayerStep step = LayerProgramWriter::begin_step(LayerStep::Kind::kBackward, o);
    step.inputs = {gradient(incoming).slot};
    step.outputs = {gradient(made).slot};
    drop(incoming);
    writer_.end_step(std::move(step));
  }

  // --- collectives ---

  void settle(std::int32_t g) {
    Gradient& each = gradient(g);
    if (each.flight == kLanded) return;
    writer_.await(std::exchange(each.flight, kLanded));
    const std::int32_t kept = std::exchange(each.kept, LayerProgramWriter::kNoSlot);
    if (kept != LayerProgramWriter::kNoSlot) writer_.free(kept);
  }

  bool casts_any(const Operation& op) const {
    return std::ranges::any_of(
        op.inputs, [&](Index t) { return casts(op, t); });
  }

  // Checkpointing runs the layer again when the first node unpacks what it saved (a fused region's nodes are one).
  // Where nothing was computed or communicated before, that is where backward begins.
  void recompute_before(std::size_t o) {
    if (recomputed_ || !graph_.is_checkpointed() || !graph_.inside(o) || !unpacks(o)) return;
    recomputed_ = true;
    const bool began = !writer_.phase().calls.empty() || !writer_.phase().kernels.empty();
    // The engine recomputes before backward begins.
    const bool first = graph_.is_flat() || graph_.options().recomputes_first || graph_.reentrant_output() >= 0;
    if (!began || first) return;
    writer_.enter(part_in_backward(graph_.operation(o)));
    writer_.recompute_here();
  }

  bool unpacks(std::size_t o) const {
    const Operation& op = graph_.operation(o);
    if (!graph_.saves(o).empty() || op.kind == OperationKind::kGemm) return true;
    for (std::size_t other = o; op.region >= 0 && other-- > 0;)
      if (graph_.operation(other).region == op.region && !graph_.saves(other).empty()) return true;
    return false;
  }

  void communicate(std::size_t o, std::int32_t incoming) {
    const Operation& op = graph_.operation(o);
    const LayerCollective& collective = op.collective_backward;
    const Index input = op.inputs.back();
    const std::int64_t in = output_bytes(op), out = graph_.bytes(input);
    const auto copy = [&](std::int64_t bytes) { add_kernel(Function::kCopy, 2 * bytes); };
    if (collective.kind == CollectiveKind::kNone) {
      std::int32_t part = incoming;
      if (in != out) {  // the rank's part of a gradient that every rank has, cut out
        writer_.enter(part_in_backward(op));
        part = make_gradient_of(input, out);
        copy(out);
        end_step_of(o, incoming, part);
      }
      accumulate({input, part});
      return free_dying();
    }
    writer_.enter(part_in_backward(op));
    settle(incoming);
    if (op.n > 0) {  // of so many elements of a weight's gradient, where it is
      const std::int64_t bytes = op.n * graph_.element(input).size();
      writer_.await(writer_.launch(collective, bytes, bytes, graph_.element(input)));
      accumulate({input, incoming});
      return free_dying();
    }
    std::int32_t packed = LayerProgramWriter::kNoSlot;
    if (collective.packs) {
      packed = writer_.make_temporary(in, graph_.tensor(input).name + ".grad packed");
      copy(in);
    }
    std::int32_t made = make_gradient_of(input, out);
    if (collective.kind == CollectiveKind::kAllReduce) copy(out);
    const std::int16_t launch = writer_.launch(collective, in, out, graph_.element(input));
    if (collective.waits) {
      writer_.await(launch);
      if (packed != LayerProgramWriter::kNoSlot) writer_.free(packed);
      if (collective.reorders || (collective.unpacks && graph_.options().batch > 1)) {
        const std::int32_t whole = make_gradient_of(input, out);
        copy(out);
        drop(std::exchange(made, whole));
      }
    } else {
      gradient(made).flight = launch;
      gradient(made).kept = packed;
    }
    const std::int32_t held = std::exchange(held_, op.continues_node ? share(incoming) : kNoGradient);
    end_step_of(o, incoming, made);
    if (held != kNoGradient) drop(held);
    if (!retains(o)) drop_saved(graph_.saves(o));
    accumulate({input, made});
    free_dying();
  }

  std::vector<std::int32_t> take_incoming(const Operation& op) {
    std::vector<std::int32_t> incoming;
    const std::size_t count = op.view ? op.outputs.size() : std::min<std::size_t>(1, op.outputs.size());
    for (std::size_t i = 0; i < count; ++i) {
      const std::int32_t g = std::exchange(gradient_of_[at(op.outputs[i])], kNoGradient);
      if (g != kNoGradient) incoming.push_back(g);
    }
    return incoming;
  }

  // The gradient of an expanded view; that of a part of the first input (kAliasFirst), which is put into zeros.
  std::int32_t summed_over_copies(std::size_t o, std::int32_t incoming) {
    const Operation& op = graph_.operation(o);
    const Index input = op.inputs.front();
    const TensorSpec& wide = graph_.tensor(op.outputs.front());
    const bool expands = wide.per_token > graph_.tensor(input).per_token && !is_part(op);
    if (!op.view || (!expands && !is_part(op))) return incoming;
    const std::int32_t sum = make_gradient_of(input, graph_.bytes(input));
    add_kernel(Function::kAdd, output_bytes(op));
    end_step_of(o, incoming, sum);
    return sum;
  }

  static bool is_part(const Operation& op) { return op.view && op.gradient == GradientRule::kAliasFirst; }

  // --- what a node computes ---

  bool trains(std::size_t o) const { return graph_.trains(o) && !splits_; }
  // retain_graph; but what a checkpoint's hooks unpack, they hand out.
  bool retains(std::size_t o) const { return splits_ && !(graph_.is_checkpointed() && graph_.inside(o)); }

  // A sum hands its output's gradient on, reduced for an input that is broadcast or of another dtype.
  Contributions hand_through(std::size_t o, std::int32_t incoming) {
    const Operation& op = graph_.operation(o);
    Contributions contributions;
    for (Index t : op.inputs) {
      if (!graph_.needs_gradient(t) && !graph_.is_flat()) continue;
      contributions.push_back({t, handed_through(op, t, incoming)});
    }
    if (trains(o)) {  // a parameter that is added: its gradient is summed over the batch
      weights_.make(op);
      add_kernel(Function::kColumnSum, output_bytes(op));
    }
    return contributions;
  }

  std::int32_t handed_through(const Operation& op, Index t, std::int32_t incoming) {
    const std::int64_t bytes = graph_.bytes(t);
    if (!graph_.is_flat() && is_broadcast(t, op)) {
      const std::int64_t wide = bytes / graph_.element(t).size() * graph_.element(op.outputs.front()).size();
      std::int32_t sum = make_gradient_of(t, wide);
      add_kernel(Function::kAdd, output_bytes(op));
      if (casts(op, t)) drop(std::exchange(sum, make_gradient_of(t, bytes)));
      return sum;
    }
    if (graph_.is_flat() || !casts(op, t)) return share(incoming);
    const std::int32_t cast = make_gradient_of(t, bytes);
    add_kernel(Function::kCast, output_bytes(op) + bytes);
    return cast;
  }

  // In a forward operation's broadcast, an input that all sequences share.
  bool is_broadcast(Index input, const Operation& op) const {
    return graph_.tensor(input).per_token == 0 && graph_.tensor(op.outputs.front()).per_token > 0;
  }

  // Their kernels return the input's gradient first: norms; a product with a bias (addmm).
  bool makes_inputs_first(const Operation& op) const {
    return op.kind == OperationKind::kNorm || (op.parameters.size() > 1 && !graph_.is_flat());
  }

  // Keys and values of all ranks, which forward has let go of.
  Slots gather_keys(const Operation& op) {
    Slots all;
    for (const Index t : {op.inputs[1], op.inputs[2]}) {
      const std::int64_t whole = graph_.bytes(t), part = whole / op.attention.key_ranks;
      all.push_back(writer_.make_temporary(whole, graph_.tensor(t).name));
      writer_.await(writer_.launch(op.gathers, part, whole, graph_.element(t)));
    }
    return all;
  }

  // A product whose input's parts are on several ranks: gathered again beside the product that
  // makes the input's gradient, which is reduced beside the one that makes the weight's.
  Contributions differentiate_parts(std::size_t o) {
    const Operation& op = graph_.operation(o);
    const Index input = op.inputs.front();
    const std::int64_t part = graph_.bytes(input), whole = graph_.whole_bytes(input);
    const TensorElement element = graph_.element(input);
    const bool trains = this->trains(o), needed = graph_.needs_gradient(input);
    const bool gathers = trains && op.gathers.kind != CollectiveKind::kNone;
    std::int32_t all = LayerProgramWriter::kNoSlot, partial = LayerProgramWriter::kNoSlot;
    std::int16_t gathered = 0, reduced = 0;
    if (gathers) {
      all = writer_.make_temporary(graph_.gathered_bytes(input), graph_.tensor(input).name + " gathered");
      LayerCollective again = op.gathers;
      again.finds_amax = false;
      gathered = writer_.launch(again, part, whole, element);
    }
    Contributions contributions;
    if (needed) {
      const bool scatters = op.reduces.kind == CollectiveKind::kReduceScatter;
      if (scatters) partial = writer_.make_temporary(whole, graph_.tensor(input).name + ".grad summand");
      else contributions.push_back({input, make_gradient_of(input, part)});
      writer_.use_workspace({}, writer_.library_slot(op, Pass::kBackward));
      add_backward_kernels(graph_.counts(), op, {false, true}, writer_.phase());
      if (gathers) writer_.await(gathered);
      if (scatters) contributions.push_back({input, make_gradient_of(input, part)});
      reduced = writer_.launch(op.reduces, scatters ? whole : part, part, element);
    } else if (gathers) {
      writer_.await(gathered);
    }
    if (trains) {
      weights_.make(op);
      add_backward_kernels(graph_.counts(), op, {true, false}, writer_.phase());
    }
    if (needed) writer_.await(reduced);
    if (partial != LayerProgramWriter::kNoSlot) writer_.free(partial);
    if (all != LayerProgramWriter::kNoSlot) writer_.free(all);
    return contributions;
  }

  // What the kernel that makes the input's gradient adds to it: the sum of those made before.
  std::int32_t take_addend(const Operation& op) {
    if (!graph_.options().adds_gradients || op.gradient != GradientRule::kOwn) return kNoGradient;
    if (op.function != Function::kRmsNorm && !adds_in_place(op)) return kNoGradient;
    std::int32_t& place = gradient_of_[at(op.inputs.front())];
    if (place == kNoGradient) return kNoGradient;
    // Nobody else's, nor where the caller looks for the layer's incoming gradient.
    const Gradient& g = gradient(place);
    const bool is_own = g.references == 1 && g.slot != LayerProgramWriter::kOutputGradSlot;
    if (adds_in_place(op) && !is_own) return kNoGradient;
    return std::exchange(place, kNoGradient);
  }
  static bool adds_in_place(const Operation& op) { return op.function == Function::kMatrixProduct; }

  Contributions differentiate(std::size_t o, std::int32_t incoming, std::int32_t addend) {
    const Operation& op = graph_.operation(o);
    if (is_synchronized(op)) writer_.await(launch_statistics(writer_, op, op.reduces));
    else if (op.reduces.kind != CollectiveKind::kNone) return differentiate_parts(o);
    const bool inputs_first = makes_inputs_first(op), casts = casts_sums(op);
    Contributions contributions;
    Slots sums;
    if (casts) {
      for (const Index t : op.backward_workspace)
        sums.push_back(writer_.make_temporary(graph_.bytes(t), graph_.tensor(t).name));
      writer_.use_workspace({}, writer_.library_slot(op, Pass::kBackward));
    }
    if (!inputs_first && !splits_) weights_.make(op, !casts);
    if (op.gradient != GradientRule::kNone) {
      if (takes_incoming(op)) {
        if (is_sole(incoming)) drop(incoming);
      } else if (op.in_place && !replaces(op)) {
        writer_.unname(op.inputs.front());
        writer_.unrefer(op.inputs.front());
      }
      Slots ended;
      if (op.ring.ranks > 1) ended = write_ring_backward(writer_, op);
      if (op.gathers.kind != CollectiveKind::kNone && !is_synchronized(op)) ended = gather_keys(op);
      contributions = addend != kNoGradient && adds_in_place(op) ? Contributions{{op.inputs.front(), addend}}
                                                                 : input_gradients(op, incoming);
      for (const std::int32_t slot : ended) writer_.free(slot);
      if (op.ring.ranks > 1) return contributions;
    }
    if (inputs_first && !splits_) weights_.make(op);
    if (!casts && (contributions.empty() || inputs_first)) writer_.use_workspace(workspace(op, false));
    for (const std::int32_t slot : sums) writer_.free(slot);
    const bool makes_unasked = splits_ && op.makes_all;
    for (std::size_t i = 0; makes_unasked && i < op.parameters.size(); ++i) {
      const Index p = op.parameters[i];
      dying_.push_back(
          writer_.make_temporary(graph_.gradient_bytes(p, graph_.dtype_of(p)), graph_.parameter(p).name + ".grad"));
    }
    const bool folded = op.kind == OperationKind::kGemm && contributions.size() > 1;
    add_backward_kernels(
        graph_.counts(), op, {trains(o) || makes_unasked || folded, !contributions.empty()}, writer_.phase());
    if (addend != kNoGradient && !adds_in_place(op))
      writer_.phase().kernels.back().bytes += Bytes(graph_.bytes(op.inputs.front()));
    return contributions;
  }

  // Sums that a loss with the head's product in it makes of its tiles, by products: its gradients are cast of them
  // behind.
  bool casts_sums(const Operation& op) const {
    return op.function == Function::kCrossEntropy && !splits_ &&
           std::ranges::any_of(
               op.backward_workspace, [&](Index t) { return graph_.tensor(t).name == kSumOfTiles; });
  }

  // What a product's gradients take; or what the sum over rows takes that makes its bias's: autograd leaves that to the
  // validation of what the node made, by when a checkpointed block's tensors that it unpacked are gone.
  Indices workspace(const Operation& op, bool sums) const {
    Indices list;
    for (const Index t : op.backward_workspace) {
      const bool is_sum = op.kind == OperationKind::kGemm && graph_.tensor(t).name == kColumnSums;
      if (is_sum == sums) list.push_back(t);
    }
    return list;
  }

  bool is_sole(std::int32_t g) { return gradient(g).references == 1; }
  // An in-place operation's input gradient takes the buffer of its output's, unless others share it
  // (a loss' that of the input itself).
  bool takes_incoming(const Operation& op) const {
    if (!op.in_place || graph_.is_loss() || replaces(op)) return false;
    const bool is_differentiated = graph_.is_flat() || graph_.needs_gradient(op.inputs.front());
    return is_differentiated && op.gradient == GradientRule::kOwn;
  }

  // Liger's product: the gradients of its inputs take the places of these.
  static bool replaces(const Operation& op) { return op.in_place && op.function == Function::kSiluMultiply; }

  Contributions input_gradients(const Operation& op, std::int32_t incoming) {
    const auto needed = [&](Index t) {
      // A custom function makes all of its gradients, as the attention kernels do.
      return graph_.needs_gradient(t) || op.kind == OperationKind::kNorm || op.kind == OperationKind::kAttention ||
             (graph_.is_flat() && !graph_.is_loss());
    };
    const auto is_alias = [&](Index t) { return op.gradient == GradientRule::kAliasFirst && t == op.inputs.front(); };
    Index last = -1;
    for (Index t : op.inputs)
      if (needed(t) && !is_alias(t)) last = t;
    Contributions contributions;
    for (Index t : op.inputs) {
      if (!needed(t)) continue;
      if (is_alias(t)) {
        contributions.push_back({t, share(incoming)});
        continue;
      }
      const Slots temporaries = t == last ? make_temporaries(op) : Slots();
      const bool wide = op.sums_last && t == op.inputs.back();
      std::int64_t bytes = graph_.bytes(wide ? op.outputs.front() : t);
      if (!wide) bytes = bytes / graph_.element(t).size() * made_element(op, t).size();
      contributions.push_back({t, make_gradient_of(t, bytes)});
      const bool is_product = op.kind == OperationKind::kGemm || op.function == Function::kMatrixProduct;
      if (!casts_sums(op)) {
        writer_.use_workspace(t == last && !makes_inputs_first(op) ? workspace(op, false) : Indices(),
            t == last || is_product ? writer_.library_slot(op, Pass::kBackward) : LayerProgramWriter::kNoSlot);
      }
      for (std::int32_t slot : temporaries) writer_.free(slot);
    }
    return contributions;
  }

  Slots make_temporaries(const Operation& op) {
    Slots slots;
    for (Index t : op.backward_temporaries) {
      slots.push_back(writer_.make_temporary(graph_.bytes(t), graph_.tensor(t).name));
      add_kernel(Function::kCopy, 2 * graph_.bytes(t));
    }
    return slots;
  }

  // Pointwise and indexing kernels make gradients in the dtype of the one that arrives, a softmax in its input's.
  TensorElement made_element(const Operation& op, Index input) const {
    const bool follows = op.kind == OperationKind::kElementwise && op.function != Function::kCast &&
                         op.function != Function::kSoftmax && !graph_.is_flat() && !op.outputs.empty();
    return graph_.element(follows ? op.outputs.front() : input);
  }

  // validate_outputs for inputs that are narrower than the operation's output or of another dtype.
  void validate_inputs(const Operation& op, Contributions& contributions) {
    if (op.gradient == GradientRule::kAlias) return;
    for (Contribution& each : contributions) {
      const TensorElement made = made_element(op, each.tensor);
      const TensorElement wanted = graph_.element(each.tensor);
      const auto replace = [&](std::int64_t bytes) {
        const std::int32_t next = make_gradient_of(each.tensor, bytes);
        add_kernel(Function::kAdd, output_bytes(op));
        drop(std::exchange(each.gradient, next));
      };
      const std::int64_t bytes = graph_.bytes(each.tensor);
      if (op.sums_last && each.tensor == op.inputs.back()) replace(bytes / wanted.size() * made.size());
      if (made != wanted) replace(bytes);
    }
  }

  // The kernels of operation `o` since `first` are part of its region's.
  void replace_by_region(std::size_t o, std::size_t first) {
    const Operation& op = graph_.operation(o);
    writer_.phase().kernels.resize(first);
    FusedRegion::Derivative derivative{regions_.parts[at(op.outputs.front())], graph_.saves(o), {}};
    for (Index t : op.inputs) {
      if (!graph_.needs_gradient(t)) continue;
      derivative.gradients.push_back({t, gradient_of_[at(t)] != kNoGradient,
          op.gradient == GradientRule::kAlias && !casts(op, t), regions_.made_by[at(t)] == op.region});
    }
    region_.backward(op, derivative, graph_.bytes(), writer_.phase());
  }

  // --- what goes with a node ---

  // Results of an operator that nobody asked for go when it returns.
  void drop_unneeded(Contributions& contributions) {
    std::erase_if(
        contributions,
        [this](const Contribution& each) {
          if (graph_.needs_gradient(each.tensor)) return false;
          drop(each.gradient);
          return true;
        });
  }

  void drop_saved(const Indices& saved) {
    bool input = false;  // the native engine drops it last
    for (Index t : saved)
      if (t == 0 && graph_.is_flat()) input = graph_.has_input_buffer();
      else writer_.unrefer(t);
    if (input) writer_.unrefer(0);
  }

  // With the first node that saved anything, which may be a cast that changes nothing,
  // checkpointing lets go of the input and of what nothing asked it for.
  void end_checkpoint_at(std::size_t o) {
    if (!graph_.is_checkpointed() || o != graph_.first_saver() || splits_) return;
    for (Index t : graph_.checkpoint_inputs()) writer_.unrefer(t);
    if (!graph_.is_flat()) writer_.drop_kept();
  }

  // --- after the node: gradients go where they belong ---

  void hand_on(const Operation& op, const Contributions& contributions) {
    for (const Contribution& each : contributions)
      if (graph_.needs_gradient(each.tensor) || graph_.is_flat()) accumulate(each);
      else if (gradient(each.gradient).references == 1) dying_.push_back(gradient(each.gradient).slot);
    if (!splits_)
      for (std::int32_t slot : weights_.settle(op)) dying_.push_back(slot);
    free_dying();
    if (!splits_) weights_.store(op);
  }

  void free_dying() {
    for (std::int32_t slot : std::exchange(dying_, {})) writer_.free(slot);
  }

  void accumulate(const Contribution& added) {
    std::int32_t& place = gradient_of_[at(added.tensor)];
    if (place == kNoGradient) {
      place = added.gradient;
      return;
    }
    // A narrower view stands for another tensor (module_model.cpp): nothing is added up.
    const std::int64_t bytes = bytes_of(place, added.tensor);
    const std::int64_t others = bytes_of(added.gradient, added.tensor);
    if (bytes != others) return drop(bytes < others ? std::exchange(place, added.gradient) : added.gradient);
    settle(place);
    settle(added.gradient);
    LayerStep step = {.kind = LayerStep::Kind::kSum, .inputs = {gradient(place).slot, gradient(added.gradient).slot}};
    if (!regions_.runs) {
      if (regions_.made_by[at(added.tensor)] >= 0) ++regions_.parts[at(added.tensor)];
      else add_kernel(Function::kAdd, 3 * bytes);
    }
    // autograd adds to what it alone has (can_accumulate_inplace): of a loss, where it shows.
    const Gradient& first = gradient(place);
    const bool is_alone = graph_.is_loss() && !graph_.is_flat() && !regions_.runs && first.references == 1 &&
                          writer_.program().slots[at(first.slot)].bytes == allocated_size(bytes);
    if (is_alone) {
      drop(added.gradient);
    } else if (graph_.is_flat() && gradient(added.gradient).references == 1) {
      drop(std::exchange(place, added.gradient));
    } else {
      const std::int32_t sum = make_gradient(bytes, graph_.tensor(added.tensor).name + ".grad sum");
      drop(std::exchange(place, sum));
      if (graph_.is_flat()) drop(added.gradient);
      else if (--gradient(added.gradient).references == 0) dying_.push_back(gradient(added.gradient).slot);
    }
    step.outputs = {gradient(place).slot};
    writer_.end_step(std::move(step));
  }

  // Of a tensor's gradient, which may be narrower.
  std::int64_t bytes_of(std::int32_t g, Index tensor) const {
    const std::int64_t whole = graph_.bytes(tensor);
    const std::int32_t slot = gradients_[at(g)].slot;
    const std::vector<Slot>& slots = writer_.program().slots;
    if (graph_.is_flat() || slot < 0 || at(slot) >= slots.size()) return whole;
    const std::int64_t bytes = slots[at(slot)].bytes.count();
    return bytes > 0 && bytes < whole ? bytes : whole;
  }

  // --- a reentrant checkpoint ---

  void hold_output() {
    const Index output = graph_.reentrant_output();
    if (output < 0 || output_gradient_ != kNoGradient || gradient_of_[at(output)] == kNoGradient) return;
    output_gradient_ = share(gradient_of_[at(output)]);
  }

  void let_go_of_output() {
    if (output_gradient_ == kNoGradient) return;
    writer_.unname(graph_.reentrant_output());
    drop(output_gradient_);
  }

  // --- the layer's ends ---

  void begin() {
    const Index output = graph_.layer().output;
    if (!graph_.is_loss()) {
      const std::int32_t holders = graph_.options().ends_stage ? 2 : 1;
      gradients_.push_back({LayerProgramWriter::kOutputGradSlot, holders});
      if (graph_.options().gradient_in_flight) gradients_.back().flight = LayerCall::kOfLayerBefore;
      gradient_of_[at(output)] = 0;
      return;
    }
    writer_.enter(0);
    const std::int32_t ones = make_gradient(4, "loss.grad");
    gradient_of_[at(output)] = ones;
    if (graph_.is_flat()) return;
    share(ones);  // made before backward and held until its end
    writer_.program().slots[at(gradient(ones).slot)].category = MemoryCategory::kActivation;
  }

  void end() {
    const Index output = graph_.layer().output;
    if (graph_.is_flat()) {
      for (std::size_t t = 1; t < graph_.tensors(); ++t) {
        const auto tensor = static_cast<Index>(t);
        const bool is_result = graph_.is_loss() && tensor == output;
        if (is_result || writer_.is_unpopped(tensor)) writer_.unrefer(tensor);
      }
    } else if (graph_.is_loss()) {
      writer_.enter(LayerSegment::kAfter);
      drop(0);
      for (std::size_t o = 0; splits_ && o < graph_.operations(); ++o) {  // Tensor.detach_
        if (!graph_.has_node(o)) continue;
        for (const Index t : graph_.saves(o)) writer_.unrefer(t);
      }
      writer_.begin_segment(LayerSegment::kAfter);
      writer_.unname(output);
    }
    const Index joined = graph_.layer().joins;
    if (graph_.needs_gradient(0) && graph_.has_input_buffer()) hand_back(0, LayerProgramWriter::kInputGradSlot);
    if (joined >= 0 && graph_.needs_gradient(joined)) hand_back(joined, LayerProgramWriter::kWaitingGradSlot);
  }

  // The gradient of an input of the layer takes the slot that the layer before frees.
  void hand_back(Index input, std::int32_t place) {
    LayerPhaseProgram& phase = writer_.phase();
    const std::int32_t last = gradient_of_[at(input)];
    FORESHARD_CHECK(last != kNoGradient, "no gradient reaches the layer's input");
    const Gradient& g = gradient(last);
    FORESHARD_CHECK(g.slot != LayerProgramWriter::kOutputGradSlot && g.references == 1,
        "the gradient of the layer's input is not its own buffer");
    if (g.flight >= 0) {
      phase.open_launch = g.flight;
      phase.open_slot = g.kept;
    }
    std::ranges::replace(phase.actions, g.slot + 1, place + 1);
    for (LayerStep& step : phase.steps) {
      std::ranges::replace(step.inputs, g.slot, place);
      std::ranges::replace(step.outputs, g.slot, place);
    }
    // Its old slot holds nothing and is never allocated.
    std::vector<Slot>& slots = writer_.program().slots;
    Bytes made = std::exchange(slots[at(g.slot)].bytes, Bytes(0));
    // (Inside of a region it had none, where the input is what the region works in.)
    if (made == Bytes(0)) made = allocated_size(graph_.bytes(input));
    if (place == LayerProgramWriter::kInputGradSlot) slots[1].bytes = made;
  }

  LayerProgramWriter& writer_;
  const LayerAutograd& graph_;
  const bool splits_;
  WeightGradients weights_;
  std::vector<std::int32_t> gradient_of_;  // tensors, into gradients_
  std::vector<std::int32_t> captured_;     // operations: slots, where weights' gradients come later
  std::vector<Gradient> gradients_;
  bool recomputed_ = false;
  std::int32_t output_gradient_ = kNoGradient;  // of a reentrant checkpoint's output
  Slots dying_;                                 // they go when autograd's engine is done with the node
  struct InRegions {
    bool runs = false;                // the node that runs is in a region
    Indices made_by;                  // tensors: the region that makes it; -1
    std::vector<std::int64_t> parts;  // of their gradients, which the region sums
  } regions_;
  std::int32_t held_ = kNoGradient;  // by a node of several collectives, until its last
  FusedRegion region_;
};

}

void write_backward(LayerProgramWriter& writer) {
  writer.begin(writer.program().backward);
  if (!writer.graph().is_checkpointed()) copy_stacked(writer, Pass::kBackward);
  Backward backward(writer);
  const LayerAutograd& graph = writer.graph();
  const bool is_leaf = graph.layer().role == LayerRole::kEmbedding && graph.options().input_needs_gradient;
  if (graph.needs_gradient(graph.layer().output)) backward.run();
  else if (is_leaf) writer.free(LayerProgramWriter::kOutputGradSlot);  // Lora::input_require_grads
  writer.end();
}

}
