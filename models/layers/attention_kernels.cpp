// What scaled_dot_product_attention dispatches to (PyTorch 2.11, aten/src/ATen/native/transformers/cuda/sdp_utils.cpp):
// flash and cuDNN take 16 bits, no mask, and fewer key heads than query heads where they are told of groups
// (enable_gqa); the memory-efficient kernel takes fp32 and masks whose rows are contiguous, and no groups; the rest is
// computed by operations. Values narrower than keys, which flash does not take, are cuDNN's, whose result lies as
// flash's does (the memory-efficient kernel's, where cuDNN is off). transformers repeats keys and values itself where
// there is a mask (integrations/sdpa_attention.py).
//
// By operations, math (aten/src/ATen/native/transformers/attention.cpp, _scaled_dot_product_attention_math): in fp32, q
// and k each times the root of the scale, their product, the causal mask added in place, _safe_softmax (a softmax,
// where rows are not all masked), the product with v, and casts of both results. Saved: scaled q, scaled k of every
// head, v of every head, and the softmax.
//
// By operations, eager (transformers' eager_attention_forward): product, scale, perhaps a cap, the mask, a softmax in
// fp32 of an fp32 copy and a cast (or of the scores as they are), dropout, the product with v. Saved: q (a copy of rows
// by heads where there are several sequences), repeated k and v, the softmax, its cast.
//
// A fused kernel returns heads as its queries lie, the memory-efficient one rows. Queries that were concatenated lie
// head by head, and so do products of heads: their result is copied to rows for the projection.
#include "models/layers/attention_kernels.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "models/layers/block_parts.h"
#include "models/layers/family_rows.h"
#include "models/layers/module_kernels.h"
#include "sim/base/lookup.h"
#include "sim/graph/layers/given_mask.h"
#include "sim/graph/layers/layer_writer.h"

namespace foreshard {
namespace {

// What the code of a family does beyond its operations (transformers 5.17, models/FAMILY/
// modeling_FAMILY.py; torchtitan's models/gpt_oss and models/llama4).
struct FamilyCode {
  std::string_view family;
  // Its own attention takes the softmax in the scores' dtype, which under autocast is fp32.
  bool softmax_as_scores = false;
  bool narrows = false;       // ... and gives it the values' dtype before dropout, not behind it
  bool fp32_scores = false;   // ... queries and keys are cast to fp32 in front of their product
  bool only_eager = false;    // it knows none of scaled_dot_product_attention's kernels
  bool flexible = false;      // FlexAttention in place of PyTorch's other kernels: it takes windows
  bool chunked = false;       // windows do not slide: positions attend within their own chunk
  bool biased = false;        // scores have a bias of positions (T5)
  bool strided = false;       // ... whose rows do not lie one behind the other (umT5)
  bool bounded = false;       // eager: queries are scaled, not scores; of those the maximum is taken
  bool sinks = false;         // eager: a learned logit of each head is one more score
  bool masks = false;         // it makes a mask of what came before in any case (Falcon's, for ALiBi)
  bool indexed = false;       // a mask of each block's own, of the best positions (DeepSeek-V3.2)
  bool disentangled = false;  // its own operations, whatever is asked for (DeBERTa)
  bool scales = false;        // eager: what is made is weighed by the scores' logsumexp and a sink
};
constexpr FamilyCode kFamilyCode[] = {
    {.family = "gpt2", .softmax_as_scores = true, .narrows = true},
    {.family = "falcon", .softmax_as_scores = true, .masks = true},
    {.family = "megatron_bert", .softmax_as_scores = true, .only_eager = true},
    {.family = "rembert", .softmax_as_scores = true, .only_eager = true},
    {.family = "deberta_v2", .disentangled = true},
    {.family = "mvp", .softmax_as_scores = true, .only_eager = true},
    {.family = "xglm", .softmax_as_scores = true, .only_eager = true, .bounded = true},
    {.family = "t5", .softmax_as_scores = true, .biased = true},
    {.family = "gptj", .fp32_scores = true},
    {.family = "codegen", .fp32_scores = true},
    {.family = "gpt_neo", .fp32_scores = true, .only_eager = true},
    {.family = "gpt_oss", .softmax_as_scores = true, .flexible = true, .sinks = true},
    {.family = "llama4", .flexible = true, .chunked = true},
    {.family = "deepseek_v32", .indexed = true},
    {.family = "glm_moe_dsa", .indexed = true},
    {.family = "granite_swa", .only_eager = true, .scales = true},
    {.family = "granitemoe_swa", .only_eager = true, .scales = true},
    {.family = "umt5", .softmax_as_scores = true, .biased = true, .strided = true},
};
// (Those that differ in this alone.)
constexpr std::string_view kSoftmaxAsScores =
    " bert roberta xlm_roberta_xl roberta_prelayernorm biogpt ernie data2vec_text xlm_roberta distilbert electra "
    "nomic_bert albert bart mbart pegasus marian blenderbot m2m_100 ";

FamilyCode code_of(std::string_view family) {
  FamilyCode code = row_of(kFamilyCode, family);
  const std::string word = " " + std::string(family) + " ";
  code.softmax_as_scores |= contains(kSoftmaxAsScores, word);
  return code;
}

// What is added to the scores. kLearned: a bias that wants its gradient, which the memory-efficient
// kernel alone makes. kZeros: a mask that masks nothing, given to cross attention; transformers
// makes it want a gradient where blocks are checkpointed.
enum class ScoreBias : std::uint8_t { kNone, kLearned, kZeros };
ScoreBias bias_of(const FamilyCode& code, const Operation& op, const Plan& plan) {
  if (!code.biased) return ScoreBias::kNone;
  const bool crosses = op.name.starts_with("cross");
  return crosses && plan.recompute == RangedPolicy<Recompute>{} ? ScoreBias::kZeros : ScoreBias::kLearned;
}

// A cache that the program holds with the model's outputs has keys and values beside their repeats
// (in fp32 beside what was cast of them: variants.cpp).
bool holds_cache(const LayerSpec& layer, const Plan& plan, const AttentionShape& shape) {
  return plan.kernels.keeps_cache && plan.logits != Logits::kReleased && shape.kv_heads != shape.heads &&
         std::ranges::none_of(
             layer.tensors,
             [](const TensorSpec& tensor) {
               return tensor.name.starts_with(kCached) && tensor.type == ElementType::kFp32;
             });
}

// Kernels of packages of their own take the window's length and skip what lies outside of it, as
// torchtitan's FlexAttention does; transformers' models are given a mask.
bool takes_windows(const Plan& plan, const FamilyCode& code) {
  using enum AttentionKernel;
  const AttentionKernel kernel = plan.attention;
  return kernel == kFa1 || kernel == kFa2 || kernel == kFa3 || kernel == kTriton ||
         (code.flexible && plan.transformers() == 0 && (kernel == kFlash || kernel == kFlex));
}

bool is_masked(const Plan& plan, const FamilyCode& code, const AttentionShape& shape, std::int64_t sequence) {
  const bool is_outside = shape.window > 0 && sequence >= shape.window;
  const bool makes_mask = code.masks && plan.transformers() > 0;
  return plan.batch.padded || plan.kernels.given_mask || code.indexed || makes_mask ||
         (is_outside && !takes_windows(plan, code));
}

AttentionKernel dispatched(
    const Plan& plan, const FamilyCode& code, const AttentionShape& shape, bool masked, ScoreBias bias) {
  using enum AttentionKernel;
  constexpr std::int64_t kWidestHead = 256;
  const AttentionKernel asked = plan.attention == kFlashAllHeads ? kFlash : plan.attention;
  if (bias == ScoreBias::kLearned && asked != kEager && asked != kMath)
    return plan.kernels.strided_bias || code.strided ? kMath : kEfficient;
  if (asked != kFlash && asked != kCudnn && asked != kEfficient) return asked;
  if (code.only_eager) return kEager;
  const bool groups = shape.kv_heads != shape.heads && plan.attention != AttentionKernel::kFlashAllHeads;
  if (groups && shape.broadcasts) return kMath;
  if (!plan.has_flash() && plan.compute_dtype() == DType::kBf16 && asked != kEfficient) return kMath;
  const bool half = plan.has_flash() && plan.compute_dtype() != DType::kFp32;
  constexpr std::int64_t kWidestOfCudnn = 128;
  if (masked && asked == kCudnn && half && shape.head_dim <= kWidestOfCudnn) return kCudnn;
  if (masked || bias == ScoreBias::kZeros) return kEfficient;
  if (half && shape.head_dim <= kWidestHead) return asked;
  // transformers repeats keys and values of wider heads itself (use_gqa_in_sdpa).
  const bool repeats = shape.head_dim > kWidestHead && plan.transformers() > 0;
  // torchtitan 0.2's list is cuDNN's, flash, math (models/attention.py).
  const bool is_listed = asked == kCudnn && plan.step_frame != StepFrame::kPlain;
  return is_listed || (groups && !repeats && asked != kEfficient) ? kMath : kEfficient;
}

// Operations in the place of one attention.
class Written : public LayerWriter {
 public:
  Written(LayerSpec& layer, const Operation& attention, const Plan& plan, ScoreBias bias = ScoreBias::kNone)
      : LayerWriter(layer, written_),
        bias_(bias),
        shape_(attention.attention),
        sequence_(layer.domain.length(plan.batch.sequence)) {
    part_ = attention.part;
  }

  std::vector<Operation> take() { return std::exchange(written_, {}); }
  Index scores(const std::string& name, ElementType type) {
    return activation(name, checked_multiply(shape_.heads, sequence_), type);
  }

  // Reads the inputs, saves nothing.
  Index pass(const std::string& name, Function function, Indices inputs, Index output) {
    LayerWriter::pass(name, function, std::move(inputs), {output});
    return output;
  }
  Index scale(const std::string& name, Index input) {
    return pass(name, Function::kScale, {input}, like(input, name, spec_of(input).type));
  }
  Index cast(const std::string& name, Index input, ElementType type) {
    return pass(name, Function::kCast, {input}, like(input, name, type));
  }
  Index copy(const std::string& name, Index input) {
    return pass(name, Function::kCopy, {input}, like(input, name, spec_of(input).type));
  }
  // A product over several sequences wants each head's rows together; one head of one sequence is
  // a view of all.
  bool expands(const Plan& plan) const { return shape_.kv_heads == 1 && plan.batch.micro_batch == 1; }
  // Of `width` features, of every head.
  Index repeat(const std::string& name, Index input, std::int64_t width) {
    if (shape_.kv_heads == shape_.heads) return input;
    const Index output = activation(name, shape_.heads * width, spec_of(input).type);
    return pass(name, Function::kCopy, {input}, output);
  }
  // Rows of one sequence's heads times those of another: [S, width] x [width, S], or the other way.
  Index product(Indices inputs, std::int64_t width, Index output) {
    pass(spec_of(output).name, Function::kMatrixProduct, inputs, output);
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
  // Keeps a mask of one byte per score; the caller lets go of the input.
  Index dropout(Index probabilities) {
    if (!shape_.dropout) return probabilities;
    const Index mask = scores("probabilities_mask", ElementType::kByte);
    const Index kept = scores("kept_probabilities", spec_of(probabilities).type);
    pass("probabilities_dropout", Function::kDropout, {probabilities}, kept);
    last().outputs.push_back(mask);
    last().saved = {mask};
    release({mask, probabilities});
    return kept;
  }
  // Of a learned bias of an earlier block, [1, heads, positions, positions]: the sum over the
  // batch, then in the bias's dtype. (A block that made the bias has it among its tensors.)
  void add_bias_gradient(const Operation& op) {
    if (bias_ != ScoreBias::kLearned || op.inputs.size() > 3) return;
    for (const ElementType type : {ElementType::kFp32, ElementType::kCompute}) {
      last().backward_workspace.push_back(
          tensor({.name = "bias.grad", .per_position = checked_multiply(shape_.heads, sequence_), .type = type}));
    }
  }
  // Views where one fused projection is read.
  Indices heads(const Indices& inputs) {
    if (inputs.size() >= 3) return inputs;  // (behind them, perhaps a bias)
    const std::int64_t kv = shape_.kv_heads * shape_.head_dim;
    const ElementType type = spec_of(inputs.front()).type;
    Indices parts = {
        activation("q", shape_.heads * shape_.head_dim, type), activation("k", kv, type), activation("v", kv, type)};
    LayerWriter::pass("split", Function::kCopy, inputs, parts).view = true;
    return parts;
  }

 private:
  ScoreBias bias_;
  AttentionShape shape_;
  std::int64_t sequence_;
  std::vector<Operation> written_;
};

// The terms of a sum with the bias, where the block makes it itself.
Indices with_bias(Index scores, const Operation& op) {
  Indices terms = {scores};
  if (op.inputs.size() > 3) terms.push_back(op.inputs.back());
  return terms;
}

std::vector<Operation> math(LayerSpec& layer, const Operation& op, const Plan& plan, ScoreBias bias) {
  const AttentionShape& shape = op.attention;
  constexpr ElementType kFp32 = ElementType::kFp32;
  Written out(layer, op, plan, bias);
  const Indices qkv = out.heads(op.inputs);
  const Index q = out.scale("scaled_q", out.cast("q_fp32", qkv[0], kFp32));
  Index k = out.cast("k_fp32", qkv[1], kFp32);
  Index v = out.cast("v_fp32", qkv[2], kFp32);
  if (shape.broadcasts) {  // heads are expanded for the product, after the scale
    k = out.scale("scaled_k", k);
    if (!out.expands(plan)) k = out.repeat("k_repeat", k, shape.head_dim);
  } else {
    k = out.scale("scaled_k", out.repeat("k_repeat", k, shape.head_dim));
  }
  if (!shape.broadcasts || !out.expands(plan)) v = out.repeat("v_repeat", v, shape.values());
  Index scores = out.product({q, k}, shape.head_dim, out.scores("scores", kFp32));
  if (shape.causal || plan.batch.padded || bias != ScoreBias::kNone) {
    scores = out.pass("masked_scores", Function::kAdd, with_bias(scores, op), out.scores("masked_scores", kFp32));
    out.last().in_place = true;
    out.last().gradient = GradientRule::kAlias;
  }
  Index softmax = out.softmax(scores, kFp32);
  out.last().forward_workspace = {out.scores("softmax_unmasked", kFp32), out.scores("masked_rows", ElementType::kByte)};
  out.add_bias_gradient(op);
  softmax = out.dropout(softmax);
  const std::int64_t width = shape.heads * shape.values();
  const Index wide = out.product({softmax, v}, shape.values(), out.activation("attention_fp32", width, kFp32));
  if (holds_cache(layer, plan, shape)) append(out.last().saved, {qkv[1], qkv[2]});
  out.release({softmax, q, k, v});
  const Index narrow = out.cast("attention_heads", wide, ElementType::kCompute);
  if (plan.compute_dtype() != DType::kFp32)
    out.last().forward_workspace = {out.scores("probabilities", ElementType::kCompute)};
  out.pass("attention_rows", Function::kCopy, {narrow}, op.outputs.front());
  return out.take();
}

// Megatron's own and TransformerEngine's (megatron/model/transformer.py of 23.04, CoreAttention;
// megatron/fused_kernels): a product that scales, and one kernel that masks and makes the softmax;
// backward is given the gradient as it is. Heads are strided views.
std::vector<Operation> scaled_softmax(LayerSpec& layer, const Operation& op, const Plan& plan) {
  const AttentionShape& shape = op.attention;
  constexpr ElementType kCompute = ElementType::kCompute;
  Written out(layer, op, plan);
  const Indices qkv = out.heads(op.inputs);
  const Index k = out.repeat("k_repeat", qkv[1], shape.head_dim);
  const Index v = out.repeat("v_repeat", qkv[2], shape.values());
  const Index scores = out.product({qkv[0], k}, shape.head_dim, out.scores("scores", kCompute));
  Index probabilities = out.softmax(scores, kCompute);
  out.last().backward_workspace.clear();
  out.last().attention = shape;
  out.release({scores});
  probabilities = out.dropout(probabilities);
  const Index made = out.product(
      {probabilities, v}, shape.values(), out.activation("attention_heads", shape.heads * shape.values(), kCompute));
  out.pass("attention_rows", Function::kCopy, {made}, op.outputs.front());
  out.release({made, k, v, probabilities});
  return out.take();
}

std::vector<Operation> eager(
    LayerSpec& layer, const Operation& op, const Plan& plan, const FamilyCode& code, bool masked) {
  if (plan.runtime.kind == RuntimeKind::kMegatron) return scaled_softmax(layer, op, plan);
  const AttentionShape& shape = op.attention;
  constexpr ElementType kCompute = ElementType::kCompute;
  const ScoreBias bias = bias_of(code, op, plan);
  Written out(layer, op, plan, bias);
  const Indices qkv = out.heads(op.inputs);
  const bool copies = plan.batch.micro_batch > 1;
  const bool expands = out.expands(plan);
  const bool repeats = shape.kv_heads != shape.heads;
  // Of one sequence heads are views of the joined projection, but for those that the cache has copied.
  const bool caches = plan.kernels.keeps_cache && op.inputs.size() == 1 && !copies && !repeats;
  const auto heads = [&](const char* repeat, const char* cached, Index from, std::int64_t width) {
    if (caches) return out.copy(cached, from);
    return expands ? from : out.repeat(repeat, from, width);
  };
  const Index k = heads("k_repeat", "cached k", qkv[1], shape.head_dim);
  const Index v = heads("v_repeat", "cached v", qkv[2], shape.values());
  const auto rows = [&](const char* name, Index t, bool is_copy) { return copies && !is_copy ? out.copy(name, t) : t; };
  const bool widens = code.fp32_scores && plan.compute_dtype() != DType::kFp32;
  ElementType type = widens ? ElementType::kFp32 : kCompute;
  const auto factor = [&](const char* name, Index t) { return widens ? out.cast(name, t, type) : t; };
  const Index wide_q = factor("q_fp32", qkv[0]), wide_k = factor("k_fp32", k);
  const Index scaled_q = code.bounded ? out.scale("scaled_q", wide_q) : wide_q;
  const Index q = rows("q_heads", scaled_q, false);
  const Index keys = rows("k_heads", wide_k, repeats && !widens);
  Index scores = out.product({q, keys}, shape.head_dim, out.scores("scores", type));
  if (!code.bounded) scores = out.scale("scaled_scores", scores);
  if (shape.softcap) {
    const Index divided = out.scale("scores_over_cap", scores);
    const Index tanh = out.scale("scores_tanh", divided);
    out.last().function = Function::kTanh;
    out.last().saved = {tanh};
    scores = out.scale("capped_scores", tanh);
  }
  const auto add_to_scores = [&](const char* name, Indices terms) {
    scores = out.pass(name, Function::kAdd, std::move(terms), out.scores(name, type));
    out.last().gradient = GradientRule::kAlias;
  };
  // Embeddings of fp32 weights are in fp32, and the mask is in their dtype.
  const bool is_autocast = is_under_autocast(plan);
  const bool embeds_fp32 = is_autocast && (!plan.autocast || plan.param_dtype == DType::kFp32);
  const bool masks = shape.causal || masked;
  if (embeds_fp32 && (masks || bias != ScoreBias::kNone)) type = ElementType::kFp32;
  if (bias != ScoreBias::kNone) add_to_scores("biased_scores", with_bias(scores, op));
  if (masks) add_to_scores("masked_scores", {scores});
  if (code.bounded) {  // whose derivative compares what it was given
    add_to_scores("bounded_scores", {scores});
    out.last().gradient = GradientRule::kOwn;
    out.last().saved = out.last().inputs;
  }
  if (code.sinks) {
    // Joined, then less the largest, whose gradient is scattered into zeros and added.
    add_to_scores("scores_and_sinks", {scores});
    out.last().parameters = op.parameters;
    add_to_scores("shifted_scores", {scores});
    out.last().backward_workspace = {out.scores("largest.grad", type), out.scores("shifted_scores.grad", type)};
  }
  if (code.scales) {
    const Index logsumexp = op.outputs[1];
    out.pass("logsumexp", Function::kLogSoftmax, {scores}, logsumexp);
    out.last().saved = {scores, logsumexp};
    out.last().backward_workspace = {out.scores("logsumexp.grad", type)};
  }
  Index probabilities = 0;
  // (gpt-oss names the scores' dtype, which autocast leaves.)
  const bool softmax_in_fp32 = code.sinks ? type == ElementType::kFp32 : !code.softmax_as_scores || is_autocast;
  const ElementType kind = softmax_in_fp32 ? ElementType::kFp32 : kCompute;
  // (Of fp16 CUDA's softmax itself makes fp32, and of its gradient fp16: half_to_float.)
  const bool is_cast = softmax_in_fp32 && type != ElementType::kFp32 && plan.compute_dtype() != DType::kFp16;
  const auto narrow = [&] {
    if (!softmax_in_fp32) return;
    const Index wide = std::exchange(probabilities, out.cast("probabilities", probabilities, kCompute));
    out.release({wide});
  };
  const Index wide = is_cast ? out.cast("scores_fp32", scores, kind) : scores;
  probabilities = out.softmax(wide, kind);
  if (code.softmax_as_scores) out.add_bias_gradient(op);
  const bool narrows_first = !code.softmax_as_scores || code.narrows;
  if (narrows_first) narrow();
  out.release({scores});
  probabilities = out.dropout(probabilities);
  if (!narrows_first) narrow();
  const Index values = rows("v_heads", v, repeats);
  const Index made = out.product({probabilities, values}, shape.values(),
      out.activation("attention_heads", shape.heads * shape.values(), kCompute));
  if (holds_cache(layer, plan, shape)) append(out.last().saved, {qkv[1], qkv[2]});
  out.pass("attention_rows", Function::kCopy, {made}, op.outputs.front());
  out.release({made, k, v, keys, values, q, probabilities});
  if (widens) out.release({wide_q, wide_k});
  return out.take();
}

// Width of the kernel's fp32 accumulator of dq.
std::int64_t accumulator_width(const AttentionShape& shape) {
  constexpr std::int64_t kRounding = 32;
  return shape.heads * ((shape.head_dim + kRounding - 1) / kRounding * kRounding);
}

void add_workspace(LayerSpec& layer, Operation& op) {
  const AttentionShape& shape = op.attention;
  const TensorSpec rows = tensor(layer, op.outputs.front());  // of fewer positions: their sizes
  const std::int64_t width = shape.heads * shape.values();
  const bool is_of_tokens = rows.per_token % width == 0 && rows.per_sequence == 0;
  const auto workspace = [&](const char* name, std::int64_t each, ElementType type) {
    TensorSpec made = {.name = name, .per_token = each, .type = type};
    if (!is_of_tokens) {
      made.per_token = checked_multiply(rows.per_token, each);
      made.per_sequence = checked_multiply(rows.per_sequence, each);
      made.split = checked_multiply(rows.split, width);
    }
    op.backward_workspace.push_back(add_tensor(layer, std::move(made)));
  };
  workspace("dq_accumulator", accumulator_width(shape), ElementType::kFp32);
  workspace("softmax_d", shape.heads, ElementType::kFp32);
  if (shape.kv_heads == shape.heads) return;
  for (const char* name : {"dk_expanded", "dv_expanded"})
    workspace(name, shape.heads * shape.head_dim, ElementType::kCompute);
}

// What made the tensor put several next to each other, or one next to nothing.
bool is_concatenated(const LayerSpec& layer, Index t) {
  return std::ranges::any_of(
      layer.operations,
      [&](const Operation& op) {
        return !op.view && op.function == Function::kCopy && op.gradient == GradientRule::kAlias &&
               op.outputs.front() == t;
      });
}

// transformers' create_position_bias_mask (integrations/sdpa_attention.py): the bias laid out by
// heads, anew in every block, or where() of it and the causal mask; zeros are those of the first
// block. A learned one's gradient has every sequence and is summed up to the bias's.
void add_bias_mask(LayerSpec& layer, Written& out, Operation& op, const Plan& plan, ScoreBias bias) {
  const bool learned = bias == ScoreBias::kLearned;
  if (!learned && !plan.batch.padded && layer.joins < 0) return;
  const std::int64_t sequence = layer.domain.length(plan.batch.sequence);
  const std::int64_t pairs = checked_multiply(op.attention.heads, sequence);
  const auto made = [&](const char* name, ElementType type, std::int64_t per_position) {
    TensorSpec spec = {.name = name, .type = type};
    (plan.batch.padded ? spec.per_token : spec.per_position) = per_position;
    return add_tensor(layer, std::move(spec));
  };
  Indices terms;
  if (op.inputs.size() > 3) terms.push_back(op.inputs.back());
  const Index mask = out.pass("bias_mask", Function::kCopy, terms, made("bias_mask", ElementType::kCompute, pairs));
  out.last().gradient = terms.empty() ? GradientRule::kNone : GradientRule::kAlias;
  if (op.attention.causal || plan.batch.padded) {
    const Index seen = made("seen", ElementType::kByte, sequence);
    out.last().outputs.push_back(seen);
    out.last().saved = {seen};
    out.release({seen});
  }
  op.saved.push_back(mask);
  op.released.push_back(mask);
  op.attention.causal = false;
  op.attention.masked = true;
  if (!learned) return;
  op.backward_workspace.push_back(add_tensor(layer, {.name = "bias.grad of all", .per_token = pairs}));
  if (terms.empty())  // (else it is the mask's gradient)
    op.backward_workspace.push_back(add_tensor(layer, {.name = "bias.grad", .per_position = pairs}));
  else op.inputs.back() = mask;
}

std::vector<Operation> fused(
    LayerSpec& layer, Operation op, const Plan& plan, bool masked, AttentionKernel kernel, ScoreBias bias) {
  const bool efficient = kernel == AttentionKernel::kEfficient;
  // (transformers' code; others concatenate rows of heads.)
  const bool by_heads = !efficient && plan.kernels.rope == ModuleKernels::Rope::kReal && op.inputs.size() == 3 &&
                        is_concatenated(layer, op.inputs.front());
  Written out(layer, op, plan);
  const bool repeats =
      efficient || (masked && kernel == AttentionKernel::kCudnn) || plan.attention == AttentionKernel::kFlashAllHeads;
  // (One head is expanded to all, a view: the kernel's gradients of all are summed up behind it.)
  if (repeats && op.inputs.size() == 3 && op.attention.kv_heads > 1) {
    const bool holds = holds_cache(layer, plan, op.attention);
    for (const std::size_t input : {std::size_t{1}, std::size_t{2}}) {
      const Index narrow = op.inputs[input];
      const std::int64_t width = input == 1 ? op.attention.head_dim : op.attention.values();
      const Index wide = out.repeat(tensor(layer, narrow).name + "_repeat", narrow, width);
      op.inputs[input] = wide;
      std::ranges::replace(op.saved, narrow, wide);
      if (holds) op.saved.push_back(narrow);
    }
    op.attention.kv_heads = op.attention.heads;
  }
  if (bias != ScoreBias::kNone) {
    add_bias_mask(layer, out, op, plan, bias);
  } else if (masked) {  // of 16 bits, made of the boolean one at every call; nothing is skipped
    const std::int64_t sequence = layer.domain.length(plan.batch.sequence);
    const Index mask = out.pass("mask", Function::kCopy, {}, out.activation("mask", sequence, ElementType::kCompute));
    out.last().gradient = GradientRule::kNone;
    op.saved.push_back(mask);
    op.released.push_back(mask);
    op.attention.causal = false;
    op.attention.masked = true;
    op.attention.window = 0;
  }
  if (kernel == AttentionKernel::kFlex) drop_random_state(op);
  add_workspace(layer, op);
  std::vector<Operation> operations = out.take();
  const Index rows = op.outputs.front();
  const Index heads =
      by_heads ? out.activation("attention_heads", tensor(layer, rows).per_token, ElementType::kCompute) : rows;
  op.outputs.front() = heads;
  std::ranges::replace(op.saved, rows, heads);
  operations.push_back(std::move(op));
  if (by_heads) {
    out.pass("attention_rows", Function::kCopy, {heads}, rows);
    operations.push_back(out.take().front());
  }
  return operations;
}

// What a block looks up of its bias, for each pair of positions (encoder_decoder.cpp).
void pair_positions(LayerSpec& layer, std::int64_t sequence) {
  if (layer.role != LayerRole::kBlock) return;
  for (TensorSpec& tensor : layer.tensors) tensor.per_position = checked_multiply(tensor.per_position, sequence);
}

// transformers' masks (masking_utils.py): sdpa's is boolean, one for all sequences where none has
// padding; eager's is of the compute dtype and has every sequence. A stack of two makes its own,
// and another of what it attends to of the first.
void give_mask(LayerSpec& layer, const Plan& plan, const Operation& op, AttentionKernel kernel) {
  const std::int64_t sequence = layer.domain.length(plan.batch.sequence);
  const std::string_view of = op.name.starts_with("cross") ? ": crossing"
                              : op.attention.window > 0    ? ": of a window"
                              : op.attention.causal        ? ": of what came before"
                                                           : "";
  TensorSpec mask = {.name = std::string(kGivenMask).append(of)};
  const bool eager = kernel == AttentionKernel::kEager;
  if (!eager) mask.type = ElementType::kByte;
  (eager || plan.batch.padded ? mask.per_token : mask.per_position) = sequence;
  add_tensor(layer, std::move(mask));
}

// The first block of a stack returns what it added to its scores, and the others are given it.
void give_bias(LayerSpec& layer, const Plan& plan, const Operation& op) {
  const bool crosses = op.name.starts_with("cross");
  TensorSpec bias = {.name = std::string(kGivenMask) + (crosses                  ? ": zeros"
                                                           : op.attention.causal ? ": decoder's bias"
                                                                                 : ": bias")};
  if (!crosses && is_under_autocast(plan)) bias.type = ElementType::kFp32;  // as it is looked up
  bias.per_position = checked_multiply(op.attention.heads, layer.domain.length(plan.batch.sequence));
  add_tensor(layer, std::move(bias));
}

// Scores of every pair by each of the index' heads in fp32, relu, their sum by the weights of
// heads, and a mask of the best (DeepseekV32Indexer).
std::vector<Operation> choose_positions(LayerSpec& layer, const Operation& attention, const Plan& plan) {
  const auto named = [&](std::string_view name) {
    const auto found = std::ranges::find(layer.tensors, name, &TensorSpec::name);
    return static_cast<Index>(found - layer.tensors.begin());
  };
  const Index queries = named(kIndexQueries), keys = named(kIndexKeys), weights = named(kIndexWeights);
  const std::int64_t heads = tensor(layer, weights).per_token;
  const std::int64_t sequence = layer.domain.length(plan.batch.sequence);
  constexpr ElementType kFp32 = ElementType::kFp32;
  Operation shaped = attention;
  shaped.attention.heads = shaped.attention.kv_heads = heads;
  Written out(layer, shaped, plan);
  const Index turned = out.copy("index_queries_rotated", queries);
  const Index wide = out.cast("index_queries_fp32", turned, kFp32);
  const Index wide_keys = out.cast("index_keys_fp32", keys, kFp32);
  const Index scores = out.product({wide, wide_keys}, tensor(layer, keys).per_token, out.scores("index_scores", kFp32));
  out.last().saved = {};
  const Index scaled = out.scale("scaled_index_scores", scores);
  out.release({scores});
  const Index positive = out.scale("positive_index_scores", scaled);
  out.release({scaled});
  const Index sum =
      out.pass("index_sum", Function::kAdd, {positive, weights}, out.activation("index_sum", sequence, kFp32));
  const Index best =
      out.pass("topk", Function::kTopK, {sum}, out.activation("best_positions", sequence, ElementType::kInt64));
  const Index seen =
      out.pass("index_mask", Function::kScatterAdd, {best}, out.activation("index_mask", sequence, ElementType::kByte));
  out.release({positive, sum, best, seen, wide, wide_keys, turned, queries, keys, weights});
  std::vector<Operation> made = out.take();
  for (Operation& op : made) op.gradient = GradientRule::kNone;
  return made;
}

// DisentangledSelfAttention (models/deberta_v2): heads are laid out first, keys are scaled, and
// what queries and keys make with rows of distances is gathered for each pair.
std::vector<Operation> disentangled(LayerSpec& layer, const Operation& op, const Plan& plan) {
  constexpr ElementType kCompute = ElementType::kCompute;
  const std::int64_t width = op.attention.head_dim, sequence = layer.domain.length(plan.batch.sequence);
  Written out(layer, op, plan);
  const auto laid_out = [&](const char* name, Index t) {
    const Index made = out.copy(name, t);
    out.release({t});
    return made;
  };
  const Index q = laid_out("q_heads", op.inputs[0]), k = laid_out("k_heads", op.inputs[1]),
              v = laid_out("v_heads", op.inputs[2]), scaled = out.scale("scaled_k", k);
  const auto add = [&](const char* name, const Indices& terms) {
    out.pass(name, Function::kAdd, terms, out.scores(name, kCompute));
    out.last().gradient = GradientRule::kAlias;
    out.release(terms);
    return out.last().outputs.front();
  };
  Index scores = out.product({q, scaled}, width, out.scores("scores", kCompute));
  for (std::size_t t = 0; t < layer.tensors.size(); ++t) {  // (for gradients of what projects them)
    if (!layer.tensors[t].name.starts_with(kDistanceRows)) continue;
    out.last().saved.push_back(static_cast<Index>(t));
    out.release({static_cast<Index>(t)});
  }
  Index by_distance = -1;
  for (auto rows = op.inputs.begin() + 3; rows != op.inputs.end(); ++rows) {
    const std::int64_t each = out.spec_of(*rows).per_sequence / width;
    const Index of = out.spec_of(*rows).name == kDistanceKeys ? q : k;
    const Index met = out.product({of, *rows}, width, out.activation("rows_met", each, kCompute));
    const Index ids = add_tensor(layer, {.name = "distances", .per_position = sequence, .type = ElementType::kInt64});
    out.pass("distances", Function::kArange, {}, ids);
    out.last().gradient = GradientRule::kNone;
    const Index gathered = out.pass("gather", Function::kGather, {met}, out.scores("gathered", kCompute));
    out.last().saved = {met, ids};  // (gather_backward asks for the sizes of what it read)
    out.release({met, ids, *rows});
    const Index part = out.scale("scaled_distances", gathered);
    out.release({gathered});
    by_distance = by_distance < 0 ? part : add("distance_scores", {by_distance, part});
  }
  if (by_distance >= 0) scores = add("scores_and_distances", {scores, by_distance});
  const Index unseen = out.activation("unseen", sequence, ElementType::kByte);
  Index masked = add("masked_scores", {scores});
  out.last().outputs.push_back(unseen);
  out.last().saved = {unseen};
  out.release({unseen});
  const Index probabilities = out.softmax(masked, kCompute);
  out.release({masked});
  const Index kept = out.dropout(probabilities);
  const Index made =
      out.product({kept, v}, width, out.activation("attention_heads", op.attention.heads * width, kCompute));
  out.pass("attention_rows", Function::kCopy, {made}, op.outputs.front());
  out.release({made, q, k, v, scaled, kept});
  // (Ones where nobody gives a mask.)
  const ElementType of_mask = plan.batch.padded ? ElementType::kInt64 : ElementType::kFp32;
  add_tensor(layer, {.name = std::string(kGivenMask), .per_token = sequence, .type = of_mask});
  add_tensor(
      layer, {.name = std::string(kGivenMask) + ": distances", .per_position = sequence, .type = ElementType::kInt64});
  return out.take();
}

// What weighs the output of a kernel that knows no sinks (weigh_by_sinks) is behind the operation:
// its parameter and its output become the operation's own.
void take_sinks(LayerSpec& layer, std::size_t behind, Operation& attention) {
  const auto first = layer.operations.begin() + behind;
  const auto last = std::find_if(first, layer.operations.end(),
      [&](const Operation& op) { return op.saved.size() == 2 && op.saved.front() == attention.outputs.front(); });
  attention.parameters = first->parameters;
  attention.outputs.front() = last->outputs.front();
  layer.operations.erase(first, last + 1);
}

// Chunks are to the kernel what packed documents are.
void attend_in_chunks(AttentionShape& shape, std::int64_t sequence) {
  const std::int64_t window = std::exchange(shape.window, 0);
  if (window == 0 || window >= sequence) return;
  shape.documents = std::max(shape.documents, (sequence + window - 1) / window);
}

}

void drop_random_state(Operation& attention) {
  Indices& outputs = attention.outputs;
  for (; outputs.size() > 2; outputs.pop_back()) {
    std::erase(attention.saved, outputs.back());
    std::erase(attention.released, outputs.back());
  }
}

void apply_attention(LayerSpec& layer, const Plan& plan, std::string_view family) {
  const FamilyCode code = code_of(family);
  if (code.biased) pair_positions(layer, layer.domain.length(plan.batch.sequence));
  for (std::size_t o = 0; o < layer.operations.size(); ++o) {
    if (layer.operations[o].kind != OperationKind::kAttention) continue;
    Operation op = std::move(layer.operations[o]);
    layer.operations.erase(layer.operations.begin() + o);
    const std::int64_t sequence = layer.domain.length(plan.batch.sequence);
    if (code.disentangled) {
      std::vector<Operation> made = disentangled(layer, op, plan);
      layer.operations.insert(layer.operations.begin() + o, made.begin(), made.end());
      o += made.size() - 1;
      continue;
    }
    const bool masked = is_masked(plan, code, op.attention, sequence);
    const ScoreBias bias = bias_of(code, op, plan);
    if (bias != ScoreBias::kNone) give_bias(layer, plan, op);
    const AttentionKernel kernel = dispatched(plan, code, op.attention, masked, bias);
    const bool by_scores = kernel == AttentionKernel::kEager && (op.attention.causal || masked);
    const bool by_sdpa = masked && (kernel == AttentionKernel::kEfficient || kernel == AttentionKernel::kMath);
    if (bias == ScoreBias::kNone && (by_scores || by_sdpa)) give_mask(layer, plan, op, kernel);
    if (code.sinks && kernel == AttentionKernel::kEager) take_sinks(layer, o, op);
    if (code.scales) layer.operations[o].gradient = GradientRule::kOwn;  // of the logsumexp
    if (code.chunked && !masked) attend_in_chunks(op.attention, sequence);
    const Operation attends = op;
    std::vector<Operation> made = kernel == AttentionKernel::kMath ? math(layer, op, plan, bias)
                                  : kernel == AttentionKernel::kEager
                                      ? eager(layer, op, plan, code, masked)
                                      : fused(layer, std::move(op), plan, masked, kernel, bias);
    if (code.indexed) {
      std::vector<Operation> chosen = choose_positions(layer, attends, plan);
      made.insert(made.begin(), std::make_move_iterator(chosen.begin()), std::make_move_iterator(chosen.end()));
    }
    layer.operations.insert(
        layer.operations.begin() + o, std::make_move_iterator(made.begin()), std::make_move_iterator(made.end()));
    o += made.size() - 1;
  }
}

}
