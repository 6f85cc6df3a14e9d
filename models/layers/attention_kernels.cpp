// What scaled_dot_product_attention dispatches to (PyTorch 2.11,
// aten/src/ATen/native/transformers/cuda/sdp_utils.cpp): flash and cuDNN take 16 bits, no mask, and
// fewer key heads than query heads where they are told of groups (enable_gqa); the memory-efficient
// kernel takes fp32 and masks, and no groups; the rest is computed by operations. transformers
// repeats keys and values itself where there is a mask (integrations/sdpa_attention.py).
//
// By operations, math (aten/src/ATen/native/transformers/attention.cpp,
// _scaled_dot_product_attention_math): in fp32, q and k each times the root of the scale, their
// product, the causal mask added in place, _safe_softmax (a softmax, where rows are not all
// masked), the product with v, and casts of both results. Saved: scaled q, scaled k of every head,
// v of every head, and the softmax.
//
// By operations, eager (transformers' eager_attention_forward): product, scale, perhaps a cap, the
// mask, a softmax in fp32 of an fp32 copy and a cast (or of the scores as they are), dropout, the
// product with v. Saved: q (a copy of rows by heads where there are several sequences), repeated k
// and v, the softmax, its cast.
//
// A fused kernel returns heads as its queries lie. Queries that were concatenated lie head by head,
// and so do products of heads: their result is copied to rows for the projection.
#include "models/layers/attention_kernels.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "models/layers/layer_tensors.h"

namespace foreshard {
namespace {

using Index = std::int16_t;
using Indices = std::vector<Index>;

// Kernels of packages of their own take the window's length and skip what lies outside of it.
bool takes_windows(AttentionKernel kernel) {
  using enum AttentionKernel;
  return kernel == kFa1 || kernel == kFa2 || kernel == kFa3 || kernel == kTriton;
}

bool is_masked(const Plan& plan, const AttentionShape& shape, std::int64_t sequence) {
  const bool is_outside = shape.window > 0 && sequence >= shape.window;
  return plan.batch.padded || (is_outside && !takes_windows(plan.attention));
}

AttentionKernel dispatched(const Plan& plan, const AttentionShape& shape, bool masked) {
  using enum AttentionKernel;
  constexpr std::int64_t kWidestHead = 256;
  const AttentionKernel asked = plan.attention;
  if (asked != kFlash && asked != kCudnn && asked != kEfficient) return asked;
  const bool groups = shape.kv_heads != shape.heads;
  if (groups && shape.broadcasts) return kMath;
  if (masked) return kEfficient;
  const bool half = plan.compute_dtype() != DType::kFp32;
  if (half && shape.head_dim <= kWidestHead) return asked;
  return groups && asked != kEfficient ? kMath : kEfficient;
}

// Operations in the place of one attention.
class Written {
 public:
  Written(LayerSpec& layer, const Operation& attention, const Plan& plan)
      : layer_(layer),
        part_(attention.part),
        shape_(attention.attention),
        sequence_(layer.domain.length(plan.batch.sequence)) {}

  std::vector<Operation> take() { return std::exchange(operations_, {}); }
  Operation& last() { return operations_.back(); }
  const TensorSpec& at(Index t) const { return tensor(layer_, t); }

  Index activation(const std::string& name, std::int64_t per_token, ElementType type) {
    return add_tensor(layer_, {.name = name, .per_token = per_token, .type = type});
  }
  Index scores(const std::string& name, ElementType type) {
    return activation(name, checked_multiply(shape_.heads, sequence_), type);
  }

  // Reads the inputs, saves nothing; the output has the elements and the type of `like`.
  Index pass(const std::string& name, Function function, Indices inputs, Index output) {
    Operation& op = operations_.emplace_back();
    op.name = name;
    op.function = function;
    op.part = part_;
    op.inputs = std::move(inputs);
    op.outputs = {output};
    return output;
  }
  Index scale(const std::string& name, Index input) {
    const Index output = activation(name, at(input).per_token, at(input).type);
    return pass(name, Function::kScale, {input}, output);
  }
  Index cast(const std::string& name, Index input, ElementType type) {
    return pass(name, Function::kCast, {input}, activation(name, at(input).per_token, type));
  }
  Index copy(const std::string& name, Index input, std::int64_t per_token) {
    return pass(name, Function::kCopy, {input}, activation(name, per_token, at(input).type));
  }
  // Of `width` features, of every head.
  Index repeat(const std::string& name, Index input, std::int64_t width) {
    if (shape_.kv_heads == shape_.heads) return input;
    return copy(name, input, shape_.heads * width);
  }
  // Rows of one sequence's heads times those of another: [S, width] x [width, S], or the other way.
  Index product(Indices inputs, std::int64_t width, Index output) {
    pass(at(output).name, Function::kMatrixProduct, inputs, output);
    last().kind = OperationKind::kAttention;
    last().saved = std::move(inputs);
    last().attention = shape_;
    last().attention.head_dim = width;
    last().attention.causal = false;
    return output;
  }
  Index softmax(Index input, ElementType type) {
    const Index output = scores("softmax", type);
    pass("softmax", Function::kSoftmax, {input}, output);
    last().saved = {output};
    last().backward_workspace = {scores("softmax_times_grad", type)};
    return output;
  }
  void release(const Indices& tensors) {
    last().released.insert(last().released.end(), tensors.begin(), tensors.end());
  }

  // Views where one fused projection is read.
  Indices heads(const Indices& inputs) {
    if (inputs.size() == 3) return inputs;
    const std::int64_t kv = shape_.kv_heads * shape_.head_dim;
    const ElementType type = at(inputs.front()).type;
    Indices parts = {activation("q", shape_.heads * shape_.head_dim, type),
                     activation("k", kv, type), activation("v", kv, type)};
    Operation& op = operations_.emplace_back();
    op.name = "split";
    op.function = Function::kCopy;
    op.part = part_;
    op.inputs = inputs;
    op.outputs = parts;
    op.view = true;
    return parts;
  }

 private:
  LayerSpec& layer_;
  std::int8_t part_;
  AttentionShape shape_;
  std::int64_t sequence_;
  std::vector<Operation> operations_;
};

std::vector<Operation> math(LayerSpec& layer, const Operation& op, const Plan& plan) {
  const AttentionShape& shape = op.attention;
  constexpr ElementType kFp32 = ElementType::kFp32;
  Written out(layer, op, plan);
  const Indices qkv = out.heads(op.inputs);
  const Index q = out.scale("scaled_q", out.cast("q_fp32", qkv[0], kFp32));
  Index k = out.cast("k_fp32", qkv[1], kFp32);
  if (shape.broadcasts) {  // heads are expanded for the product, after the scale
    k = out.repeat("k_repeat", out.scale("scaled_k", k), shape.head_dim);
  } else {
    k = out.scale("scaled_k", out.repeat("k_repeat", k, shape.head_dim));
  }
  const Index v = out.repeat("v_repeat", out.cast("v_fp32", qkv[2], kFp32), shape.values());
  Index scores = out.product({q, k}, shape.head_dim, out.scores("scores", kFp32));
  if (shape.causal || plan.batch.padded) {
    scores =
        out.pass("masked_scores", Function::kAdd, {scores}, out.scores("masked_scores", kFp32));
    out.last().in_place = true;
    out.last().gradient = GradientRule::kAlias;
  }
  const Index softmax = out.softmax(scores, kFp32);
  out.last().forward_workspace = {out.scores("softmax_unmasked", kFp32),
                                  out.scores("masked_rows", ElementType::kByte)};
  const std::int64_t width = shape.heads * shape.values();
  const Index wide =
      out.product({softmax, v}, shape.values(), out.activation("attention_fp32", width, kFp32));
  out.release({softmax, q, k, v});
  const Index narrow = out.cast("attention_heads", wide, ElementType::kCompute);
  if (plan.compute_dtype() != DType::kFp32) {
    out.last().forward_workspace = {out.scores("probabilities", ElementType::kCompute)};
  }
  out.pass("attention_rows", Function::kCopy, {narrow}, op.outputs.front());
  return out.take();
}

// Whose own attention takes its softmax in fp32; the others take it as scores are (read at
// transformers 5.17, models/FAMILY/modeling_FAMILY.py).
bool softmax_is_fp32(std::string_view family) {
  static constexpr std::string_view kAsScores[] = {"gpt2", "bert", "roberta", "falcon"};
  return std::find(std::begin(kAsScores), std::end(kAsScores), family) == std::end(kAsScores);
}

std::vector<Operation> eager(LayerSpec& layer, const Operation& op, const Plan& plan,
                             std::string_view family) {
  const AttentionShape& shape = op.attention;
  constexpr ElementType kCompute = ElementType::kCompute;
  Written out(layer, op, plan);
  const Indices qkv = out.heads(op.inputs);
  const Index k = out.repeat("k_repeat", qkv[1], shape.head_dim);
  const Index v = out.repeat("v_repeat", qkv[2], shape.values());
  // A product over several sequences wants each head's rows together.
  const bool copies = plan.batch.micro_batch > 1;
  const auto rows = [&](const char* name, Index t, bool is_copy) {
    return copies && !is_copy ? out.copy(name, t, out.at(t).per_token) : t;
  };
  const bool repeats = shape.kv_heads != shape.heads;
  const Index q = rows("q_heads", qkv[0], false);
  const Index keys = rows("k_heads", k, repeats);
  Index scores = out.product({q, keys}, shape.head_dim, out.scores("scores", kCompute));
  scores = out.scale("scaled_scores", scores);
  if (shape.softcap) {
    const Index divided = out.scale("scores_over_cap", scores);
    const Index tanh = out.scale("scores_tanh", divided);
    out.last().function = Function::kTanh;
    out.last().saved = {tanh};
    scores = out.scale("capped_scores", tanh);
  }
  if (shape.causal || plan.batch.padded) {
    scores =
        out.pass("masked_scores", Function::kAdd, {scores}, out.scores("masked_scores", kCompute));
    out.last().gradient = GradientRule::kAlias;
  }
  Index probabilities = 0;
  if (softmax_is_fp32(family)) {
    const Index softmax =
        out.softmax(out.cast("scores_fp32", scores, ElementType::kFp32), ElementType::kFp32);
    probabilities = out.cast("probabilities", softmax, kCompute);
    out.release({scores, softmax});
  } else {
    probabilities = out.softmax(scores, kCompute);
    out.release({scores});
  }
  if (shape.dropout) {
    const Index mask = out.scores("probabilities_mask", ElementType::kByte);
    const Index kept = out.scores("kept_probabilities", kCompute);
    out.pass("probabilities_dropout", Function::kDropout, {probabilities}, kept);
    out.last().outputs.push_back(mask);
    out.last().saved = {mask};
    out.release({mask, probabilities});
    probabilities = kept;
  }
  const Index values = rows("v_heads", v, repeats);
  const Index made =
      out.product({probabilities, values}, shape.values(),
                  out.activation("attention_heads", shape.heads * shape.values(), kCompute));
  out.pass("attention_rows", Function::kCopy, {made}, op.outputs.front());
  out.release({made, k, v, keys, values, q, probabilities});
  return out.take();
}

// Width of the kernel's fp32 accumulator of dq.
std::int64_t accumulator_width(const AttentionShape& shape) {
  constexpr std::int64_t kRounding = 32;
  return shape.heads * ((shape.head_dim + kRounding - 1) / kRounding * kRounding);
}

void add_workspace(LayerSpec& layer, Operation& op) {
  const AttentionShape& shape = op.attention;
  const auto workspace = [&](const char* name, std::int64_t per_token, ElementType type) {
    op.backward_workspace.push_back(
        add_tensor(layer, {.name = name, .per_token = per_token, .type = type}));
  };
  workspace("dq_accumulator", accumulator_width(shape), ElementType::kFp32);
  workspace("softmax_d", shape.heads, ElementType::kFp32);
  if (shape.kv_heads == shape.heads) return;
  for (const char* name : {"dk_expanded", "dv_expanded"}) {
    workspace(name, shape.heads * shape.head_dim, ElementType::kCompute);
  }
}

// What made the tensor put several next to each other, or one next to nothing.
bool is_concatenated(const LayerSpec& layer, Index t) {
  return std::any_of(layer.operations.begin(), layer.operations.end(), [&](const Operation& op) {
    return !op.view && op.function == Function::kCopy && op.gradient == GradientRule::kAlias &&
           op.outputs.front() == t;
  });
}

std::vector<Operation> fused(LayerSpec& layer, Operation op, const Plan& plan, bool masked) {
  const bool efficient = dispatched(plan, op.attention, masked) == AttentionKernel::kEfficient;
  // (transformers' code; others concatenate rows of heads.)
  const bool by_heads = plan.kernels.rope == ModuleKernels::Rope::kReal && op.inputs.size() == 3 &&
                        is_concatenated(layer, op.inputs.front());
  Written out(layer, op, plan);
  if (efficient && op.inputs.size() == 3) {
    for (const std::size_t input : {std::size_t{1}, std::size_t{2}}) {
      const Index narrow = op.inputs[input];
      const std::int64_t width = input == 1 ? op.attention.head_dim : op.attention.values();
      const Index wide = out.repeat(tensor(layer, narrow).name + "_repeat", narrow, width);
      op.inputs[input] = wide;
      std::replace(op.saved.begin(), op.saved.end(), narrow, wide);
    }
    op.attention.kv_heads = op.attention.heads;
  }
  if (masked) {  // of 16 bits, made of the boolean one at every call; nothing is skipped
    const std::int64_t sequence = layer.domain.length(plan.batch.sequence);
    const Index mask = out.pass("mask", Function::kCopy, {},
                                out.activation("mask", sequence, ElementType::kCompute));
    out.last().gradient = GradientRule::kNone;
    op.saved.push_back(mask);
    op.released.push_back(mask);
    op.attention.causal = false;
    op.attention.window = 0;
  }
  add_workspace(layer, op);
  std::vector<Operation> operations = out.take();
  const Index rows = op.outputs.front();
  const Index heads = by_heads ? out.activation("attention_heads", tensor(layer, rows).per_token,
                                                ElementType::kCompute)
                               : rows;
  op.outputs.front() = heads;
  std::replace(op.saved.begin(), op.saved.end(), rows, heads);
  operations.push_back(std::move(op));
  if (by_heads) {
    out.pass("attention_rows", Function::kCopy, {heads}, rows);
    operations.push_back(out.take().front());
  }
  return operations;
}

}  // namespace

void apply_attention(LayerSpec& layer, const Plan& plan, std::string_view family) {
  for (std::size_t o = 0; o < layer.operations.size(); ++o) {
    if (layer.operations[o].kind != OperationKind::kAttention) continue;
    Operation op = std::move(layer.operations[o]);
    layer.operations.erase(layer.operations.begin() + static_cast<std::ptrdiff_t>(o));
    const std::int64_t sequence = layer.domain.length(plan.batch.sequence);
    const bool masked = is_masked(plan, op.attention, sequence);
    const AttentionKernel kernel = dispatched(plan, op.attention, masked);
    std::vector<Operation> made = kernel == AttentionKernel::kMath ? math(layer, op, plan)
                                  : kernel == AttentionKernel::kEager
                                      ? eager(layer, op, plan, family)
                                      : fused(layer, std::move(op), plan, masked);
    layer.operations.insert(layer.operations.begin() + static_cast<std::ptrdiff_t>(o),
                            std::make_move_iterator(made.begin()),
                            std::make_move_iterator(made.end()));
    o += made.size() - 1;
  }
}

}  // namespace foreshard
