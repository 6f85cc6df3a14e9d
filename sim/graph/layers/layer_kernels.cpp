// One function per kind of kernel; sizes come from the layer's tensors at the program's batch.
//
// Products in fp8 are preceded by the kernels that quantise their operands (bytes per element of a
// two-byte operand; torchao/float8/float8_linear.py and float8_ops.py, compiled, so that a cast
// writes the layout its product wants; TransformerEngine's cast_transpose):
//   tensorwise  amax reads 2, the cast reads 2 and writes 1; backward takes the amax of the
//               output's gradient once and casts it for both products, the input and the weight
//               again. A weight that was gathered in fp8 is only transposed, for backward's
//               product: reads 1, writes 1
//   rowwise     amax and cast in one: reads 2, writes 1, for each product anew, for each scales
//               along its own inner width. Backward's scales of input and weight, and the weight's
//               gradient's of the output's gradient, run along the other one: behind a transposed
//               copy, which reads 2 and writes 2 (of the output's gradient its cast writes it, 2)
//               (torchao/testing/training/roofline_utils.py); gw_hp: the weight's gradient stays
//               in the compute dtype, the weight has one scale in backward
//   delayed     reads 2, writes 1 and its transpose 1, for which forward keeps what backward needs
//   current     the same behind an amax that reads 2 (TransformerEngine's Float8CurrentScaling)
//   nvfp4       an amax that reads 2, then a kernel for each layout, of which one also transforms
//               what the weight's gradient reads (Hadamard): each reads 2, writes 9/16
//               (common/hadamard_transform, NVFP4BlockScaling)
#include "sim/graph/layers/layer_kernels.h"

#include <algorithm>

#include "sim/base/integers.h"
#include "sim/base/lookup.h"

namespace foreshard {
namespace {

MemoryClass class_of(Function function, Pass pass) {
  switch (function) {
    case Function::kRmsNorm:
    case Function::kLayerNorm: return pass == Pass::kForward ? MemoryClass::kNormForward : MemoryClass::kNormBackward;
    case Function::kLogSoftmax:
    case Function::kNegativeLogLikelihood:
    case Function::kCrossEntropy: return MemoryClass::kLoss;
    case Function::kRotary:
    case Function::kConvolve:  // of channels that lie behind one another
      return MemoryClass::kStrided;
    case Function::kGather:  // backward sorts indices and adds up the rows of each one by one
      return pass == Pass::kForward ? MemoryClass::kElementwise : MemoryClass::kStrided;
    case Function::kColumnSum:  // 2.0 of the 2.9 TB/s of an H100's elementwise kernels
      return MemoryClass::kCopy;
    default: return MemoryClass::kElementwise;
  }
}

std::int64_t total_bytes(const KernelCounts& counts, const Indices& tensors) {
  return sum_of<std::int64_t>(
      tensors, [&](std::int16_t t) { return counts.bytes[at(t)]; });
}

// Rows of the activations that a matrix product works on.
std::int64_t rows_of(const KernelCounts& counts, const Operation& op) {
  const std::int64_t tokens = checked_multiply(counts.options.batch, counts.options.sequence);
  return std::max<std::int64_t>(1, checked_multiply(tokens, op.rows) / op.split);
}

// Rows of one group: as many for each (Operation::groups), at least one.
std::int64_t rows_of_group(const KernelCounts& counts, const Operation& op) {
  return std::max<std::int64_t>(1, (rows_of(counts, op) + op.groups - 1) / op.groups);
}

// Elements of the weight: all experts' where each has one.
std::int64_t weight_elements(const KernelCounts& counts, const Operation& op) {
  if (op.packed) return checked_multiply(op.groups, checked_multiply(op.n, op.k));
  return counts.layer.parameters[at(op.parameters.front())].numel();
}

// The width that the product runs at. A compiler pads to 16 bytes; what makes an activation writes
// it so, and the weight is copied in front of each product that reads it.
std::int64_t width(const KernelCounts& counts, const Operation& op, std::int64_t elements) {
  if (!op.pads) return elements;
  const std::int64_t step = 16 / size_of(counts.options.compute);
  return (elements + step - 1) / step * step;
}
void add_padding(const KernelCounts& counts, const Operation& op, Pass pass, LayerPhaseProgram& phase) {
  if (width(counts, op, op.n) == op.n && width(counts, op, op.k) == op.k) return;
  add_memory_kernel(
      phase, Function::kCopy, pass, checked_multiply(2 * weight_elements(counts, op), size_of(counts.options.compute)));
}

// TransformerEngine casts and transposes at once and keeps both.
bool keeps_transposes(const Operation& op) { return op.fp8 >= Float8::kDelayed; }

struct Product {
  std::int64_t m = 0, n = 0, k = 0;  // of one group
  std::int64_t elements = 0;         // of the three matrices, over all groups
  std::int64_t groups = 1;
  bool narrow = false;  // in bf16 whatever the layer computes in
};

bool is_narrow(const KernelCounts& counts, const Operation& op) {
  return counts.layer.tensors[at(op.outputs.front())].type == ElementType::kBf16;
}

// Of an operand of `elements`, two bytes each, read once or twice and written once or twice. Where
// each of `ranks` casts its part before it is gathered, the transpose is made of what has arrived.
void add_quantisation(
    const Operation& op, Pass pass, std::int64_t elements, LayerPhaseProgram& phase, std::int64_t ranks = 1) {
  constexpr std::int64_t kRead = 2, kWritten = 1;
  if (op.fp8 == Float8::kNvfp4) {
    for (int layout = 0; layout < 2; ++layout) {
      add_memory_kernel(
          phase, Function::kCast, pass, (checked_multiply(elements, kRead) + narrow_bytes(op.fp8, elements)) / ranks);
    }
    return;
  }
  const bool transposes = keeps_transposes(op);
  const std::int64_t written = transposes && ranks == 1 ? 2 * kWritten : kWritten;
  add_memory_kernel(phase, Function::kCast, pass, checked_multiply(elements, kRead + written) / ranks);
  if (transposes && ranks > 1)
    add_memory_kernel(phase, Function::kCopy, pass, checked_multiply(elements, 2 * kWritten));
}

// In the other layout, for backward: of the two-byte operand, or of what arrived in fp8.
void add_transposed(
    const Operation& op, std::int64_t elements, LayerPhaseProgram& phase, std::int64_t ranks, std::int64_t copied = 4) {
  const bool copies = op.fp8 == Float8::kRowwise;
  if (copies || ranks > 1) {
    add_memory_kernel(phase, Function::kCopy, Pass::kBackward, checked_multiply(elements, copies ? copied : 2));
    phase.kernels.back().memory_class = MemoryClass::kCopy;
  }
  if (ranks == 1) add_quantisation(op, Pass::kBackward, elements, phase);
}

void add_amax(const Operation& op, Pass pass, std::int64_t elements, LayerPhaseProgram& phase) {
  const bool asks = op.fp8 == Float8::kTensorwise || op.fp8 == Float8::kCurrent || op.fp8 == Float8::kNvfp4;
  if (!asks) return;
  add_memory_kernel(phase, Function::kCast, pass, checked_multiply(elements, 2));
}

void add_gemm(const KernelCounts& counts, Pass pass, const Product& product, LayerPhaseProgram& phase,
    Float8 recipe = Float8::kNone) {
  const bool fp8 = recipe != Float8::kNone, fp4 = recipe == Float8::kNvfp4;
  const auto& [m, n, k, elements, groups, narrow] = product;
  const DType dtype = narrow ? DType::kBf16 : counts.options.compute;
  Kernel kernel;
  kernel.kind = KernelKind::kGemm;
  kernel.function = Function::kMatrixProduct;
  kernel.pass = pass;
  kernel.fp32 = dtype == DType::kFp32;
  kernel.m = m;
  kernel.n = n;
  kernel.k = k;
  kernel.groups = groups;
  kernel.fp8 = fp8;
  kernel.fp4 = fp4;
  // In fp8 the operands take one byte each, the result what it takes otherwise.
  const std::int64_t result = checked_multiply(checked_multiply(m, n), groups);
  const std::int64_t operands = narrow_bytes(recipe, elements - result);
  kernel.bytes = fp8 ? Bytes(operands + result * size_of(dtype)) : Bytes(elements * size_of(dtype));
  kernel.flops = Flops(2.0 * as_double(m) * as_double(n) * as_double(k) * as_double(groups));
  phase.kernels.push_back(kernel);
  phase.flops += kernel.flops;
}

// One of attention's products by itself, a batched product over all heads: each row of the sequence
// times all of them (scores: the inner width is the head's), or of the heads' features. Backward
// has one of each kind where scores are made or read.
void add_head_product(const KernelCounts& counts, const Operation& op, Pass pass, LayerPhaseProgram& phase) {
  const std::int64_t rows = std::max<std::int64_t>(1, counts.options.sequence / op.split);
  const std::int64_t heads = checked_multiply(counts.options.batch, op.attention.heads);
  const std::int64_t all = checked_multiply(heads, rows);
  const std::int16_t out = op.outputs.front();
  const bool fp32 = counts.layer.tensors[at(out)].type == ElementType::kFp32;
  const std::int64_t element = fp32 ? size_of(DType::kFp32) : size_of(counts.options.compute);
  const std::int64_t elements = (total_bytes(counts, op.inputs) + counts.bytes[at(out)]) / element;
  const bool makes_scores = counts.bytes[at(out)] > counts.bytes[at(op.inputs.front())];
  for (int product = 0; product < (pass == Pass::kForward ? 1 : 2); ++product) {
    // Backward of scores has no such product; that of the other makes the scores' gradient.
    const bool inner = pass == Pass::kForward ? makes_scores : !makes_scores && product == 0;
    const std::int64_t width = op.attention.head_dim;
    add_gemm(counts, pass, {all, inner ? rows : width, inner ? width : rows, elements, 1}, phase);
    Kernel& kernel = phase.kernels.back();
    kernel.fp32 = kernel.fp32 || fp32;
    kernel.bytes = Bytes(checked_multiply(elements, element));
  }
}

void add_attention(const KernelCounts& counts, const Operation& op, Pass pass, LayerPhaseProgram& phase) {
  if (op.function == Function::kMatrixProduct) return add_head_product(counts, op, pass, phase);
  Kernel kernel;
  kernel.kind = KernelKind::kAttention;
  kernel.function = Function::kAttention;
  kernel.pass = pass;
  kernel.causal = op.attention.causal;
  kernel.masked = op.attention.masked;
  kernel.dropout = op.attention.dropout;
  kernel.fp32 = counts.options.compute == DType::kFp32;
  const AttentionShape& shape = op.attention;
  kernel.m = checked_multiply(counts.options.batch, shape.documents);
  kernel.n = std::max<std::int64_t>(1, counts.options.sequence * shape.key_ranks / shape.documents / op.split);
  kernel.k = shape.head_dim;
  kernel.heads = shape.heads;
  // Forward: q k and p v. Backward: q k again, dp = do v, dv, dq and dk.
  const auto qk = as_double(shape.head_dim), v = as_double(shape.values());
  const double backward_products = (3 * qk + 2 * v) / (qk + v);
  kernel.flops = forward_flops(op, counts.options.batch, counts.options.sequence) *
                 (pass == Pass::kForward ? 1.0 : backward_products);
  kernel.bytes = Bytes(total_bytes(counts, op.inputs) + total_bytes(counts, op.outputs));
  phase.kernels.push_back(kernel);
  phase.flops += kernel.flops;
}

// Reads the blocks, writes the weight in the compute dtype.
void add_dequantize(const KernelCounts& counts, const Operation& op, Pass pass, LayerPhaseProgram& phase) {
  if (!op.packed) return;
  const std::int64_t blocks = counts.layer.parameters[at(op.parameters.front())].numel();
  add_memory_kernel(phase, Function::kDequantize, pass,
      checked_multiply(checked_add(blocks, weight_elements(counts, op)), size_of(counts.options.compute)));
}

void add_gemm_backward(const KernelCounts& counts, const Operation& op, BackwardParts parts, LayerPhaseProgram& phase) {
  const ProgramOptions& options = counts.options;
  const std::int64_t rows = rows_of(counts, op);
  const std::int64_t weights = weight_elements(counts, op);
  const std::int64_t elements = rows * op.k + weights + rows * op.n;
  const std::int64_t group = rows_of_group(counts, op);
  const bool fp8 = op.fp8 != Float8::kNone;
  const bool fp8_weights = fp8 && op.fp8 != Float8::kRowwiseGwHp;
  const bool keeps = keeps_transposes(op);  // written before
  // (Of a product that is differentiated in two parts, with the first.)
  if (fp8 && (parts.inputs || op.reduces.kind == CollectiveKind::kNone)) {
    add_amax(op, Pass::kBackward, rows * op.n / op.fp8_gradients, phase);
    add_quantisation(op, Pass::kBackward, rows * op.n, phase, op.fp8_gradients);
  }
  if (parts.weights) {
    if (fp8_weights && !keeps) {
      add_transposed(op, rows * op.n, phase, op.fp8_gradients, 2);
      if (!op.shares_fp8_input) add_transposed(op, rows * op.k, phase, op.fp8_inputs);
    }
    add_gemm(counts, Pass::kBackward,
        {width(counts, op, op.k), width(counts, op, op.n), group, elements, op.groups, is_narrow(counts, op)}, phase,
        fp8_weights ? op.fp8 : Float8::kNone);
    if (options.gradients == GradientStorage::kFlat && options.flat_gradient != options.compute) {
      add_memory_kernel(phase, Function::kCast, Pass::kBackward,
          checked_multiply(weights, size_of(options.compute) + size_of(options.flat_gradient)));
    }
  }
  if (parts.inputs) {
    add_dequantize(counts, op, Pass::kBackward, phase);
    if (fp8 && !keeps && op.fp8_weight) add_memory_kernel(phase, Function::kCopy, Pass::kBackward, 2 * weights);
    else if (fp8 && !keeps) add_transposed(op, weights, phase, 1);
    add_padding(counts, op, Pass::kBackward, phase);
    add_gemm(counts, Pass::kBackward,
        {group, width(counts, op, op.k), width(counts, op, op.n), elements, op.groups, is_narrow(counts, op)}, phase,
        op.fp8);
  }
  if (parts.weights && op.parameters.size() > 1) {
    // The bias: a column sum over the output's gradient.
    add_memory_kernel(phase, Function::kColumnSum, Pass::kBackward, counts.bytes[at(op.outputs.front())]);
  }
}

constexpr std::int64_t kScore = 4;  // bytes, of fp32; a flag takes one

void add_copy(LayerPhaseProgram& phase, Pass pass, std::int64_t bytes) {
  add_memory_kernel(phase, Function::kCopy, pass, bytes);
  phase.kernels.back().memory_class = MemoryClass::kCopy;
}

// A norm keeps a figure in fp32 of each row.
void add_norm(
    const KernelCounts& counts, const Operation& op, Pass pass, std::int64_t bytes, LayerPhaseProgram& phase) {
  add_memory_kernel(phase, op.function, pass, bytes);
  if (op.outputs.size() > 1) phase.kernels.back().m = counts.bytes[at(op.outputs.back())] / size_of(DType::kFp32);
}

// A norm behind a scan that has not multiplied by silu(z) reads z; backward writes its gradient,
// and the norm's result once more.
std::int64_t bytes_of_gate(const KernelCounts& counts, const Operation& op) {
  const bool gates = op.scan.heads > 0 && !op.backward_workspace.empty();
  return gates ? counts.bytes[at(op.outputs.front())] : 0;
}

void add_products(const KernelCounts& counts, const Operation& op, Pass pass, LayerPhaseProgram& phase) {
  for (const SideProduct& p : op.products) {
    if (p.backward != (pass == Pass::kBackward)) continue;
    const std::int64_t rows = counts.bytes[at(p.rows)];
    const std::int64_t steps = std::max<std::int64_t>(1, counts.bytes[at(p.steps)]);
    const std::int64_t m = std::max<std::int64_t>(1, rows / steps);
    if (p.n == 0) {
      add_memory_kernel(phase, Function::kCopy, pass, rows);
    } else {
      add_gemm(counts, pass, {m, p.n, p.k, m * p.k + p.k * p.n + m * p.n, 1}, phase);
      phase.flops += phase.kernels.back().flops * as_double(steps - 1);
      phase.kernels.back().fp32 = false;  // (cuDNN's in TF32 are captured as so much longer ones)
    }
    phase.kernels.back().kernels = steps;
  }
}

void add_forward(const KernelCounts& counts, const Operation& op, LayerPhaseProgram& phase) {
  add_products(counts, op, Pass::kForward, phase);
  const std::int64_t moved = total_bytes(counts, op.inputs) + total_bytes(counts, op.outputs);
  switch (op.kind) {
    case OperationKind::kGemm: {
      const std::int64_t rows = rows_of(counts, op);
      add_dequantize(counts, op, Pass::kForward, phase);
      if (op.casts_weight) {
        add_memory_kernel(phase, Function::kCast, Pass::kForward,
            weight_elements(counts, op) * size_of(DType::kFp32) + counts.bytes[at(op.outputs.back())]);
      }
      if (op.fp8 != Float8::kNone) {
        if (!op.shares_fp8_input) {
          if (!op.amax_in_producer) add_amax(op, Pass::kForward, rows * op.k / op.fp8_inputs, phase);
          add_quantisation(op, Pass::kForward, rows * op.k, phase, op.fp8_inputs);
        }
        if (!op.fp8_weight) {
          add_amax(op, Pass::kForward, weight_elements(counts, op), phase);
          add_quantisation(op, Pass::kForward, weight_elements(counts, op), phase);
        }
      }
      add_padding(counts, op, Pass::kForward, phase);
      add_gemm(counts, Pass::kForward,
          {rows_of_group(counts, op), width(counts, op, op.n), width(counts, op, op.k),
              rows * op.k + weight_elements(counts, op) + rows * op.n, op.groups, is_narrow(counts, op)},
          phase, op.fp8);
      if (op.function == Function::kCrossEntropy) {  // of its result, in place
        add_memory_kernel(
            phase, op.function, Pass::kForward, checked_multiply(2 * rows * op.n, size_of(counts.options.compute)));
      }
      return;
    }
    case OperationKind::kAttention: add_attention(counts, op, Pass::kForward, phase); return;
    case OperationKind::kNorm: add_norm(counts, op, Pass::kForward, moved + bytes_of_gate(counts, op), phase); return;
    case OperationKind::kScan: add_scan_forward(counts, op, phase); return;
    case OperationKind::kElementwise:
      add_memory_kernel(phase, op.function, Pass::kForward, moved);
      if (op.function == Function::kSoftmax && !op.forward_workspace.empty()) {
        // _safe_softmax: which scores are -inf, and a choice between the result and zeros by rows.
        const std::int64_t scores = total_bytes(counts, op.inputs);
        add_memory_kernel(phase, op.function, Pass::kForward, scores + scores / kScore);
        add_memory_kernel(phase, op.function, Pass::kForward, 3 * scores);
      }
      return;
    case OperationKind::kEmbedding:  // reads one row per output row
      add_memory_kernel(phase, op.function, Pass::kForward, 2 * total_bytes(counts, op.outputs));
      return;
    case OperationKind::kSoftmaxLoss:
      // In place: the logits are read, their gradient is written, all in forward.
      add_memory_kernel(phase, op.function, Pass::kForward, op.in_place ? 2 * total_bytes(counts, op.inputs) : moved);
      return;
  }
}

// Kernels of PyTorch's derivatives (tools/autograd/derivatives.yaml, FunctionsManual.cpp) before the one that reads the
// gradient and what is saved and writes the inputs'. `output`: bytes of the gradient.
void add_eager_backward(const Operation& op, std::int64_t output, LayerPhaseProgram& phase) {
  constexpr Pass kPass = Pass::kBackward;
  switch (op.function) {
    case Function::kSoftmax:  // is given its result times the gradient, but for one of attention's
      if (op.attention.heads > 0) return;
      add_memory_kernel(phase, Function::kMultiply, kPass, 3 * output);
      return;
    case Function::kMultiply:  // a product for each factor, of which each reads the gradient
      if (op.inputs.size() > 1 && !op.eager_norm) add_memory_kernel(phase, Function::kMultiply, kPass, output);
      return;
    case Function::kScale:
      if (op.in_place) {  // masked_fill_: fills a copy
        add_copy(phase, kPass, 2 * output);
      } else if (op.inputs.size() == 1 && op.saved == op.inputs) {
        // pow: another power, and the exponent times it; clamp: comparisons.
        add_memory_kernel(phase, Function::kScale, kPass, 2 * output);
        add_memory_kernel(phase, Function::kScale, kPass, 2 * output);
      }
      return;
    default: return;
  }
}

void add_backward(const KernelCounts& counts, const Operation& op, BackwardParts parts, LayerPhaseProgram& phase) {
  add_products(counts, op, Pass::kBackward, phase);
  const std::int64_t output = op.outputs.empty() ? 0 : counts.bytes[at(op.outputs.front())];
  const std::int64_t moved = output + total_bytes(counts, op.saved) + total_bytes(counts, op.inputs);
  switch (op.kind) {
    case OperationKind::kGemm: add_gemm_backward(counts, op, parts, phase); return;
    case OperationKind::kAttention: add_attention(counts, op, Pass::kBackward, phase); return;
    case OperationKind::kNorm:
      // Reads the output's gradient and the saved input, writes the input's gradient.
      add_norm(counts, op, Pass::kBackward, output + 2 * total_bytes(counts, op.inputs) + 3 * bytes_of_gate(counts, op),
          phase);
      return;
    case OperationKind::kScan: add_scan_backward(counts, op, phase); return;
    case OperationKind::kElementwise:
      add_eager_backward(op, output, phase);
      add_memory_kernel(phase, op.function, Pass::kBackward, moved);
      return;
    case OperationKind::kEmbedding: {
      // Zero-fills the dense gradient, then scatter-adds one row per token.
      std::int64_t table = sum_of<std::int64_t>(op.parameters,
          [&](std::int16_t p) { return counts.layer.parameters[at(p)].numel() * size_of(counts.options.compute); });
      add_memory_kernel(phase, op.function, Pass::kBackward, table + 3 * output);
      return;
    }
    case OperationKind::kSoftmaxLoss:
      // (In place of the logits it was made in forward.)
      if (!op.in_place || op.inputs.front() != 0) add_memory_kernel(phase, op.function, Pass::kBackward, moved);
      return;
  }
}

// Elementwise kernels over heads (Operation::attention) read transposed tensors. Backward of a copy
// of their halves fills two tensors with zeros, copies a half into each, negates one and adds them
// up: 8 B an element of two (kernels of transformers' models on an H100, reports/validation).
void mark_heads(const Operation& op, std::size_t begin, LayerPhaseProgram& phase) {
  if (op.kind != OperationKind::kElementwise || op.attention.head_dim == 0) return;
  constexpr std::int64_t kOfHalves = 4;  // times as much as one copy
  for (std::size_t k = begin; k < phase.kernels.size(); ++k) {
    Kernel& kernel = phase.kernels[k];
    kernel.memory_class = MemoryClass::kStrided;
    if (kernel.pass == Pass::kBackward && kernel.function == Function::kCopy)
      kernel.bytes = Bytes(checked_multiply(kOfHalves, kernel.bytes.count()));
  }
}

// Whether an input is a part of wider rows (a chunk of gate and up), or one value stands for a row
// (a factor of each, or the mask that sets rows of other ranks' experts to zero, in place), or what
// is added is broadcast (a mask to the heads).
bool reads_parts_of_rows(const KernelCounts& counts, const Operation& op) {
  if (op.sums_last || (op.in_place && op.function == Function::kScale)) return true;
  const auto bytes = [&](std::int16_t t) { return counts.bytes[at(t)]; };
  if (op.function == Function::kAdd && op.inputs.size() == 1 && bytes(op.inputs.front()) == bytes(op.outputs.front()))
    return true;
  return std::ranges::any_of(op.inputs, [&](std::int16_t t) {
    return std::ranges::any_of(counts.layer.operations,
        [&](const Operation& other) { return other.view && other.outputs.size() > 1 && contains(other.outputs, t); });
  });
}

// Such a kernel does not stream: 0.34 to 0.42 of the bandwidth for masks and SiLU over halves of
// three codes on an H100, 0.9 where rows are whole (kernels of reports/validation). Of the
// gradients of several inputs some stream: those stay.
void mark_parts_of_rows(const KernelCounts& counts, const Operation& op, std::size_t begin, LayerPhaseProgram& phase) {
  if (op.kind != OperationKind::kElementwise || begin == phase.kernels.size()) return;
  const bool is_forward = phase.kernels[begin].pass == Pass::kForward;
  if ((!is_forward && op.inputs.size() > 1) || !reads_parts_of_rows(counts, op)) return;
  for (std::size_t k = begin; k < phase.kernels.size(); ++k)
    if (phase.kernels[k].memory_class == MemoryClass::kElementwise)
      phase.kernels[k].memory_class = MemoryClass::kStrided;
}

// A cast to a wider type reads one element at a time (unrolled_elementwise_kernel).
void mark_widening_casts(const KernelCounts& counts, const Operation& op, std::size_t begin, LayerPhaseProgram& phase) {
  if (op.kind != OperationKind::kElementwise || op.function != Function::kCast) return;
  if (op.inputs.empty() || op.outputs.empty()) return;
  const std::int64_t from = counts.bytes[at(op.inputs.front())], to = counts.bytes[at(op.outputs.front())];
  for (std::size_t k = begin; k < phase.kernels.size(); ++k) {
    Kernel& kernel = phase.kernels[k];
    const bool widens = kernel.pass == Pass::kForward ? to > from : from > to;
    if (widens && kernel.memory_class == MemoryClass::kElementwise) kernel.memory_class = MemoryClass::kWidening;
  }
}

// A loop over the groups launches each of the operation's kernels once for every group.
void launch_one_by_one(const Operation& op, std::size_t begin, LayerPhaseProgram& phase) {
  if (!op.one_by_one) return;
  const std::vector<Kernel> whole(phase.kernels.begin() + begin, phase.kernels.end());
  phase.kernels.resize(begin);
  for (Kernel kernel : whole) {
    kernel.groups = 1;
    kernel.bytes = Bytes(kernel.bytes.count() / op.groups);
    kernel.flops = kernel.flops * (1.0 / as_double(op.groups));
    phase.kernels.insert(phase.kernels.end(), at(op.groups), kernel);
  }
}

// A loss with the head's product in it launches its kernels for one tile of tokens after the other:
// each reads the weight, and the weight's gradient of each is made in the compute dtype, cast to
// fp32 and added to their sum (liger_kernel/ops/fused_linear_cross_entropy.py since 0.6.2). Nothing
// but the tile stands beside its backward, unlike that of tiles which are made again there.
void launch_in_tiles(const KernelCounts& counts, const Operation& op, std::size_t begin, LayerPhaseProgram& phase) {
  if (op.kind != OperationKind::kGemm || op.function != Function::kCrossEntropy || op.backward_workspace.size() != 1)
    return;
  const std::int64_t element = size_of(counts.options.compute);
  const std::int64_t rows = rows_of(counts, op), weights = weight_elements(counts, op);
  const std::int64_t tile = counts.bytes[at(op.backward_workspace.front())] / (element * op.n);
  const std::int64_t tiles = tile > 0 ? (rows + tile - 1) / tile : 1;
  if (tiles == 1) return;
  const std::vector<Kernel> whole(phase.kernels.begin() + begin, phase.kernels.end());
  phase.kernels.resize(begin);
  const std::int64_t part = (rows + tiles - 1) / tiles;
  for (std::int64_t t = 0; t < tiles; ++t) {
    for (Kernel kernel : whole) {
      const bool sums = kernel.pass == Pass::kBackward && kernel.n == width(counts, op, op.n);
      kernel.flops = kernel.flops * (1.0 / as_double(tiles));
      kernel.bytes = Bytes(kernel.bytes.count() / tiles);
      if (kernel.kind == KernelKind::kGemm) {
        (sums ? kernel.k : kernel.m) = part;
        kernel.bytes = Bytes(checked_multiply(part * (op.n + op.k) + weights, element));
      }
      phase.kernels.push_back(kernel);
      if (!sums) continue;
      constexpr std::int64_t kSum = 4;
      add_memory_kernel(phase, Function::kCast, kernel.pass, checked_multiply(weights, element + kSum));
      phase.kernels.back().memory_class = MemoryClass::kWidening;
      add_memory_kernel(phase, Function::kAdd, kernel.pass, checked_multiply(weights, kSum + 2 * element));
    }
  }
}

// cuDNN's products.
void mark_convolution(const KernelCounts& counts, const Operation& op, std::size_t begin, LayerPhaseProgram& phase) {
  if (!convolves(counts.layer, op)) return;
  for (std::size_t k = begin; k < phase.kernels.size(); ++k)
    if (phase.kernels[k].kind == KernelKind::kGemm) phase.kernels[k].function = Function::kConvolve;
}

// As the operation launches its kernels.
void launch(const KernelCounts& counts, const Operation& op, std::size_t begin, LayerPhaseProgram& phase) {
  launch_one_by_one(op, begin, phase);
  launch_in_tiles(counts, op, begin, phase);
  mark_convolution(counts, op, begin, phase);
  mark_heads(op, begin, phase);
  mark_parts_of_rows(counts, op, begin, phase);
  mark_widening_casts(counts, op, begin, phase);
}

// A loop's weights are views of one tensor of all experts: autograd puts the gradient of each into
// zeros of that size (select_backward) and adds them up, in place.
void add_gradients_of_views(
    const KernelCounts& counts, const Operation& op, BackwardParts parts, LayerPhaseProgram& phase) {
  if (op.kind != OperationKind::kGemm || !op.one_by_one || !parts.weights) return;
  const std::int64_t all = weight_elements(counts, op) * size_of(counts.options.compute);
  for (std::int64_t group = 0; group < op.groups; ++group) {
    add_memory_kernel(phase, Function::kScale, Pass::kBackward, all);
    add_memory_kernel(phase, Function::kCopy, Pass::kBackward, 2 * all / op.groups);
    if (group > 0) add_memory_kernel(phase, Function::kAdd, Pass::kBackward, 3 * all);
  }
}

}

bool convolves(const LayerSpec& layer, const Operation& op) {
  if (op.kind != OperationKind::kGemm || op.parameters.empty()) return false;
  const ParameterSpec& weight = layer.parameters[at(op.parameters.front())];
  return weight.shape.size() > 2 && op.n * op.k == weight.numel();
}

void add_memory_kernel(LayerPhaseProgram& phase, Function function, Pass pass, std::int64_t bytes) {
  Kernel kernel;
  kernel.kind = KernelKind::kMemory;
  kernel.function = function;
  kernel.memory_class = class_of(function, pass);
  kernel.pass = pass;
  kernel.bytes = Bytes(bytes);
  phase.kernels.push_back(kernel);
}

void add_forward_kernels(const KernelCounts& counts, const Operation& op, LayerPhaseProgram& phase) {
  const std::size_t begin = phase.kernels.size();
  add_forward(counts, op, phase);
  mark_eager_norm(op, begin, phase);
  launch(counts, op, begin, phase);
}

void add_backward_kernels(
    const KernelCounts& counts, const Operation& op, BackwardParts parts, LayerPhaseProgram& phase) {
  const std::size_t begin = phase.kernels.size();
  add_backward(counts, op, parts, phase);
  launch(counts, op, begin, phase);
  add_gradients_of_views(counts, op, parts, phase);
}

void mark_eager_norm(const Operation& op, std::size_t begin, LayerPhaseProgram& phase) {
  if (!op.eager_norm) return;
  for (std::size_t k = begin; k < phase.kernels.size(); ++k) {
    Kernel& kernel = phase.kernels[k];
    kernel.memory_class =
        kernel.pass == Pass::kForward ? MemoryClass::kEagerNormForward : MemoryClass::kEagerNormBackward;
  }
}

}
