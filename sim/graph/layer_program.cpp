// How a layer's allocations follow from its operations.
//
// Forward walks the operations in order. An operation allocates its outputs; afterwards every
// tensor whose Python reference ends there is freed unless some operation saved it for backward.
// Under full recompute nothing but the layer's input is saved; under selective recompute the
// outputs of the kept operations are as well.
//
// Recompute walks them again with fresh buffers, without the kept operations, and stops early like
// PyTorch's non-reentrant checkpoint: as soon as everything that backward needs has been saved
// again. An operation that saves only its inputs is not executed for that (the hook raises before
// its kernel is issued).
//
// Backward walks the operations in reverse, as autograd's engine does for a chain. An operation
// allocates the gradients of its parameters and of its inputs (normalisations: inputs first, their
// kernel returns both), drops the gradient of its output, frees what it alone had saved, and only
// then gradients that meet at a tensor are added into a new buffer. A residual addition allocates
// nothing: both inputs share the output's gradient by reference.
//
// Held against the allocation log of PyTorch 2.11 in tests/sim/graph/layer_program_test.cpp.
#include "sim/graph/layer_program.h"

#include <algorithm>
#include <array>
#include <utility>

#include "sim/base/error.h"

namespace foreshard {
namespace {

// Places for the next layer's slots until the number of own slots is known.
constexpr std::int32_t kOutputSlot = 1 << 28;
constexpr std::int32_t kOutputGradSlot = kOutputSlot + 1;
constexpr std::int32_t kInputSlot = 0;
constexpr std::int32_t kInputGradSlot = 1;
constexpr std::int32_t kNoSlot = -1;

std::int64_t element_size(ElementType type, DType compute) {
  switch (type) {
    case ElementType::kCompute:
      return size_of(compute);
    case ElementType::kFp32:
      return 4;
    case ElementType::kInt64:
      return 8;
    case ElementType::kByte:
      return 1;
  }
  return 0;
}

class Deriver {
 public:
  Deriver(const LayerSpec& layer, const ProgramOptions& options)
      : layer_(layer), options_(options), tensors_(layer.tensors.size()) {
    tokens_ = checked_multiply(options.batch, options.sequence);
    bytes_.reserve(tensors_);
    for (const TensorSpec& tensor : layer.tensors) {
      bytes_.push_back(checked_multiply(elements(tensor, options.batch, options.sequence),
                                        element_size(tensor.type, options.compute)));
    }
    add_slot(MemoryCategory::kActivation, has_input_buffer() ? bytes_[0] : 0, "input");
    add_slot(MemoryCategory::kBackwardTemp, has_input_buffer() ? bytes_[0] : 0, "input.grad");
  }

  LayerProgram derive() {
    find_release_points();
    run_forward();
    if (options_.recompute != Recompute::kNone) run_recompute();
    run_backward();
    return finish();
  }

 private:
  // Token ids belong to the micro-batch, not to the embedding.
  bool has_input_buffer() const { return layer_.role != LayerRole::kEmbedding; }
  bool is_loss() const { return layer_.role == LayerRole::kLoss; }

  std::int32_t add_slot(MemoryCategory category, std::int64_t bytes, std::string name) {
    program_.slots.push_back({category, allocated_size(bytes), std::move(name)});
    return static_cast<std::int32_t>(program_.slots.size()) - 1;
  }

  static void allocate(LayerPhaseProgram& phase, std::int32_t slot) {
    phase.actions.push_back(slot + 1);
  }
  static void free(LayerPhaseProgram& phase, std::int32_t slot) {
    phase.actions.push_back(-(slot + 1));
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
  std::vector<std::int32_t> slots_of(const std::vector<std::int16_t>& tensors) const {
    std::vector<std::int32_t> slots;
    for (std::int16_t t : tensors) slots.push_back(slot_[index(t)]);
    return slots;
  }

  // An in-place operation's output is the buffer of its input: the bytes change their name.
  void take_over(const Operation& op, LayerPhaseProgram& phase) {
    if (!op.in_place || is_loss()) return;
    std::int32_t& slot = slot_[index(op.inputs.front())];
    FORESHARD_CHECK(savers_[index(op.inputs.front())] == 0, "an in-place input is saved");
    free(phase, slot);
    slot = kNoSlot;
  }

  std::string tensor_name(std::int16_t t) const {
    return layer_.tensors[static_cast<std::size_t>(t)].name;
  }

  // Last operation that reads each tensor, moved later by `released`.
  void find_release_points() {
    release_after_.assign(tensors_, -1);
    std::vector<bool> explicitly(tensors_, false);
    const auto count = static_cast<std::int32_t>(layer_.operations.size());
    for (std::int32_t o = 0; o < count; ++o) {
      const Operation& op = layer_.operations[static_cast<std::size_t>(o)];
      for (std::int16_t t : op.outputs) release_after_[index(t)] = o;
      for (std::int16_t t : op.inputs) release_after_[index(t)] = o;
    }
    for (std::int32_t o = 0; o < count; ++o) {
      for (std::int16_t t : layer_.operations[static_cast<std::size_t>(o)].released) {
        release_after_[index(t)] = o;
        explicitly[index(t)] = true;
      }
    }
    releases_.assign(layer_.operations.size(), {});
    for (std::int32_t o = 0; o < count; ++o) {
      auto& list = releases_[static_cast<std::size_t>(o)];
      for (std::int16_t t : layer_.operations[static_cast<std::size_t>(o)].released) {
        list.push_back(t);
      }
      for (std::size_t t = 0; t < tensors_; ++t) {
        if (release_after_[t] == o && !explicitly[t]) list.push_back(static_cast<std::int16_t>(t));
      }
    }
    savers_.assign(tensors_, 0);
    for (const Operation& op : layer_.operations) {
      for (std::int16_t t : op.saved) ++savers_[index(t)];
    }
  }

  // What an in-place operation makes of a kept tensor is that tensor's buffer, so it is kept too.
  bool kept(const Operation& op) const {
    if (options_.recompute != Recompute::kSelective) return false;
    return op.kept_by_selective || (op.in_place && kept_tensor_[index(op.inputs.front())]);
  }

  // Whether the tensor outlives the forward.
  bool survives_forward(std::int16_t t) const {
    if (t == 0 || t == layer_.output) return true;
    if (options_.recompute == Recompute::kNone) return savers_[index(t)] > 0;
    return kept_tensor_[index(t)];
  }

  void run_forward() {
    kept_tensor_.assign(tensors_, false);
    for (const Operation& op : layer_.operations) {
      if (!kept(op)) continue;
      for (std::int16_t t : op.outputs) kept_tensor_[index(t)] = true;
    }
    slot_.assign(tensors_, kNoSlot);
    slot_[0] = kInputSlot;
    LayerPhaseProgram& phase = program_.forward;
    for (std::size_t o = 0; o < layer_.operations.size(); ++o) {
      const Operation& op = layer_.operations[o];
      LayerStep step = begin_step(LayerStep::Kind::kForward, o);
      step.inputs = slots_of(op.inputs);
      take_over(op, phase);
      for (std::int16_t t : op.outputs) {
        const bool border = t == layer_.output && !is_loss();
        slot_[index(t)] =
            border ? kOutputSlot
                   : add_slot(MemoryCategory::kActivation, bytes_[index(t)], tensor_name(t));
        allocate(phase, slot_[index(t)]);
      }
      add_forward_kernels(op, phase);
      for (std::int16_t t : releases_[o]) {
        if (t == layer_.output || slot_[index(t)] == kNoSlot) continue;
        if (t == 0) {
          // Nobody keeps an input that no operation saved, unless checkpointing does.
          if (savers_[0] == 0 && options_.recompute == Recompute::kNone && has_input_buffer()) {
            free(phase, kInputSlot);
            input_freed_ = true;
          }
          continue;
        }
        if (!survives_forward(t)) free(phase, slot_[index(t)]);
      }
      step.outputs = slots_of(op.outputs);
      end_step(phase, std::move(step));
    }
    for (std::size_t t = 1; t < tensors_; ++t) {
      if (slot_[t] != kNoSlot && slot_[t] != kOutputSlot && survives_forward(narrow(t))) {
        program_.saved.push_back(slot_[t]);
      }
    }
    output_bytes_ = is_loss() ? 0 : bytes_[index(layer_.output)];
  }

  // Operations [0, stop) are executed again.
  std::size_t recompute_stop() const {
    std::size_t stop = 0;
    for (std::size_t o = 0; o < layer_.operations.size(); ++o) {
      const Operation& op = layer_.operations[o];
      if (op.saved.empty()) continue;
      const bool saves_output = std::any_of(op.saved.begin(), op.saved.end(), [&](std::int16_t t) {
        return std::find(op.outputs.begin(), op.outputs.end(), t) != op.outputs.end();
      });
      stop = saves_output ? o + 1 : o;
    }
    return stop;
  }

  void run_recompute() {
    LayerPhaseProgram& phase = program_.recompute;
    const std::size_t stop = recompute_stop();
    for (std::size_t o = 0; o < stop; ++o) {
      const Operation& op = layer_.operations[o];
      LayerStep step = begin_step(LayerStep::Kind::kForward, o);
      if (!kept(op)) {
        step.inputs = slots_of(op.inputs);
        take_over(op, phase);
        for (std::int16_t t : op.outputs) {
          slot_[index(t)] = add_slot(MemoryCategory::kRecomputedActivation, bytes_[index(t)],
                                     tensor_name(t) + " (recomputed)");
          allocate(phase, slot_[index(t)]);
        }
        add_forward_kernels(op, phase);
        step.outputs = slots_of(op.outputs);
      }
      for (std::int16_t t : releases_[o]) {
        if (t == 0 || savers_[index(t)] > 0) continue;
        // A kept tensor that backward does not need leaves the cache here.
        if (slot_[index(t)] != kNoSlot && slot_[index(t)] != kOutputSlot) {
          free(phase, slot_[index(t)]);
          slot_[index(t)] = kNoSlot;
        }
      }
      if (!kept(op)) end_step(phase, std::move(step));
    }
    // References that would have ended in operations not executed any more end with the early stop.
    for (std::size_t o = stop; o < layer_.operations.size(); ++o) {
      for (std::int16_t t : releases_[o]) {
        const std::int32_t slot = slot_[index(t)];
        const bool recomputed = slot != kNoSlot && slot < kOutputSlot &&
                                program_.slots[static_cast<std::size_t>(slot)].category ==
                                    MemoryCategory::kRecomputedActivation;
        if (t != 0 && savers_[index(t)] == 0 && recomputed) {
          free(phase, slot);
          slot_[index(t)] = kNoSlot;
        }
      }
    }
  }

  struct Gradient {
    std::int32_t slot = kNoSlot;
    std::int32_t references = 0;
  };

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

  void weight_gradients(const Operation& op) {
    if (options_.gradients == GradientStorage::kFlat) {
      if (options_.flat_gradient == options_.compute || op.kind != OperationKind::kGemm) return;
      const std::int64_t numel = layer_.parameters[index(op.parameters.front())].numel();
      const std::int64_t bytes = checked_multiply(numel, size_of(options_.compute));
      const std::int32_t slot = add_slot(MemoryCategory::kBackwardTemp, bytes,
                                         layer_.parameters[index(op.parameters.front())].name);
      allocate(program_.backward, slot);
      free(program_.backward, slot);
      return;
    }
    for (std::int16_t p : op.parameters) {
      const ParameterSpec& parameter = layer_.parameters[index(p)];
      const std::int64_t bytes = checked_multiply(parameter.numel(), size_of(options_.compute));
      const std::int32_t slot =
          add_slot(MemoryCategory::kUnshardedGrad, bytes, parameter.name + ".grad");
      FORESHARD_CHECK(program_.weight_gradients[index(p)] == kNoSlot,
                      "a parameter is used by two operations of one layer");
      allocate(program_.backward, slot);
      if (options_.tied == Tying::kTokenTable && p == 0) {
        // The head's gradient of the same parameter is there already: added into it, then dropped.
        add_memory_kernel(program_.backward, Function::kAdd, Pass::kBackward, 3 * bytes);
        free(program_.backward, slot);
        continue;
      }
      program_.weight_gradients[index(p)] = slot;
    }
  }

  void run_backward() {
    program_.weight_gradients.assign(layer_.parameters.size(), kNoSlot);
    std::vector<std::int32_t> gradient_of(tensors_, kNoSlot);  // into gradients_
    std::vector<std::int32_t> savers = savers_;
    if (is_loss()) {
      gradient_of[index(layer_.output)] = new_gradient(4, "loss.grad");
    } else {
      gradients_.push_back({kOutputGradSlot, 1});
      gradient_of[index(layer_.output)] = 0;
    }
    for (std::size_t o = layer_.operations.size(); o-- > 0;) {
      const Operation& op = layer_.operations[o];
      const std::int32_t incoming =
          op.outputs.empty() ? kNoSlot : gradient_of[index(op.outputs.front())];
      if (incoming == kNoSlot) continue;  // no gradient arrives: the output is not differentiated
      gradient_of[index(op.outputs.front())] = kNoSlot;
      LayerStep step = begin_step(LayerStep::Kind::kBackward, o);
      step.inputs = {gradients_[static_cast<std::size_t>(incoming)].slot};
      for (std::int16_t t : op.saved) step.inputs.push_back(slot_[index(t)]);
      bool incoming_dropped = false;
      std::vector<std::pair<std::int16_t, std::int32_t>> contributions;
      if (op.gradient == GradientRule::kAlias) {
        for (std::int16_t t : op.inputs) {
          ++gradients_[static_cast<std::size_t>(incoming)].references;
          contributions.emplace_back(t, incoming);
        }
      } else {
        const bool inputs_first = op.kind == OperationKind::kNorm;
        if (!inputs_first) weight_gradients(op);
        if (op.gradient == GradientRule::kOwn) {
          std::vector<std::int32_t> temporaries;
          for (std::int16_t t : op.backward_temporaries) {
            const std::int64_t bytes = bytes_[index(t)];
            temporaries.push_back(add_slot(MemoryCategory::kBackwardTemp, bytes, tensor_name(t)));
            allocate(program_.backward, temporaries.back());
            add_memory_kernel(program_.backward, Function::kCopy, Pass::kBackward, 2 * bytes);
          }
          if (op.in_place && is_loss()) {
            free(program_.backward, kInputSlot);
            input_freed_ = true;
          } else if (op.in_place) {
            FORESHARD_CHECK(gradients_[static_cast<std::size_t>(incoming)].references == 1,
                            "the gradient of an in-place result is shared");
            drop_gradient(incoming);
            incoming_dropped = true;
          }
          for (std::int16_t t : op.inputs) {
            contributions.emplace_back(t, new_gradient(bytes_[index(t)], tensor_name(t) + ".grad"));
            step.outputs.push_back(gradients_.back().slot);
          }
          for (std::int32_t slot : temporaries) free(program_.backward, slot);
        }
        if (inputs_first) weight_gradients(op);
        add_backward_kernels(op);
      }
      if (!incoming_dropped) drop_gradient(incoming);
      for (std::int16_t t : op.saved) {
        if (--savers[index(t)] > 0) continue;
        if (t == layer_.output && !is_loss()) continue;  // the next layer's input: freed there
        if (t == 0) continue;                            // freed at the end, with the layer's input
        if (slot_[index(t)] != kNoSlot) {
          free(program_.backward, slot_[index(t)]);
          slot_[index(t)] = kNoSlot;
        }
      }
      if (savers_[0] > 0 && savers[0] == 0 && !input_freed_ && has_input_buffer() &&
          std::find(op.saved.begin(), op.saved.end(), 0) != op.saved.end()) {
        free(program_.backward, kInputSlot);
        input_freed_ = true;
      }
      if (op.gradient != GradientRule::kAlias) end_step(program_.backward, std::move(step));
      for (auto [t, gradient] : contributions) accumulate(gradient_of[index(t)], t, gradient);
    }
    // Tensors kept by selective recompute that nothing needed, and outputs of the loss.
    for (std::size_t t = 1; t < tensors_; ++t) {
      const std::int32_t slot = slot_[t];
      if (slot == kNoSlot || slot == kOutputSlot) continue;
      const bool alive = is_loss() && narrow(t) == layer_.output;
      if (alive || (kept_tensor_[t] && survives_forward(narrow(t)))) {
        free(program_.backward, slot);
        slot_[t] = kNoSlot;
      }
    }
    if (!input_freed_ && has_input_buffer()) free(program_.backward, kInputSlot);
    if (has_input_buffer()) {
      const std::int32_t final_gradient = gradient_of[0];
      FORESHARD_CHECK(final_gradient != kNoSlot, "no gradient reaches the layer's input");
      const Gradient& g = gradients_[static_cast<std::size_t>(final_gradient)];
      FORESHARD_CHECK(g.slot != kOutputGradSlot && g.references == 1,
                      "the gradient of the layer's input is not its own buffer");
      for (std::int32_t& action : program_.backward.actions) {
        if (action == g.slot + 1) action = kInputGradSlot + 1;
      }
      for (LayerStep& step : program_.backward.steps) {
        std::replace(step.inputs.begin(), step.inputs.end(), g.slot, kInputGradSlot);
        std::replace(step.outputs.begin(), step.outputs.end(), g.slot, kInputGradSlot);
      }
      retired_slot_ = g.slot;
    }
  }

  void accumulate(std::int32_t& place, std::int16_t tensor, std::int32_t gradient) {
    if (place == kNoSlot) {
      place = gradient;
      return;
    }
    const std::int64_t bytes = bytes_[index(tensor)];
    const auto slot = [&](std::int32_t g) { return gradients_[static_cast<std::size_t>(g)].slot; };
    LayerStep step;
    step.kind = LayerStep::Kind::kSum;
    step.inputs = {slot(place), slot(gradient)};
    add_memory_kernel(program_.backward, Function::kAdd, Pass::kBackward, 3 * bytes);
    const bool in_place = options_.gradients == GradientStorage::kFlat &&
                          gradients_[static_cast<std::size_t>(gradient)].references == 1;
    if (in_place) {
      drop_gradient(place);
      place = gradient;
    } else {
      const std::int32_t sum = new_gradient(bytes, tensor_name(tensor) + ".grad sum");
      drop_gradient(place);
      drop_gradient(gradient);
      place = sum;
    }
    step.outputs = {slot(place)};
    end_step(program_.backward, std::move(step));
  }

  // --- kernels
  // -------------------------------------------------------------------------------------------------------

  static MemoryClass class_of(Function function, Pass pass) {
    switch (function) {
      case Function::kRmsNorm:
      case Function::kLayerNorm:
        return pass == Pass::kForward ? MemoryClass::kNormForward : MemoryClass::kNormBackward;
      case Function::kLogSoftmax:
      case Function::kNegativeLogLikelihood:
      case Function::kCrossEntropy:
        return MemoryClass::kLoss;
      default:
        return MemoryClass::kElementwise;
    }
  }

  static void add_memory_kernel(LayerPhaseProgram& phase, Function function, Pass pass,
                                std::int64_t bytes) {
    Kernel kernel;
    kernel.kind = KernelKind::kMemory;
    kernel.function = function;
    kernel.memory_class = class_of(function, pass);
    kernel.pass = pass;
    kernel.bytes = Bytes(bytes);
    phase.kernels.push_back(kernel);
  }

  void add_gemm(LayerPhaseProgram& phase, Pass pass, std::int64_t m, std::int64_t n,
                std::int64_t k) const {
    Kernel kernel;
    kernel.kind = KernelKind::kGemm;
    kernel.function = Function::kMatrixProduct;
    kernel.pass = pass;
    kernel.fp32 = options_.compute == DType::kFp32;
    kernel.m = m;
    kernel.n = n;
    kernel.k = k;
    kernel.bytes = Bytes((m * k + n * k + m * n) * size_of(options_.compute));
    kernel.flops =
        Flops(2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k));
    phase.kernels.push_back(kernel);
    phase.flops += kernel.flops;
  }

  void add_attention(LayerPhaseProgram& phase, const Operation& op, Pass pass) const {
    Kernel kernel;
    kernel.kind = KernelKind::kAttention;
    kernel.function = Function::kAttention;
    kernel.pass = pass;
    kernel.causal = op.attention.causal;
    kernel.fp32 = options_.compute == DType::kFp32;
    kernel.m = options_.batch;
    kernel.n = options_.sequence;
    kernel.k = op.attention.head_dim;
    kernel.heads = op.attention.heads;
    // Backward recomputes the scores: 5 products of that size against 2 (FlashAttention-2 paper,
    // section 4.1).
    constexpr double kBackwardProducts = 2.5;
    kernel.flops = forward_flops(op, options_.batch, options_.sequence) *
                   (pass == Pass::kForward ? 1.0 : kBackwardProducts);
    kernel.bytes = Bytes(total_bytes(op.inputs) + total_bytes(op.outputs));
    phase.kernels.push_back(kernel);
    phase.flops += kernel.flops;
  }

  std::int64_t total_bytes(const std::vector<std::int16_t>& tensors) const {
    std::int64_t sum = 0;
    for (std::int16_t t : tensors) sum += bytes_[index(t)];
    return sum;
  }

  void add_forward_kernels(const Operation& op, LayerPhaseProgram& phase) const {
    const std::int64_t moved = total_bytes(op.inputs) + total_bytes(op.outputs);
    switch (op.kind) {
      case OperationKind::kGemm:
        add_gemm(phase, Pass::kForward, tokens_, op.n, op.k);
        return;
      case OperationKind::kAttention:
        add_attention(phase, op, Pass::kForward);
        return;
      case OperationKind::kNorm:
      case OperationKind::kElementwise:
        add_memory_kernel(phase, op.function, Pass::kForward, moved);
        return;
      case OperationKind::kEmbedding:  // reads one row per output row
        add_memory_kernel(phase, op.function, Pass::kForward, 2 * total_bytes(op.outputs));
        return;
      case OperationKind::kSoftmaxLoss:
        // In place: the logits are read, their gradient is written, all in forward.
        add_memory_kernel(phase, op.function, Pass::kForward,
                          op.in_place ? 2 * total_bytes(op.inputs) : moved);
        return;
    }
  }

  void add_backward_kernels(const Operation& op) {
    LayerPhaseProgram& phase = program_.backward;
    const std::int64_t output = op.outputs.empty() ? 0 : bytes_[index(op.outputs.front())];
    const std::int64_t moved = output + total_bytes(op.saved) + total_bytes(op.inputs);
    switch (op.kind) {
      case OperationKind::kGemm:
        add_gemm(phase, Pass::kBackward, op.k, op.n, tokens_);  // weight gradient
        if (options_.gradients == GradientStorage::kFlat &&
            options_.flat_gradient != options_.compute) {
          add_memory_kernel(
              phase, Function::kCast, Pass::kBackward,
              checked_multiply(checked_multiply(op.k, op.n),
                               size_of(options_.compute) + size_of(options_.flat_gradient)));
        }
        if (op.gradient == GradientRule::kOwn) {
          add_gemm(phase, Pass::kBackward, tokens_, op.k, op.n);
        }
        if (op.parameters.size() > 1) {  // bias: a column sum over the output's gradient
          add_memory_kernel(phase, Function::kColumnSum, Pass::kBackward, output);
        }
        return;
      case OperationKind::kAttention:
        add_attention(phase, op, Pass::kBackward);
        return;
      case OperationKind::kNorm:
        // Reads the output's gradient and the saved input, writes the input's gradient.
        add_memory_kernel(phase, op.function, Pass::kBackward, output + 2 * total_bytes(op.inputs));
        return;
      case OperationKind::kElementwise:
        add_memory_kernel(phase, op.function, Pass::kBackward, moved);
        return;
      case OperationKind::kEmbedding: {
        // Zero-fills the dense gradient, then scatter-adds one row per token.
        std::int64_t table = 0;
        for (std::int16_t p : op.parameters) {
          table += layer_.parameters[index(p)].numel() * size_of(options_.compute);
        }
        add_memory_kernel(phase, op.function, Pass::kBackward, table + 3 * output);
        return;
      }
      case OperationKind::kSoftmaxLoss:
        if (!op.in_place) add_memory_kernel(phase, op.function, Pass::kBackward, moved);
        return;
    }
  }

  // --- end
  // -----------------------------------------------------------------------------------------------------------

  MemorySwing swing(const std::vector<std::int32_t>& actions) const {
    MemorySwing result;
    std::int64_t now = 0;
    for (std::int32_t action : actions) {
      now += action > 0 ? slot_bytes(action - 1) : -slot_bytes(-action - 1);
      result.peak = std::max(result.peak, now);
    }
    result.net = now;
    return result;
  }

  std::int64_t slot_bytes(std::int32_t slot) const {
    const auto own = static_cast<std::int32_t>(program_.slots.size());
    if (slot < own) return program_.slots[static_cast<std::size_t>(slot)].bytes.count();
    return slot == own ? program_.output_bytes.count() : program_.output_grad_bytes.count();
  }

  LayerProgram finish() {
    const auto own = static_cast<std::int32_t>(program_.slots.size());
    // Moving a result into the input-gradient slot left an unused one behind: it holds nothing and
    // is never allocated.
    if (retired_slot_ != kNoSlot) {
      program_.slots[static_cast<std::size_t>(retired_slot_)].bytes = Bytes(0);
    }
    program_.output_bytes = allocated_size(output_bytes_);
    program_.output_grad_bytes = allocated_size(output_bytes_);
    for (std::size_t p = 0; p < program_.weight_gradients.size(); ++p) {
      if (program_.weight_gradients[p] == kNoSlot)
        continue;  // frozen or tied: no gradient of its own
      const bool last = p + 1 == program_.weight_gradients.size();
      free(last ? program_.free_last_gradient : program_.free_gradients,
           program_.weight_gradients[p]);
    }
    for (LayerPhaseProgram* phase : {&program_.forward, &program_.recompute, &program_.backward,
                                     &program_.free_gradients, &program_.free_last_gradient}) {
      for (std::int32_t& action : phase->actions) {
        const std::int32_t slot = (action > 0 ? action : -action) - 1;
        if (slot < kOutputSlot) continue;
        const std::int32_t mapped = own + (slot - kOutputSlot) + 1;
        action = action > 0 ? mapped : -mapped;
      }
      for (LayerStep& step : phase->steps) {
        for (std::vector<std::int32_t>* slots : {&step.inputs, &step.outputs}) {
          for (std::int32_t& slot : *slots) {
            if (slot >= kOutputSlot) slot = own + (slot - kOutputSlot);
          }
        }
      }
      phase->swing = swing(phase->actions);
    }
    return std::move(program_);
  }

  static std::size_t index(std::int16_t t) { return static_cast<std::size_t>(t); }
  static std::int16_t narrow(std::size_t t) { return static_cast<std::int16_t>(t); }

  const LayerSpec& layer_;
  const ProgramOptions options_;
  const std::size_t tensors_;
  std::int64_t tokens_ = 0;
  std::int64_t output_bytes_ = 0;
  std::vector<std::int64_t> bytes_;
  std::vector<std::int32_t> release_after_;
  std::vector<std::vector<std::int16_t>> releases_;
  std::vector<std::int32_t> savers_;
  std::vector<bool> kept_tensor_;
  std::vector<std::int32_t> slot_;
  std::vector<Gradient> gradients_;
  std::int32_t retired_slot_ = kNoSlot;
  bool input_freed_ = false;
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
