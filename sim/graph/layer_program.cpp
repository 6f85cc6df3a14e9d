// How a layer's allocations follow from its operations.
//
// Tensors name storages; a storage dies with its last reference. References are Python's names
// (they end where Operation::released says, else after the last use), what autograd saved, what
// checkpointing keeps, and outside of the layer the names of its input and output. An operation has
// a node in autograd's graph, and saves, only where one of its inputs or weights needs a gradient;
// a matrix product and a lookup save their input only for the weight's gradient.
//
// Forward walks the operations in order. Under recompute nothing that they save is kept but the
// layer's input, and under selective recompute the outputs of the kept operations.
//
// Recompute walks them again with fresh storages, without the kept operations, and stops early like
// PyTorch's non-reentrant checkpoint: as soon as everything that backward needs has been saved
// again. An operation that saves only its inputs is not executed for that (the hook raises before
// its kernel is issued). What checkpointing holds goes when the first operation's node is done.
//
// Backward walks the nodes in reverse, as autograd's engine does for a chain. A node allocates the
// gradients of its weights and inputs; sums and casts that give a gradient its tensor's shape and
// dtype follow (validate_outputs); it drops the gradient of its output, then what it had saved
// (recomputed tensors go before, with the node's local names). Gradients that meet at a tensor are
// added into a new buffer. Then weight gradients are stored, which is when they become the
// parameter's: added to an earlier call's, or to the one that exists.
//
// The native engine (GradientStorage::kFlat) lets go of everything after its last use and adds in
// place.
//
// Held against the allocation log of PyTorch 2.11 in tests/sim/graph/layer_program_test.cpp.
#include "sim/graph/layer_program.h"

#include <algorithm>
#include <array>
#include <utility>

#include "sim/base/error.h"
#include "sim/graph/fused_region.h"
#include "sim/graph/layer_casts.h"
#include "sim/graph/layer_kernels.h"
#include "sim/graph/layer_modules.h"

namespace foreshard {
namespace {

// Places for the next layer's slots until the number of own slots is known.
constexpr std::int32_t kOutputSlot = 1 << 28;
constexpr std::int32_t kOutputGradSlot = kOutputSlot + 1;
constexpr std::int32_t kWaitingSlot = LayerPhaseProgram::kWaiting;
constexpr std::int32_t kWaitingGradSlot = kWaitingSlot + 1;
constexpr std::int32_t kInputSlot = 0;
constexpr std::int32_t kInputGradSlot = 1;
constexpr std::int32_t kNoSlot = -1;
constexpr std::int32_t kNoStorage = -1;

using Index = std::int16_t;
using Indices = std::vector<Index>;

std::size_t index(Index t) { return static_cast<std::size_t>(t); }
Index narrow(std::size_t t) { return static_cast<Index>(t); }

class Deriver {
 public:
  Deriver(const LayerSpec& layer, const ProgramOptions& options)
      : casts_(with_casts(layer, options)),
        layer_(casts_.layer ? *casts_.layer : layer),
        options_(options),
        tensors_(layer_.tensors.size()),
        elements_(element_types(layer_, casts_, options)) {
    bytes_.reserve(tensors_);
    for (std::size_t t = 0; t < tensors_; ++t) {
      const TensorSpec& spec = layer_.tensors[t];
      bytes_.push_back(spec.in_registers
                           ? 0
                           : checked_multiply(elements(spec, options.batch, options.sequence),
                                              elements_[t].size()));
    }
    const std::int64_t input = has_input_buffer() ? bytes_[0] : options.waiting_bytes;
    add_slot(MemoryCategory::kActivation, input, "input");
    add_slot(MemoryCategory::kBackwardTemp, input, "input.grad");
  }

  LayerProgram derive() {
    find_release_points();
    find_nodes();
    find_modules();
    run_forward();
    if (checkpointed_) run_recompute();
    run_backward();
    return finish();
  }

 private:
  struct Storage {
    std::int32_t slot = kNoSlot;
    std::int32_t references = 0;
    bool border = false;  // the layer's output: the next layer frees it
  };
  struct Gradient {
    std::int32_t slot = kNoSlot;
    std::int32_t references = 0;
  };
  struct Contribution {
    Index tensor;
    std::int32_t gradient;
  };
  struct WeightGradient {
    Index parameter;
    std::int32_t slot;
  };

  // Token ids belong to the micro-batch, not to the embedding.
  bool has_input_buffer() const { return layer_.role != LayerRole::kEmbedding; }
  bool is_loss() const { return layer_.role == LayerRole::kLoss; }
  bool is_flat() const { return options_.gradients == GradientStorage::kFlat; }
  KernelCounts counts() const { return {layer_, options_, bytes_}; }

  // --- actions ---

  std::int32_t add_slot(MemoryCategory category, std::int64_t bytes, std::string name) {
    program_.slots.push_back({category, allocated_size(bytes), std::move(name), category});
    return static_cast<std::int32_t>(program_.slots.size()) - 1;
  }
  static void allocate(LayerPhaseProgram& phase, std::int32_t slot) {
    phase.actions.push_back(slot + 1);
  }
  static void free(LayerPhaseProgram& phase, std::int32_t slot) {
    phase.actions.push_back(-(slot + 1));
  }
  static bool is_store(std::int32_t action) { return action >= LayerPhaseProgram::kStore; }

  static void close_segment(LayerPhaseProgram& phase) {
    if (phase.segments.empty()) return;
    phase.segments.back().actions_end = static_cast<std::uint32_t>(phase.actions.size());
    phase.segments.back().kernels_end = static_cast<std::uint32_t>(phase.kernels.size());
  }
  void enter(LayerPhaseProgram& phase, std::int8_t part) const {
    if (part > 0 && !options_.split_parts) part = 0;
    if (!phase.segments.empty() && phase.segments.back().part == part &&
        !phase.segments.back().host_waits) {
      return;
    }
    close_segment(phase);
    phase.segments.push_back({});
    phase.segments.back().part = part;
  }

  // --- hooks ---

  void find_modules() {
    if (!options_.hooks) return;
    modules_ = modules_of(layer_);
    first_use_.assign(modules_.size(), layer_.operations.size());
    last_use_.assign(modules_.size(), 0);
    for (std::size_t o = 0; o < layer_.operations.size(); ++o) {
      for (std::int16_t m = module_of(o); m >= 0; m = modules_[index(m)].parent) {
        first_use_[index(m)] = std::min(first_use_[index(m)], o);
        last_use_[index(m)] = o;
      }
    }
  }

  // The module whose weights the operation reads; -1: none.
  std::int16_t module_of(std::size_t o) const {
    const Operation& op = layer_.operations[o];
    if (op.parameters.empty()) return -1;
    const auto owner =
        std::find_if(modules_.begin(), modules_.end(), [&](const LayerModule& module) {
          const auto& own = module.parameters;
          return std::find(own.begin(), own.end(), op.parameters.front()) != own.end();
        });
    return owner == modules_.end() ? std::int16_t{-1}
                                   : static_cast<std::int16_t>(owner - modules_.begin());
  }

  void add_hook(LayerPhaseProgram& phase, LayerHook::Kind kind, std::int16_t what) const {
    if (!options_.hooks) return;
    if (phase.segments.empty()) phase.segments.push_back({});
    const std::size_t last = phase.segments.size() - 1;
    const bool is_empty =
        (last == 0 ? 0 : phase.segments[last - 1].actions_end) == phase.actions.size() &&
        (last == 0 ? 0 : phase.segments[last - 1].kernels_end) == phase.kernels.size();
    if (!is_empty) {
      const std::int8_t part = phase.segments[last].part;
      close_segment(phase);
      phase.segments.push_back({});
      phase.segments.back().part = part;
    }
    phase.hooks.push_back({kind, what, static_cast<std::uint16_t>(phase.segments.size() - 1)});
  }

  // Modules that begin with the operation, outer ones first, in the order in which the phase runs.
  void enter_modules(LayerPhaseProgram& phase, std::size_t o,
                     const std::vector<std::size_t>& begin) const {
    if (!options_.hooks) return;
    std::vector<std::int16_t> entered;
    for (std::int16_t m = module_of(o); m >= 0; m = modules_[index(m)].parent) {
      if (begin[index(m)] == o) entered.push_back(m);
    }
    for (auto m = entered.rbegin(); m != entered.rend(); ++m) {
      add_hook(phase, LayerHook::Kind::kEnter, *m);
    }
  }
  void exit_modules(LayerPhaseProgram& phase, std::size_t o,
                    const std::vector<std::size_t>& end) const {
    if (!options_.hooks) return;
    for (std::int16_t m = module_of(o); m >= 0; m = modules_[index(m)].parent) {
      if (end[index(m)] == o) add_hook(phase, LayerHook::Kind::kExit, m);
    }
  }

  LayerStep begin_step(LayerStep::Kind kind, std::size_t operation) const {
    LayerStep step;
    step.kind = kind;
    step.operation = static_cast<std::int16_t>(operation);
    return step;
  }
  static void end_step(LayerPhaseProgram& phase, LayerStep step) {
    step.actions_end = static_cast<std::uint32_t>(phase.actions.size());
    step.kernels_end = static_cast<std::uint32_t>(phase.kernels.size());
    phase.steps.push_back(std::move(step));
  }
  std::int32_t slot_of(Index t) const {
    const std::int32_t storage = storage_of_[index(t)];
    return storage == kNoStorage ? kNoSlot : storages_[static_cast<std::size_t>(storage)].slot;
  }
  std::vector<std::int32_t> slots_of(const Indices& tensors) const {
    std::vector<std::int32_t> slots;
    for (Index t : tensors) slots.push_back(slot_of(t));
    return slots;
  }
  const std::string& name_of(Index t) const { return layer_.tensors[index(t)].name; }

  // --- references ---

  Storage& storage(Index t) { return storages_[static_cast<std::size_t>(storage_of_[index(t)])]; }
  void refer(Index t) {
    if (storage_of_[index(t)] != kNoStorage) ++storage(t).references;
  }
  // Returns whether that was the last reference.
  bool unrefer(LayerPhaseProgram& phase, Index t) {
    if (storage_of_[index(t)] == kNoStorage) return false;
    Storage& s = storage(t);
    if (s.slot == kNoSlot || s.references == 0 || --s.references > 0 || s.border) return false;
    free(phase, s.slot);
    return true;
  }
  void unname(LayerPhaseProgram& phase, Index t) {
    if (!named_[index(t)]) return;
    named_[index(t)] = false;
    unrefer(phase, t);
  }

  void use_workspace(const Indices& tensors, LayerPhaseProgram& phase) {
    const auto first = static_cast<std::int32_t>(program_.slots.size());
    for (Index t : tensors) {
      allocate(phase, add_slot(MemoryCategory::kBackwardTemp, bytes_[index(t)], name_of(t)));
    }
    const auto last = static_cast<std::int32_t>(program_.slots.size());
    for (std::int32_t slot = first; slot < last; ++slot) free(phase, slot);
  }

  // An in-place operation's output is the buffer of its input: the bytes change their name.
  void take_over(const Operation& op, LayerPhaseProgram& phase) {
    if (!op.in_place || is_loss()) return;
    const Index input = op.inputs.front();
    FORESHARD_CHECK(savers_[index(input)] == 0, "an in-place input is saved");
    free(phase, storage(input).slot);
    storage(input) = {};
    storage_of_[index(input)] = kNoStorage;
    named_[index(input)] = false;
  }

  bool is_alias(const Operation& op) const {
    if (op.view) return true;
    return op.function == Function::kCast && !op.outputs.empty() && !is_flat() &&
           elements_[index(op.inputs.front())] == elements_[index(op.outputs.front())];
  }

  void make_outputs(std::size_t o, LayerPhaseProgram& phase, MemoryCategory category) {
    const Operation& op = layer_.operations[o];
    for (Index t : op.outputs) {
      if (is_alias(op)) {
        const Index input = op.inputs.front();
        const bool of_batch = storage_of_[index(input)] == 0 && !has_input_buffer();
        storage_of_[index(t)] = of_batch ? kNoStorage : storage_of_[index(input)];
        if (storage_of_[index(t)] == kNoStorage) continue;
      } else {
        const bool border = category == MemoryCategory::kActivation && t == border_ && !is_loss();
        const std::int32_t slot = border ? kOutputSlot
                                         : add_slot(category, bytes_[index(t)],
                                                    category == MemoryCategory::kActivation
                                                        ? name_of(t)
                                                        : name_of(t) + " (recomputed)");
        storage_of_[index(t)] = static_cast<std::int32_t>(storages_.size());
        storages_.push_back({slot, 0, border});
        allocate(phase, slot);
      }
      refer(t);
      named_[index(t)] = true;
    }
    use_workspace(op.forward_workspace, phase);
    if (is_alias(op)) return;
    if (op.region >= 0) {
      region_.forward(op, bytes_, phase);
    } else {
      add_forward_kernels(counts(), op, phase);
    }
  }

  // --- what autograd keeps ---

  // Last operation that reads each tensor, moved later by `released`.
  void find_release_points() {
    std::vector<std::int32_t> last(tensors_, -1);
    std::vector<bool> explicitly(tensors_, false);
    const auto count = static_cast<std::int32_t>(layer_.operations.size());
    for (std::int32_t o = 0; o < count; ++o) {
      const Operation& op = layer_.operations[static_cast<std::size_t>(o)];
      for (Index t : op.outputs) last[index(t)] = o;
      for (Index t : op.inputs) last[index(t)] = o;
    }
    for (const Operation& op : layer_.operations) {
      for (Index t : op.released) explicitly[index(t)] = true;
    }
    releases_.assign(layer_.operations.size(), {});
    for (std::size_t o = 0; o < releases_.size(); ++o) {
      releases_[o] = layer_.operations[o].released;
    }
    // The caller holds the layer's input; the native engine lets go of it like of any other.
    releases_input_ = explicitly[0] || is_flat();
    for (std::size_t t = 0; t < tensors_; ++t) {
      if (explicitly[t] || last[t] < 0 || (t == 0 && !releases_input_)) continue;
      if (is_cast_input(narrow(t))) continue;  // an argument of the module, as the input itself
      releases_[static_cast<std::size_t>(last[t])].push_back(narrow(t));
    }
    // The tensor whose storage the output is.
    border_ = layer_.output;
    for (std::size_t o = layer_.operations.size(); o-- > 0;) {
      const Operation& op = layer_.operations[o];
      if (is_alias(op) &&
          std::find(op.outputs.begin(), op.outputs.end(), border_) != op.outputs.end()) {
        border_ = op.inputs.front();
      }
    }
  }

  bool is_cast_input(Index t) const {
    // (A final norm's is only its call's; the head is called after that.)
    if (layer_.operations.empty() || layer_.role == LayerRole::kFinalNorm) return false;
    const Operation& first = layer_.operations.front();
    return first.part == LayerSegment::kBefore && first.outputs.front() == t;
  }

  bool is_frozen(Index p) const {
    return !layer_.parameters[index(p)].trainable ||
           (!options_.frozen.empty() && options_.frozen[index(p)]);
  }
  bool is_ignored(Index p) const {
    return options_.ignores_norms && layer_.parameters[index(p)].is_norm;
  }

  void find_nodes() {
    const std::size_t count = layer_.operations.size();
    needs_.assign(tensors_, false);
    needs_[0] = options_.grad_mode && options_.input_needs_gradient && has_input_buffer();
    if (layer_.joins >= 0) {
      needs_[index(layer_.joins)] = options_.grad_mode && options_.joined_needs_gradient;
    }
    const std::vector<bool> reached = find_reached();
    node_.assign(count, false);
    trains_.assign(count, false);
    savers_.assign(tensors_, 0);
    first_saver_ = count;
    for (std::size_t o = 0; o < count; ++o) {
      const Operation& op = layer_.operations[o];
      if (!reached[o]) continue;
      for (Index p : op.parameters) {
        if (options_.grad_mode && !is_frozen(p)) trains_[o] = true;
      }
      node_[o] = trains_[o] || (op.gradient != GradientRule::kNone &&
                                std::any_of(op.inputs.begin(), op.inputs.end(),
                                            [&](Index t) { return needs_[index(t)]; }));
      if (!node_[o]) continue;
      if (op.view) {
        for (Index t : op.outputs) needs_[index(t)] = true;
      } else if (!op.outputs.empty()) {
        needs_[index(op.outputs.front())] = true;
      }
      for (Index t : saves(o)) ++savers_[index(t)];
      if (saves_anything(o)) {
        first_saver_ = std::min(first_saver_, o);
        last_saver_ = o;
      }
    }
    checkpointed_ = options_.recompute != Recompute::kNone && first_saver_ < count;
  }

  // Operations that a gradient of the layer's output reaches: autograd forgets what nothing refers
  // to.
  std::vector<bool> find_reached() const {
    std::vector<bool> reached(layer_.operations.size(), false);
    std::vector<bool> wanted(tensors_, false);
    wanted[index(layer_.output)] = true;
    for (std::size_t o = reached.size(); o-- > 0;) {
      const Operation& op = layer_.operations[o];
      reached[o] = std::any_of(op.outputs.begin(), op.outputs.end(),
                               [&](Index t) { return wanted[index(t)]; });
      if (!reached[o] || op.gradient == GradientRule::kNone) continue;
      for (Index t : op.inputs) wanted[index(t)] = true;
    }
    return reached;
  }

  const Indices& saves(std::size_t o) const {
    static const Indices kNothing;
    const Operation& op = layer_.operations[o];
    if (!node_[o]) return kNothing;
    const bool for_weight = op.kind == OperationKind::kGemm || op.kind == OperationKind::kEmbedding;
    return for_weight && !trains_[o] ? kNothing : op.saved;
  }
  // Weights count here: they are saved for the input's gradient.
  bool saves_anything(std::size_t o) const {
    return inside(o) && node_[o] &&
           (!saves(o).empty() || layer_.operations[o].kind == OperationKind::kGemm);
  }
  // Casts at the unit's borders are outside of what is checkpointed.
  bool inside(std::size_t o) const { return layer_.operations[o].part >= 0; }

  // What an in-place operation makes of a kept tensor is that tensor's buffer, so it is kept too.
  bool kept(const Operation& op) const {
    if (options_.recompute != Recompute::kSelective || !options_.grad_mode) return false;
    return op.kept_by_selective || (op.in_place && kept_tensor_[index(op.inputs.front())]);
  }

  // What is checkpointed starts from: the layer's input or its cast.
  Index checkpoint_input() const {
    for (std::size_t o = 0; o < layer_.operations.size(); ++o) {
      if (inside(o)) return o == 0 ? Index{0} : layer_.operations[o - 1].outputs.front();
    }
    return 0;
  }

  // --- forward ---

  void run_forward() {
    kept_tensor_.assign(tensors_, false);
    storage_of_.assign(tensors_, kNoStorage);
    named_.assign(tensors_, false);
    storages_.reserve(tensors_ * 2);
    storage_of_[0] = 0;
    storages_.push_back({kInputSlot, has_input_buffer() ? 1 : 0, false});
    named_[0] = has_input_buffer();
    if (layer_.joins >= 0) {
      storage_of_[index(layer_.joins)] = 1;
      storages_.push_back({kWaitingSlot, 1, false});
      named_[index(layer_.joins)] = true;
    }
    region_ = {};
    LayerPhaseProgram& phase = program_.forward;
    for (std::size_t o = 0; o < layer_.operations.size(); ++o) {
      const Operation& op = layer_.operations[o];
      enter(phase, op.part);
      enter_modules(phase, o, first_use_);
      LayerStep step = begin_step(LayerStep::Kind::kForward, o);
      step.inputs = slots_of(op.inputs);
      const bool keeps = kept(op);
      take_over(op, phase);
      make_outputs(o, phase, MemoryCategory::kActivation);
      if (keeps) {
        for (Index t : op.outputs) {
          kept_tensor_[index(t)] = true;
          refer(t);
        }
      }
      if (!checkpointed_ || !inside(o)) {
        for (Index t : saves(o)) refer(t);
      } else if (o == first_inside()) {
        refer(checkpoint_input());
      }
      for (Index t : releases_[o]) {
        if (t == layer_.output && (is_loss() || is_flat())) continue;
        unname(phase, t);
      }
      step.outputs = slots_of(op.outputs);
      end_step(phase, std::move(step));
      phase.segments.back().host_waits = op.host_reads;
      const bool leaves = o + 1 == layer_.operations.size() || !inside(o + 1);
      if (inside(o) && leaves && !checkpointed_) drop_kept(phase);
      exit_modules(phase, o, last_use_);
    }
    for (std::size_t t = tensors_; t-- > 0;) {
      const Index argument = narrow(t);
      if (!named_[t] || (t != 0 && !is_cast_input(argument))) continue;
      if (storage(argument).references == 1) enter(phase, LayerSegment::kAfter);
      unname(phase, argument);
    }
    close_segment(phase);
    std::vector<bool> listed(storages_.size(), false);
    for (std::size_t t = 1; t < tensors_; ++t) {
      const std::int32_t s = storage_of_[t];
      if (s == kNoStorage || s == 0 || listed[static_cast<std::size_t>(s)]) continue;
      const Storage& each = storages_[static_cast<std::size_t>(s)];
      if (each.border || each.references == 0 || each.slot == kWaitingSlot) continue;
      listed[static_cast<std::size_t>(s)] = true;
      program_.saved.push_back(each.slot);
    }
    output_bytes_ = is_loss() ? 0 : bytes_[index(layer_.output)];
  }

  std::size_t first_inside() const {
    std::size_t o = 0;
    while (o + 1 < layer_.operations.size() && !inside(o)) ++o;
    return o;
  }

  // Selective recompute's cache: a dictionary of lists by operator, which lose their last element
  // first.
  void drop_kept(LayerPhaseProgram& phase) {
    std::vector<Function> operators;
    for (std::size_t o = 0; o < layer_.operations.size(); ++o) {
      const Operation& op = layer_.operations[o];
      if (!op.outputs.empty() && kept_tensor_[index(op.outputs.front())] &&
          std::find(operators.begin(), operators.end(), op.function) == operators.end()) {
        operators.push_back(op.function);
      }
    }
    for (Function each : operators) {
      for (std::size_t o = layer_.operations.size(); o-- > 0;) {
        const Operation& op = layer_.operations[o];
        if (op.function != each) continue;
        for (std::size_t i = op.outputs.size(); i-- > 0;) {
          const Index t = op.outputs[i];
          if (kept_tensor_[index(t)] && !popped_[index(t)]) unrefer(phase, t);
          kept_tensor_[index(t)] = false;
        }
      }
    }
  }

  // --- recompute ---

  // Operations [0, stop) are executed again.
  std::size_t recompute_stop() const {
    if (!options_.early_stop) return layer_.operations.size();
    const Operation& op = layer_.operations[last_saver_];
    const Indices& saved = saves(last_saver_);
    const bool saves_output = std::any_of(saved.begin(), saved.end(), [&](Index t) {
      return std::find(op.outputs.begin(), op.outputs.end(), t) != op.outputs.end();
    });
    return saves_output ? last_saver_ + 1 : last_saver_;
  }

  void run_recompute() {
    region_ = {};
    LayerPhaseProgram& phase = program_.recompute;
    const std::size_t stop = recompute_stop();
    for (std::size_t o = 0; o < stop; ++o) {
      if (!inside(o)) continue;
      const Operation& op = layer_.operations[o];
      const bool from_cache = kept(op);
      enter(phase, op.part);
      enter_modules(phase, o, first_use_);
      LayerStep step = begin_step(LayerStep::Kind::kForward, o);
      if (from_cache) {
        for (Index t : op.outputs) {
          named_[index(t)] = storage_of_[index(t)] != kNoStorage;
          popped_[index(t)] = true;
        }
      } else {
        step.inputs = slots_of(op.inputs);
        take_over(op, phase);
        make_outputs(o, phase, MemoryCategory::kRecomputedActivation);
        step.outputs = slots_of(op.outputs);
      }
      for (Index t : saves(o)) refer(t);
      for (Index t : releases_[o]) {
        if (t != 0) unname(phase, t);
      }
      if (!from_cache) end_step(phase, std::move(step));
      phase.segments.back().host_waits = op.host_reads;
      exit_modules(phase, o, last_use_);
    }
    if (stop == last_saver_) {
      enter_modules(phase, stop, first_use_);
      for (Index t : saves(stop)) refer(t);  // packed before its kernel would be issued
    }
    // References that would have ended in operations not executed any more end with the early stop.
    for (std::size_t o = stop; o < layer_.operations.size(); ++o) {
      for (Index t : releases_[o]) {
        if (t != 0) unname(phase, t);
      }
    }
    close_segment(phase);
  }

  // --- backward ---

  void drop_gradient(std::int32_t gradient) {
    Gradient& g = gradients_[static_cast<std::size_t>(gradient)];
    if (--g.references == 0) free(program_.backward, g.slot);
  }

  std::int32_t new_gradient(std::int64_t bytes, std::string name) {
    const std::int32_t slot = add_slot(MemoryCategory::kBackwardTemp, bytes, std::move(name));
    allocate(program_.backward, slot);
    gradients_.push_back({slot, 1});
    return static_cast<std::int32_t>(gradients_.size()) - 1;
  }

  // In a forward operation's broadcast, an input that all sequences share.
  bool is_broadcast(Index input, const Operation& op) const {
    const TensorSpec& from = layer_.tensors[index(input)];
    return from.per_token == 0 && layer_.tensors[index(op.outputs.front())].per_token > 0;
  }

  std::int64_t gradient_bytes(Index p, DType dtype) const {
    return checked_multiply(layer_.parameters[index(p)].numel(), size_of(dtype));
  }
  DType dtype_of(Index p) const { return is_ignored(p) ? options_.stored : options_.compute; }
  DType gradient_dtype_of(Index p) const {
    return is_ignored(p) ? options_.stored : options_.gradient_dtype.value_or(options_.compute);
  }

  void flat_weight_gradient(const Operation& op) {
    if (options_.flat_gradient == options_.compute || op.kind != OperationKind::kGemm) return;
    const Index p = op.parameters.front();
    const std::int32_t slot =
        add_slot(MemoryCategory::kBackwardTemp, gradient_bytes(p, options_.compute),
                 layer_.parameters[index(p)].name);
    allocate(program_.backward, slot);
    free(program_.backward, slot);
  }

  // Gradients of the weights in the dtype that the kernel makes: a norm's in its weight's, other
  // ones in the incoming gradient's. A bias is a sum over the incoming gradient: settled later.
  void weight_gradients(const Operation& op) {
    if (is_flat()) return flat_weight_gradient(op);
    const bool norm = op.kind == OperationKind::kNorm;
    for (Index p : op.parameters) {
      if (!norm && (is_frozen(p) || p != op.parameters.front())) continue;
      const DType made =
          norm ? dtype_of(op.parameters.front()) : elements_[index(op.outputs.front())].dtype;
      const std::int32_t slot = add_slot(MemoryCategory::kBackwardTemp, gradient_bytes(p, made),
                                         layer_.parameters[index(p)].name + ".grad");
      allocate(program_.backward, slot);
      fresh_.push_back({p, slot});
    }
  }

  // validate_outputs: every weight's gradient gets its parameter's shape and dtype.
  void validate_weights(const Operation& op) {
    if (is_flat()) return;
    const bool norm = op.kind == OperationKind::kNorm;
    const DType made = norm && !op.parameters.empty() ? dtype_of(op.parameters.front())
                                                      : elements_[index(op.outputs.front())].dtype;
    for (std::size_t i = 1; !norm && i < op.parameters.size(); ++i) {
      const Index p = op.parameters[i];
      if (is_frozen(p)) continue;
      const std::int32_t slot = add_slot(MemoryCategory::kBackwardTemp, gradient_bytes(p, made),
                                         layer_.parameters[index(p)].name + ".grad");
      allocate(program_.backward, slot);
      fresh_.push_back({p, slot});
    }
    for (WeightGradient& each : fresh_) {
      // A linear layer's weight is used transposed: the node between casts, once this one is done.
      const bool later = op.kind == OperationKind::kGemm &&
                         each.parameter == op.parameters.front() &&
                         layer_.parameters[index(each.parameter)].shape.size() == 2;
      const DType wanted = later ? dtype_of(each.parameter) : gradient_dtype_of(each.parameter);
      if (wanted == made) continue;
      const std::int32_t cast =
          add_slot(MemoryCategory::kBackwardTemp, gradient_bytes(each.parameter, wanted),
                   layer_.parameters[index(each.parameter)].name + ".grad");
      allocate(program_.backward, cast);
      add_memory_kernel(
          program_.backward, Function::kCast, Pass::kBackward,
          layer_.parameters[index(each.parameter)].numel() * (size_of(made) + size_of(wanted)));
      free(program_.backward, each.slot);
      each.slot = cast;
    }
  }

  void input_gradients(const Operation& op, std::int32_t incoming, LayerStep& step,
                       std::vector<Contribution>& contributions) {
    const auto needed = [&](Index t) {
      // A custom function makes all of its gradients, as the attention kernels do.
      return needs_[index(t)] || op.kind == OperationKind::kNorm ||
             op.kind == OperationKind::kAttention || is_flat();
    };
    const bool alias_first = op.gradient == GradientRule::kAliasFirst;
    Index last = -1;
    for (Index t : op.inputs) {
      if (needed(t) && !(alias_first && t == op.inputs.front())) last = t;
    }
    for (Index t : op.inputs) {
      if (!needed(t)) continue;
      if (alias_first && t == op.inputs.front()) {
        ++gradients_[static_cast<std::size_t>(incoming)].references;
        contributions.push_back({t, incoming});
        step.outputs.push_back(gradients_[static_cast<std::size_t>(incoming)].slot);
        continue;
      }
      std::vector<std::int32_t> temporaries;
      if (t == last) {
        for (Index temporary : op.backward_temporaries) {
          const std::int64_t bytes = bytes_[index(temporary)];
          temporaries.push_back(add_slot(MemoryCategory::kBackwardTemp, bytes, name_of(temporary)));
          allocate(program_.backward, temporaries.back());
          add_memory_kernel(program_.backward, Function::kCopy, Pass::kBackward, 2 * bytes);
        }
      }
      const bool wide = op.sums_last && t == op.inputs.back();
      std::int64_t bytes = bytes_[index(wide ? op.outputs.front() : t)];
      if (!wide) bytes = bytes / elements_[index(t)].size() * made_element(op, t).size();
      contributions.push_back({t, new_gradient(bytes, name_of(t) + ".grad")});
      step.outputs.push_back(gradients_.back().slot);
      if (t == last) use_workspace(op.backward_workspace, program_.backward);
      for (std::int32_t slot : temporaries) free(program_.backward, slot);
    }
  }

  // Pointwise and indexing kernels make gradients in the dtype of the one that arrives.
  TensorElement made_element(const Operation& op, Index input) const {
    const bool follows = op.kind == OperationKind::kElementwise && op.function != Function::kCast &&
                         !is_flat() && !op.outputs.empty();
    return elements_[index(follows ? op.outputs.front() : input)];
  }

  // validate_outputs for inputs that are narrower than the operation's output or of another dtype.
  void validate_inputs(const Operation& op, std::vector<Contribution>& contributions) {
    if (op.gradient == GradientRule::kAlias) return;
    for (Contribution& each : contributions) {
      const TensorElement made = made_element(op, each.tensor);
      const TensorElement wanted = elements_[index(each.tensor)];
      const auto replace = [&](std::int64_t bytes) {
        const std::int32_t next = new_gradient(bytes, name_of(each.tensor) + ".grad");
        add_memory_kernel(program_.backward, Function::kAdd, Pass::kBackward,
                          bytes_[index(op.outputs.front())]);
        drop_gradient(std::exchange(each.gradient, next));
      };
      const std::int64_t bytes = bytes_[index(each.tensor)];
      if (op.sums_last && each.tensor == op.inputs.back()) {
        replace(bytes / wanted.size() * made.size());
      }
      if (made != wanted) replace(bytes);
    }
  }

  // A sum hands its output's gradient on, reduced for an input that is broadcast or of another
  // dtype.
  void alias_inputs(const Operation& op, std::int32_t incoming,
                    std::vector<Contribution>& contributions) {
    for (Index t : op.inputs) {
      if (!needs_[index(t)] && !is_flat()) continue;
      const bool casts = elements_[index(t)] != elements_[index(op.outputs.front())];
      if (!is_flat() && is_broadcast(t, op)) {
        const std::int64_t wide = bytes_[index(t)] / elements_[index(t)].size() *
                                  elements_[index(op.outputs.front())].size();
        std::int32_t gradient = new_gradient(wide, name_of(t) + ".grad");
        add_memory_kernel(program_.backward, Function::kAdd, Pass::kBackward,
                          bytes_[index(op.outputs.front())]);
        if (casts) {
          const std::int32_t cast = new_gradient(bytes_[index(t)], name_of(t) + ".grad");
          drop_gradient(std::exchange(gradient, cast));
        }
        contributions.push_back({t, gradient});
      } else if (casts && !is_flat()) {
        contributions.push_back({t, new_gradient(bytes_[index(t)], name_of(t) + ".grad")});
        add_memory_kernel(program_.backward, Function::kCast, Pass::kBackward,
                          bytes_[index(op.outputs.front())] + bytes_[index(t)]);
      } else {
        ++gradients_[static_cast<std::size_t>(incoming)].references;
        contributions.push_back({t, incoming});
      }
    }
  }

  void drop_saved(const Indices& saved) {
    LayerPhaseProgram& phase = program_.backward;
    for (Index t : saved) {
      if (t == 0 && is_flat()) continue;
      unrefer(phase, t);
    }
    if (is_flat() && has_input_buffer()) {
      if (std::find(saved.begin(), saved.end(), Index{0}) != saved.end()) unrefer(phase, 0);
    }
  }

  void settle_weight(const WeightGradient& fresh, bool direct, std::vector<std::int32_t>& dying) {
    LayerPhaseProgram& phase = program_.backward;
    const Index p = fresh.parameter;
    const auto drop = [&](std::int32_t slot) {
      if (direct) {
        dying.push_back(slot);
      } else {
        free(phase, slot);
      }
    };
    if (is_frozen(p)) return drop(fresh.slot);
    std::int32_t slot = fresh.slot;
    const bool adds = options_.sharing == Sharing::kBetween ||
                      options_.sharing == Sharing::kLastOfBackward ||
                      (options_.tied == Tying::kTokenTable && p == 0);
    if (adds) {
      const std::int64_t bytes = gradient_bytes(p, gradient_dtype_of(p));
      slot = add_slot(MemoryCategory::kBackwardTemp, bytes,
                      layer_.parameters[index(p)].name + ".grad sum");
      allocate(phase, slot);
      add_memory_kernel(phase, Function::kAdd, Pass::kBackward, 3 * bytes);
      phase.actions.push_back(-(LayerPhaseProgram::kEarlierGradient + p + 1));
      drop(fresh.slot);
    }
    FORESHARD_CHECK(program_.weight_gradients[index(p)] == kNoSlot,
                    "a parameter is used by two operations of one layer");
    program_.weight_gradients[index(p)] = slot;
    stored_.push_back(p);
  }

  // AccumulateGrad.
  void store(Index p) {
    LayerPhaseProgram& phase = program_.backward;
    std::int32_t& slot = program_.weight_gradients[index(p)];
    const bool earlier = options_.sharing == Sharing::kFirstOfBackward ||
                         options_.sharing == Sharing::kBetween || layer_.parameters[index(p)].tied;
    const std::int64_t bytes = gradient_bytes(p, gradient_dtype_of(p));
    if (allocated_size(bytes) != program_.slots[static_cast<std::size_t>(slot)].bytes) {
      const std::int32_t cast = add_slot(MemoryCategory::kBackwardTemp, bytes,
                                         layer_.parameters[index(p)].name + ".grad");
      allocate(phase, cast);
      add_memory_kernel(phase, Function::kCast, Pass::kBackward,
                        bytes + gradient_bytes(p, dtype_of(p)));
      free(phase, slot);
      slot = cast;
    }
    if (earlier) return;
    const bool exists = options_.existing == ExistingGradients::kAll ||
                        (options_.existing == ExistingGradients::kIgnored && is_ignored(p));
    if (exists) {
      add_memory_kernel(phase, Function::kAdd, Pass::kBackward, 3 * gradient_bytes(p, dtype_of(p)));
      free(phase, slot);
      slot = kNoSlot;
    } else if (!is_ignored(p)) {
      program_.slots[static_cast<std::size_t>(slot)].stored = MemoryCategory::kUnshardedGrad;
      phase.actions.push_back(LayerPhaseProgram::kStore + slot);
    }
    add_hook(phase, LayerHook::Kind::kGradient, p);
  }

  // Everything after the node has run: gradients go where they belong.
  void hand_on(const Operation& op, std::vector<Contribution>& contributions) {
    LayerPhaseProgram& phase = program_.backward;
    std::vector<std::int32_t> dying;  // slots that go when the engine is done with the node
    for (const Contribution& each : contributions) {
      if (!needs_[index(each.tensor)] && !is_flat()) {
        const Gradient& g = gradients_[static_cast<std::size_t>(each.gradient)];
        if (g.references == 1) dying.push_back(g.slot);
        continue;
      }
      accumulate(gradient_of_[index(each.tensor)], each.tensor, each.gradient, dying);
    }
    // A linear layer's weight is transposed before the product: its gradient takes a node more.
    const bool direct = op.kind == OperationKind::kNorm ||
                        (!op.parameters.empty() &&
                         layer_.parameters[index(op.parameters.front())].shape.size() > 2);
    std::vector<WeightGradient> fresh = std::exchange(fresh_, {});
    if (!direct) std::reverse(fresh.begin(), fresh.end());  // so the bias is first
    if (direct) {
      for (const WeightGradient& each : fresh) settle_weight(each, true, dying);
    }
    for (std::int32_t slot : dying) free(phase, slot);
    for (const WeightGradient& each : fresh) {
      if (!direct) settle_weight(each, false, dying);
      for (Index p : std::exchange(stored_, {})) store(p);
    }
  }

  void accumulate(std::int32_t& place, Index tensor, std::int32_t gradient,
                  std::vector<std::int32_t>& dying) {
    if (place == kNoSlot) {
      place = gradient;
      return;
    }
    const std::int64_t bytes = bytes_[index(tensor)];
    const auto slot = [&](std::int32_t g) { return gradients_[static_cast<std::size_t>(g)].slot; };
    LayerStep step;
    step.kind = LayerStep::Kind::kSum;
    step.inputs = {slot(place), slot(gradient)};
    if (in_regions_.made_by[index(tensor)] >= 0) {
      if (!in_regions_.runs) ++in_regions_.parts[index(tensor)];
    } else if (!in_regions_.runs) {
      add_memory_kernel(program_.backward, Function::kAdd, Pass::kBackward, 3 * bytes);
    }
    Gradient& added = gradients_[static_cast<std::size_t>(gradient)];
    if (is_flat() && added.references == 1) {
      drop_gradient(place);
      place = gradient;
    } else {
      const std::int32_t sum = new_gradient(bytes, name_of(tensor) + ".grad sum");
      drop_gradient(place);
      Gradient& late = gradients_[static_cast<std::size_t>(gradient)];
      if (is_flat()) {
        drop_gradient(gradient);
      } else if (--late.references == 0) {
        dying.push_back(late.slot);
      }
      place = sum;
    }
    step.outputs = {slot(place)};
    end_step(program_.backward, std::move(step));
  }

  std::vector<std::int32_t> take_incoming(const Operation& op) {
    std::vector<std::int32_t> incoming;
    const std::size_t count =
        op.view ? op.outputs.size() : std::min<std::size_t>(1, op.outputs.size());
    for (std::size_t i = 0; i < count; ++i) {
      const std::int32_t gradient = std::exchange(gradient_of_[index(op.outputs[i])], kNoSlot);
      if (gradient != kNoSlot) incoming.push_back(gradient);
    }
    return incoming;
  }

  void run_backward() {
    region_ = {};
    LayerPhaseProgram& phase = program_.backward;
    program_.weight_gradients.assign(layer_.parameters.size(), kNoSlot);
    if (!needs_[index(layer_.output)]) return;
    gradient_of_.assign(tensors_, kNoSlot);
    in_regions_.made_by.assign(tensors_, -1);
    in_regions_.parts.assign(tensors_, 1);
    for (const Operation& op : layer_.operations) {
      if (op.region >= 0) in_regions_.made_by[index(op.outputs.front())] = op.region;
    }
    gradients_.reserve(tensors_ * 3);
    if (is_loss()) {
      enter(phase, 0);
      gradient_of_[index(layer_.output)] = new_gradient(4, "loss.grad");
      if (!is_flat()) {  // ones, made before backward and held until its end
        ++gradients_[0].references;
        program_.slots[static_cast<std::size_t>(gradients_[0].slot)].category =
            MemoryCategory::kActivation;
      }
    } else {
      gradients_.push_back({kOutputGradSlot, 1});
      gradient_of_[index(layer_.output)] = 0;
    }
    for (std::size_t o = layer_.operations.size(); o-- > 0;) {
      if (node_[o]) run_node(o);
    }
    end_backward();
    close_segment(phase);
  }

  // The gradient of an expanded view.
  std::int32_t summed_over_copies(const Operation& op, std::int32_t incoming) {
    const Index input = op.inputs.front();
    const TensorSpec& wide = layer_.tensors[index(op.outputs.front())];
    if (!op.view || wide.per_token <= layer_.tensors[index(input)].per_token) return incoming;
    const std::int32_t sum = new_gradient(bytes_[index(input)], name_of(input) + ".grad");
    add_memory_kernel(program_.backward, Function::kAdd, Pass::kBackward,
                      bytes_[index(op.outputs.front())]);
    drop_gradient(incoming);
    return sum;
  }

  // Results of an operator that nobody asked for go when it returns.
  void drop_unneeded(std::vector<Contribution>& contributions) {
    std::erase_if(contributions, [this](const Contribution& each) {
      if (needs_[index(each.tensor)]) return false;
      drop_gradient(each.gradient);
      return true;
    });
  }

  void run_node(std::size_t o) {
    LayerPhaseProgram& phase = program_.backward;
    const Operation& op = layer_.operations[o];
    const std::vector<std::int32_t> incoming = take_incoming(op);
    if (incoming.empty()) return;  // no gradient arrives: the output is not differentiated
    const std::int8_t part = op.part == LayerSegment::kBefore  ? LayerSegment::kAfter
                             : op.part == LayerSegment::kAfter ? LayerSegment::kBefore
                                                               : op.part;
    if (is_alias(op) && op.outputs.size() == 1) {
      std::vector<std::int32_t> dying;
      accumulate(gradient_of_[index(op.inputs.front())], op.inputs.front(),
                 summed_over_copies(op, incoming.front()), dying);
      for (std::int32_t slot : dying) free(phase, slot);
      drop_saved(saves(o));
      return;
    }
    enter(phase, part);
    enter_modules(phase, o, last_use_);
    const std::size_t first_kernel = phase.kernels.size();
    LayerStep step = begin_step(LayerStep::Kind::kBackward, o);
    step.inputs = {gradients_[static_cast<std::size_t>(incoming.front())].slot};
    for (Index t : saves(o)) step.inputs.push_back(slot_of(t));
    std::vector<Contribution> contributions;
    bool dropped = false;
    if (op.gradient == GradientRule::kAlias) {
      alias_inputs(op, incoming.front(), contributions);
      if (trains_[o]) {  // a parameter that is added: its gradient is summed over the batch
        weight_gradients(op);
        add_memory_kernel(phase, Function::kColumnSum, Pass::kBackward,
                          bytes_[index(op.outputs.front())]);
      }
    } else {
      // Their kernels return the input's gradient first: norms; a product with a bias (addmm).
      const bool inputs_first =
          op.kind == OperationKind::kNorm || (op.parameters.size() > 1 && !is_flat());
      if (!inputs_first) weight_gradients(op);
      if (op.gradient != GradientRule::kNone) {
        if (op.in_place && is_loss()) {
          unname(phase, 0);
          unrefer(phase, 0);
        } else if (op.in_place) {
          FORESHARD_CHECK(gradients_[static_cast<std::size_t>(incoming.front())].references == 1,
                          "the gradient of an in-place result is shared");
          drop_gradient(incoming.front());
          dropped = true;
        }
        input_gradients(op, incoming.front(), step, contributions);
      }
      if (inputs_first) weight_gradients(op);
      if (contributions.empty()) use_workspace(op.backward_workspace, phase);
      add_backward_kernels(
          counts(), op, {trains_[o], op.gradient != GradientRule::kNone && !contributions.empty()},
          phase);
    }
    if (op.kind == OperationKind::kAttention && !is_flat()) drop_unneeded(contributions);
    const Indices& saved = saves(o);
    const bool unpacked = checkpointed_ && inside(o) && !is_flat();
    if (unpacked) {
      drop_saved(Indices(saved.rbegin(), saved.rend()));
    }
    validate_weights(op);
    validate_inputs(op, contributions);
    if (!dropped) {
      for (std::int32_t gradient : incoming) drop_gradient(gradient);
    }
    if (!unpacked) drop_saved(saved);
    if (checkpointed_ && o == first_saver_) end_checkpoint();
    if (op.gradient != GradientRule::kAlias) end_step(phase, std::move(step));
    // What the norm's input gets from elsewhere is added outside of the norm.
    in_regions_.runs = op.region >= 0;
    if (in_regions_.runs) replace_by_region(o, first_kernel);
    const bool begins_norm = o == 0 || !layer_.operations[o - 1].eager_norm;
    if (begins_norm) mark_eager_norm(op, first_kernel, phase);
    hand_on(op, contributions);
    in_regions_.runs = false;
    if (!begins_norm) mark_eager_norm(op, first_kernel, phase);
    exit_modules(phase, o, first_use_);
  }

  // The kernels of operation `o` since `first` are part of its region's.
  void replace_by_region(std::size_t o, std::size_t first) {
    const Operation& op = layer_.operations[o];
    program_.backward.kernels.resize(first);
    FusedRegion::Derivative derivative{in_regions_.parts[index(op.outputs.front())], saves(o), {}};
    for (Index t : op.inputs) {
      if (!needs_[index(t)]) continue;
      const bool casts = elements_[index(t)] != elements_[index(op.outputs.front())];
      derivative.gradients.push_back({t, gradient_of_[index(t)] != kNoSlot,
                                      op.gradient == GradientRule::kAlias && !casts,
                                      in_regions_.made_by[index(t)] == op.region});
    }
    region_.backward(op, derivative, bytes_, program_.backward);
  }

  // Checkpointing lets go of the input and of what nothing asked it for.
  void end_checkpoint() {
    unrefer(program_.backward, checkpoint_input());
    if (!is_flat()) drop_kept(program_.backward);
  }

  void end_backward() {
    LayerPhaseProgram& phase = program_.backward;
    if (is_flat()) {
      for (std::size_t t = 1; t < tensors_; ++t) {
        const bool kept_unused = kept_tensor_[t] && !popped_[t];
        if (kept_unused || (is_loss() && narrow(t) == layer_.output)) unrefer(phase, narrow(t));
      }
    } else if (is_loss()) {
      enter(phase, LayerSegment::kAfter);
      drop_gradient(0);
      unname(phase, layer_.output);
    }
    if (needs_[0] && has_input_buffer()) hand_back(0, kInputGradSlot);
    if (layer_.joins >= 0 && needs_[index(layer_.joins)]) hand_back(layer_.joins, kWaitingGradSlot);
  }

  // The gradient of an input of the layer takes the slot that the layer before frees.
  void hand_back(Index input, std::int32_t place) {
    LayerPhaseProgram& phase = program_.backward;
    const std::int32_t final_gradient = gradient_of_[index(input)];
    FORESHARD_CHECK(final_gradient != kNoSlot, "no gradient reaches the layer's input");
    const Gradient& g = gradients_[static_cast<std::size_t>(final_gradient)];
    FORESHARD_CHECK(g.slot != kOutputGradSlot && g.references == 1,
                    "the gradient of the layer's input is not its own buffer");
    for (std::int32_t& action : phase.actions) {
      if (action == g.slot + 1) action = place + 1;
    }
    for (LayerStep& step : phase.steps) {
      std::replace(step.inputs.begin(), step.inputs.end(), g.slot, place);
      std::replace(step.outputs.begin(), step.outputs.end(), g.slot, place);
    }
    // Its old slot holds nothing and is never allocated.
    program_.slots[static_cast<std::size_t>(g.slot)].bytes = Bytes(0);
  }

  // --- end ---

  std::int64_t change(std::int32_t action) const {
    if (is_store(action)) return 0;
    const std::int32_t slot = (action > 0 ? action : -action) - 1;
    std::int64_t bytes = 0;
    if (slot >= LayerPhaseProgram::kEarlierGradient) {
      const Index p = static_cast<Index>(slot - LayerPhaseProgram::kEarlierGradient);
      bytes = allocated_size(gradient_bytes(p, gradient_dtype_of(p))).count();
    } else if (slot >= kWaitingSlot) {
      bytes = allocated_size(bytes_[index(layer_.joins)]).count();
    } else {
      bytes = slot_bytes(slot);
    }
    return action > 0 ? bytes : -bytes;
  }

  std::int64_t slot_bytes(std::int32_t slot) const {
    const auto own = static_cast<std::int32_t>(program_.slots.size());
    if (slot < own) return program_.slots[static_cast<std::size_t>(slot)].bytes.count();
    return slot == own ? program_.output_bytes.count() : program_.output_grad_bytes.count();
  }

  void finish_phase(LayerPhaseProgram& phase) const {
    const auto own = static_cast<std::int32_t>(program_.slots.size());
    const auto is_border = [](std::int32_t slot) {
      return slot == kOutputSlot || slot == kOutputGradSlot;
    };
    for (std::int32_t& action : phase.actions) {
      const std::int32_t slot = (action > 0 ? action : -action) - 1;
      if (is_store(action) || !is_border(slot)) continue;
      const std::int32_t mapped = own + (slot - kOutputSlot) + 1;
      action = action > 0 ? mapped : -mapped;
    }
    for (LayerStep& step : phase.steps) {
      for (std::vector<std::int32_t>* slots : {&step.inputs, &step.outputs}) {
        for (std::int32_t& slot : *slots) {
          if (is_border(slot)) slot = own + (slot - kOutputSlot);
        }
      }
    }
    if (phase.segments.empty() && !phase.actions.empty()) phase.segments.push_back({});
    if (phase.segments.size() == 1) {
      phase.segments[0].actions_end = static_cast<std::uint32_t>(phase.actions.size());
      phase.segments[0].kernels_end = static_cast<std::uint32_t>(phase.kernels.size());
    }
    std::size_t done = 0, kernel = 0;
    std::int64_t now = 0;
    for (LayerSegment& segment : phase.segments) {
      const std::int64_t start = now;
      for (; done < segment.actions_end; ++done) {
        now += change(phase.actions[done]);
        segment.swing.peak = std::max(segment.swing.peak, now - start);
        phase.swing.peak = std::max(phase.swing.peak, now);
      }
      for (; kernel < segment.kernels_end; ++kernel) segment.flops += phase.kernels[kernel].flops;
      segment.swing.net = now - start;
    }
    phase.swing.net = now;
  }

  // A list of Python's loses its last element first.
  void list_stored_gradients() {
    const std::size_t parts = options_.split_parts ? layer_.nested.size() + 1 : 1;
    program_.free_gradients.resize(parts);
    program_.free_last_gradient.resize(parts);
    std::vector<bool> seen(parts, false);
    for (std::size_t p = layer_.parameters.size(); p-- > 0;) {
      const std::int32_t slot = program_.weight_gradients[p];
      if (slot == kNoSlot || layer_.parameters[p].tied) continue;
      if (options_.sharing == Sharing::kFirstOfBackward || options_.sharing == Sharing::kBetween) {
        continue;  // freed by the call that comes next in backward
      }
      if (is_ignored(narrow(p))) {
        free(program_.free_ignored_gradients, slot);
        continue;
      }
      const std::size_t part = parts == 1 ? 0 : static_cast<std::size_t>(layer_.parameters[p].part);
      free(seen[part] ? program_.free_gradients[part] : program_.free_last_gradient[part], slot);
      seen[part] = true;
    }
  }

  LayerProgram finish() {
    program_.output_bytes = allocated_size(output_bytes_);
    program_.output_grad_bytes = allocated_size(output_bytes_);
    list_stored_gradients();
    for (LayerPhaseProgram* phase : {&program_.forward, &program_.recompute, &program_.backward,
                                     &program_.free_ignored_gradients}) {
      finish_phase(*phase);
    }
    for (LayerPhaseProgram& phase : program_.free_gradients) finish_phase(phase);
    for (LayerPhaseProgram& phase : program_.free_last_gradient) finish_phase(phase);
    return std::move(program_);
  }

  const CastedLayer casts_;
  const LayerSpec& layer_;
  const ProgramOptions options_;
  const std::size_t tensors_;
  const std::vector<TensorElement> elements_;
  std::vector<std::int64_t> bytes_;
  std::int64_t output_bytes_ = 0;
  std::vector<Indices> releases_;
  bool releases_input_ = false;
  Index border_ = 0;
  std::vector<bool> needs_;           // tensors
  std::vector<bool> node_, trains_;   // operations
  std::vector<std::int32_t> savers_;  // tensors
  std::size_t first_saver_ = 0, last_saver_ = 0;
  bool checkpointed_ = false;
  std::vector<bool> kept_tensor_;
  std::vector<bool> popped_ = std::vector<bool>(tensors_, false);
  std::vector<bool> named_;
  std::vector<std::int32_t> storage_of_;
  std::vector<Storage> storages_;
  std::vector<std::int32_t> gradient_of_;  // tensors, into gradients_
  std::vector<Gradient> gradients_;
  std::vector<WeightGradient> fresh_;              // made by the node that runs
  std::vector<Index> stored_;                      // to be stored next
  std::vector<LayerModule> modules_;               // ProgramOptions::hooks only
  std::vector<std::size_t> first_use_, last_use_;  // operations with weights in or below it
  struct InRegions {
    bool runs = false;                // the node that runs is in a region
    std::vector<Index> made_by;       // the region that makes a tensor; -1
    std::vector<std::int64_t> parts;  // of their gradients, which the region sums
  } in_regions_;
  FusedRegion region_;
  LayerProgram program_;
};

}  // namespace

const char* to_string(MemoryCategory category) {
  static constexpr std::array<const char*, kMemoryCategories> kNames = {"sharded_param",
                                                                        "unsharded_param",
                                                                        "post_forward_shard",
                                                                        "sharded_grad",
                                                                        "unsharded_grad",
                                                                        "accumulated_grad",
                                                                        "activation",
                                                                        "recomputed_activation",
                                                                        "backward_temp",
                                                                        "optimizer_state",
                                                                        "optimizer_temp",
                                                                        "cast_temp",
                                                                        "all_gather_output",
                                                                        "reduce_scatter_input",
                                                                        "reduce_scatter_output",
                                                                        "comm_temp",
                                                                        "input"};
  return kNames[static_cast<std::size_t>(category)];
}

Bytes LayerProgram::saved_bytes() const {
  Bytes sum;
  for (std::int32_t slot : saved) sum += slots[static_cast<std::size_t>(slot)].bytes;
  return sum;
}

LayerProgram build_layer_program(const LayerSpec& layer, const ProgramOptions& options) {
  return Deriver(layer, options).derive();
}

}  // namespace foreshard
