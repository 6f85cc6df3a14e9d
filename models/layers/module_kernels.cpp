// A layer is written anew, operation by operation; where a cast or a copy goes in, later operations
// read its result instead. The dtype of every tensor is known on the way: of the stream as the plan
// says, of a result that of its first input, of a sum the wider one.
//
// kernels.residual fp32   What enters and leaves blocks is fp32; sums promote, as PyTorch's do.
// kernels.norm compute    On the compute dtype: an fp32 input is cast first (composer's
//                         LPLayerNorm).
//   fp32                  On fp32: autocast lists layer_norm among fp32 operations (so is one under
//                         autocast whose family's norms are eager); apex' fused
//                         norm is given x.float(). The result stays fp32 under autocast, else it
//                         is cast back (type_as).
//   eager                 x.float(), pow(2), mean, x * rsqrt, type_as, times weight (Llama's
//                         RMSNorm; Gemma's, as all under eager-fp32, is times weight in fp32 and
//                         then type_as; T5's
//                         multiplies x itself by rsqrt). type_as an fp32 x is none. LayerNorms
//                         stay one kernel (OLMo 1's on x.float()), but for Cohere's: x - mean in
//                         the place of x, made once for the power and once more for the product.
// kernels.rope real       rotate_half (a copy), two products with tables, a sum, all of them over
//                         heads, transposed (Operation::attention says so); fused: one kernel.
// kernels.unpads          index_first_axis and pad_input of flash-attn 1 and 2: rows are copied
//                         out of the padded batch before attention and into zeros behind it.
// dtype.autocast          Products cast their fp32 input, and their fp32 weight in each use: a
//                         view of a flat parameter is no leaf, so autocast's cache does not keep
//                         it (aten/src/ATen/autocast_mode.cpp, cached_cast). The cast is saved for
//                         backward like any argument.
// kernels.train_metrics   log_softmax and nll_loss over the logits once more for each, under
//                         autocast with an fp32 result, kept by nobody.
// Under autocast the loss's log_softmax itself makes fp32 of bf16 logits (a dtype argument, no cast
// before it): autocast_mode.h, fp32_set_opt_dtype. Under ddp the loss is cast
// as transformers does it (loss/loss_utils.py: logits.float()).
#include "models/layers/module_kernels.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/layers/block_parts.h"
#include "models/layers/family_rows.h"
#include "models/layers/transformers_moe.h"
#include "sim/base/integers.h"
#include "sim/base/lookup.h"
#include "sim/graph/layers/given_mask.h"
#include "sim/spec/checks/plan_check.h"
#include "sim/spec/size_units.h"

namespace foreshard {
namespace {

using Norm = ModuleKernels::Norm;
using Rope = ModuleKernels::Rope;

// What a family's norms do where they are operations (transformers 5, models/FAMILY/modeling_FAMILY.py).
struct EagerNorms {
  std::string_view family;
  bool weighs_in_fp32 = false;    // the cast back is behind the weight
  bool normalizes_input = false;  // x itself is multiplied, not its fp32 copy
  bool centers = false;           // a LayerNorm without a kernel of its own
  bool widens = false;            // a LayerNorm's kernel, on an fp32 copy
  bool narrows = false;           // the same on a copy of autocast's dtype
};
constexpr EagerNorms kEagerNorms[] = {
    {.family = "gemma", .weighs_in_fp32 = true},
    {.family = "gemma2", .weighs_in_fp32 = true},
    {.family = "vaultgemma", .weighs_in_fp32 = true},
    {.family = "gemma3", .weighs_in_fp32 = true},
    {.family = "olmo", .widens = true},
    {.family = "olmo2", .weighs_in_fp32 = true},
    {.family = "olmo3", .weighs_in_fp32 = true},
    {.family = "flex_olmo", .weighs_in_fp32 = true},
    {.family = "helium", .weighs_in_fp32 = true},
    {.family = "gpt_oss", .weighs_in_fp32 = true},
    {.family = "cohere", .weighs_in_fp32 = true, .centers = true},
    {.family = "afmoe", .weighs_in_fp32 = true},
    {.family = "gemma4", .weighs_in_fp32 = true},
    {.family = "cohere2_moe", .weighs_in_fp32 = true, .centers = true},
    {.family = "cohere_compass", .weighs_in_fp32 = true, .centers = true},
    {.family = "t5", .normalizes_input = true},
    {.family = "umt5", .normalizes_input = true},
    {.family = "nemotron", .narrows = true},
    {.family = "qwen3_next", .weighs_in_fp32 = true},
    {.family = "qwen3_5", .weighs_in_fp32 = true},
    {.family = "qwen3_5_moe", .weighs_in_fp32 = true},
    {.family = "olmo_hybrid", .weighs_in_fp32 = true},
};

// Whose apply_rotary_pos_emb works in fp32; some turn halves before they are cast.
struct WideRope {
  std::string_view family;
  bool widens = false;
  bool halves_first = false;
};
constexpr WideRope kWideRopes[] = {
    {.family = "cohere", .widens = true},
    {.family = "cohere2", .widens = true},
    {.family = "cohere2_moe", .widens = true},
    {.family = "modernbert", .widens = true},
    {.family = "modernbert_decoder", .widens = true},
    {.family = "ernie4_5", .widens = true, .halves_first = true},
    {.family = "ernie4_5_moe", .widens = true, .halves_first = true},
};

// What comes to a layer in fp32: its input, what waited for it (LayerSpec::joins), and a stream that fully_shard casts
// on the way, which the block widens again to add to it (Mamba's residual_in_fp32).
struct Arrives {
  bool input = false, joined = false, narrowed = false;
  bool operator==(const Arrives&) const = default;
};

class Rewriter {
 public:
  // `streams_fp32`: what blocks hand on.
  Rewriter(LayerSpec layer, const Plan& plan, const ModelSpec& model, Arrives arrives, bool streams_fp32)
      : old_(std::move(layer)),
        plan_(plan),
        numerics_(model.numerics),
        norms_(row_of(kEagerNorms, model.family)),
        rope_(row_of(kWideRopes, model.family)),
        is_eager_(plan.kernels.norm == Norm::kEager || plan.kernels.norm == Norm::kEagerFp32),
        weighs_in_fp32_(norms_.weighs_in_fp32 || plan.kernels.norm == Norm::kEagerFp32),
        layer_(old_),
        renamed_(old_.tensors.size()),
        is_autocast_(is_under_autocast(plan)),
        is_exact_(is_of_modules(model) && plan.kernels == ModuleKernels{.train_metrics = plan.kernels.train_metrics}),
        routes_in_fp32_(routes_without_autocast(model.family)),
        streams_fp32_(streams_fp32),
        is_narrowed_(arrives.narrowed && !adds_sinusoids(model)),
        has_wide_adapters_(has_wide_adapters(plan)),
        has_fp32_adapters_(has_wide_adapters_ && is_zero(plan.runtime.kind)) {
    layer_.operations.clear();
    for (std::size_t t = 0; t < renamed_.size(); ++t) renamed_[t] = static_cast<Index>(t);
    if (arrives.input) widen(0);
    if (arrives.joined) widen(old_.joins);
  }

  LayerSpec run() {
    for (std::size_t o = 0; o < old_.operations.size(); ++o) {
      Operation op = old_.operations[o];
      for (Indices* list : {&op.inputs, &op.saved, &op.released})
        for (Index& t : *list) t = renamed_[at(t)];
      add(o, std::move(op));
    }
    layer_.output = renamed_[at(old_.output)];
    // An embedding of fp32 weights makes fp32; else the first sum or norm behind it would.
    const bool embeds = old_.role == LayerRole::kEmbedding;
    for (const Operation& op : layer_.operations)
      if (embeds && streams_fp32_ && op.kind == OperationKind::kEmbedding) widen(op.outputs.front());
    const bool streams = embeds || old_.role == LayerRole::kBlock;
    // (Autocast's product is not fp32, and nobody casts it.)
    const bool projects =
        is_autocast_ && embeds && !layer_.operations.empty() && layer_.operations.back().kind == OperationKind::kGemm;
    if (streams && streams_fp32_ && !projects && !is_fp32(layer_.output)) widen(layer_.output);
    hands_on_fp32_ = is_fp32(layer_.output);
    return std::move(layer_);
  }
  // After run().
  bool hands_on_fp32() const { return hands_on_fp32_; }

 private:
  // --- tensors ---

  Index tensor(TensorSpec spec) {
    layer_.tensors.push_back(std::move(spec));
    fp32_.resize(layer_.tensors.size(), false);
    return static_cast<Index>(layer_.tensors.size() - 1);
  }
  void widen(Index t) {
    ElementType& type = layer_.tensors[at(t)].type;
    if (type == ElementType::kCompute) type = ElementType::kFp32;
  }
  Index like(Index t, const std::string& name, ElementType type) {
    TensorSpec spec = layer_.tensors[at(t)];
    spec.name = name;
    spec.type = type;
    return tensor(std::move(spec));
  }
  const std::string& name(Index t) const { return layer_.tensors[at(t)].name; }

  bool is_fp32(Index t) const {
    return layer_.tensors[at(t)].type == ElementType::kFp32 || (at(t) < fp32_.size() && fp32_[at(t)]);
  }
  bool makes_fp32(const Operation& op) const {
    return layer_.tensors[at(op.outputs.front())].type == ElementType::kFp32;
  }
  bool is_float(Index t) const {
    const ElementType type = layer_.tensors[at(t)].type;
    return type == ElementType::kCompute || type == ElementType::kFp32;
  }

  // As sim/graph/layers/layer_casts.cpp gives results their dtype.
  void note_outputs(const Operation& op) {
    fp32_.resize(layer_.tensors.size(), false);
    if (is_exact_ || op.function == Function::kCast || op.kind == OperationKind::kEmbedding) return;
    bool wide = false;
    const bool promotes = op.function == Function::kAdd || op.function == Function::kMultiply;
    for (const Index t : op.inputs) {
      if (!is_float(t)) continue;
      wide = wide || is_fp32(t);
      if (!promotes) break;
    }
    for (const Index t : op.outputs)
      if (layer_.tensors[at(t)].type == ElementType::kCompute) fp32_[at(t)] = wide;
  }

  void push(Operation op) {
    note_outputs(op);
    layer_.operations.push_back(std::move(op));
  }

  Operation pass(const std::string& name, Function function, Indices inputs, Index output) const {
    Operation op;
    op.name = name;
    op.kind = OperationKind::kElementwise;
    op.function = function;
    op.part = part_;
    op.inputs = std::move(inputs);
    op.outputs = {output};
    return op;
  }

  Index cast(Index t, ElementType type) {
    const Index to = like(t, name(t) + (type == ElementType::kFp32 ? "_fp32" : "_cast"), type);
    push(pass(name(to), Function::kCast, {t}, to));
    return to;
  }
  // `of` is what operations read from here on instead of `t`, when it is of the compute dtype.
  void replace(Operation& op, Index from, Index to) const {
    for (Indices* list : {&op.inputs, &op.saved}) std::replace(list->begin(), list->end(), from, to);
  }

  // --- operations ---

  // fp32 adapters cast what they are given (peft/tuners/lora/layer.py, _cast_input_dtype; not those
  // of bnb.py under autocast), and their forward has a name of it.
  void widen_adapter(Operation& op) {
    if (op.name.ends_with(".sum") && adapted_ >= 0) op.released.push_back(std::exchange(adapted_, -1));
    const bool begins = op.name.ends_with(".dropout") || (op.name.ends_with(".lora_A") && plan_.lora.dropout == 0);
    if (!begins || is_fp32(op.inputs.front())) return;
    adapted_ = cast(op.inputs.front(), ElementType::kFp32);
    replace(op, op.inputs.front(), adapted_);
  }

  void add(std::size_t o, Operation op) {
    part_ = op.part;
    if (has_wide_adapters_) widen_adapter(op);
    if (op.scan.heads > 0) scanned_ = op.outputs.front();
    if (is_exact_ && (op.kind != OperationKind::kGemm || is_fp32(op.inputs.front()))) return push(std::move(op));
    switch (op.kind) {
      case OperationKind::kNorm:
        if (op.scan.heads > 0) return push(std::move(op));  // a kernel of the mixer's own
        return add_norm(std::move(op));
      case OperationKind::kGemm: return add_product(std::move(op));
      case OperationKind::kAttention: return add_attention(std::move(op));
      case OperationKind::kScan:
      case OperationKind::kSoftmaxLoss: return push(std::move(op));
      default: break;
    }
    if (is_rotary_cast(o) || skip_rotary(o)) return;
    if (op.function == Function::kRotary && plan_.kernels.rope != Rope::kComplex) return add_rotary(o);
    if (op.function == Function::kGelu && numerics_.gelu_new &&
        plan_.kernels.activation != ModuleKernels::Activation::kFused)
      return add_gelu_new(op);
    if (is_loss_cast(op)) {  // log_softmax takes a dtype; transformers' losses cast themselves
      renamed_[at(old_.operations[o].outputs.front())] = op.inputs.front();
      return;
    }
    if (op.function == Function::kCast && makes_fp32(op) && !op.inputs.empty() &&
        is_fp32(op.inputs.front())) {  // what is fp32 already is not copied
      renamed_[at(old_.operations[o].outputs.front())] = op.inputs.front();
      return;
    }
    const bool squares =
        op.function == Function::kMultiply && op.inputs.size() == 1 && op.outputs.size() == 1 && op.saved == op.inputs;
    // What is made of parameters alone is fp32, as they are.
    if (is_autocast_ && op.inputs.empty() && !op.parameters.empty()) widen(op.outputs.front());
    const bool in_fp32 = squares || op.name == kExpm1;
    if (in_fp32 && is_autocast_ && !is_fp32(op.inputs.front())) {  // as pow, among its fp32 ones
      const Index wide = cast(op.inputs.front(), ElementType::kFp32);
      replace(op, op.inputs.front(), wide);
      op.released.push_back(wide);
      layer_.tensors[at(op.outputs.front())].type = ElementType::kFp32;
    }
    const bool reads_stream = contains(op.inputs, Index{0});
    if (is_narrowed_ && op.function == Function::kAdd && reads_stream) {
      const Index wide = cast(0, ElementType::kFp32);
      replace(op, 0, wide);
      op.released.push_back(wide);
    }
    const bool adapted = has_fp32_adapters_ && op.name.ends_with(".sum");
    const bool narrows = adapted || sums_wide_rows(op);
    push(std::move(op));
    if (!narrows) return;
    const Index sum = layer_.operations.back().outputs.front();
    renamed_[at(old_.operations[o].outputs.front())] = cast(sum, ElementType::kCompute);
    if (adapted) layer_.operations.back().released = {sum};
  }

  void add_product(Operation op) {
    if (is_fp32_experts(op)) {
      const Index rows = op.inputs.front();
      if (!is_fp32(rows)) {
        widens_rows_ = true;
        replace(op, rows, cast(rows, ElementType::kFp32));
      }
      for (const Index folded : op.inputs) layer_.tensors[at(folded)].type = ElementType::kFp32;
      return push(std::move(op));
    }
    // A product of fp32 copies (a router's) stays one where no autocast makes 16 bits of them.
    const bool adapts = has_fp32_adapters_ && contains(op.name, ".lora_");
    const bool is_wide = adapts || ((!is_autocast_ || routes_in_fp32_) && makes_fp32(op));
    for (const Index t : Indices(op.inputs)) {
      if (!is_fp32(t) || is_wide) continue;
      replace(op, t, cast(t, ElementType::kCompute));
      if (t == old_.joins) op.saved.push_back(t);  // later blocks read it, too
    }
    // Of adapters and experts alike.
    if (plan_.autocast && plan_.param_dtype != *plan_.autocast && !op.packed) {
      op.casts_weight = true;
      std::int64_t elements = 0;
      for (const Index p : op.parameters) elements += layer_.parameters[at(p)].numel();
      const Index copy = tensor({.name = op.name + ".weight_cast", .fixed = elements});
      op.outputs.push_back(copy);
      op.saved.push_back(copy);
      op.released.push_back(copy);
    }
    push(std::move(op));
  }

  // Autocast has no rule for grouped_mm: transformers gives the rows their weights' dtype
  // (integrations/moe.py, _grouped_mm).
  bool is_fp32_experts(const Operation& op) const {
    const DType held = plan_.runtime.kind == RuntimeKind::kDdp ? plan_.master_dtype : plan_.param_dtype;
    return is_autocast_ && held == DType::kFp32 && op.groups > 1 && plan_.experts == ExpertKernels::kTransformers;
  }

  // ... and the sum over a token's rows the dtype that came in (grouped_mm_experts_forward).
  bool sums_wide_rows(const Operation& op) const {
    return widens_rows_ && op.function == Function::kAdd && op.inputs.size() == 1 && is_fp32(op.inputs.front());
  }

  void add_norm(Operation op) {
    const Index input = op.inputs.front();
    const bool by_operations = op.function == Function::kRmsNorm || norms_.centers;
    if (is_eager_ && by_operations) return add_eager(op);
    const bool narrows = is_eager_ && is_autocast_ && norms_.narrows;
    const bool widens = is_eager_ && (is_autocast_ || norms_.widens) && !narrows;
    const bool wants_fp32 = plan_.kernels.norm == Norm::kFp32 || widens;
    if (wants_fp32 != is_fp32(input) && (!is_eager_ || widens || narrows))
      replace(op, input, cast(input, wants_fp32 ? ElementType::kFp32 : ElementType::kCompute));
    const Index output = op.outputs.front();
    const bool casts_back = !is_autocast_ && (wants_fp32 || is_fp32(op.inputs.front()));
    push(std::move(op));
    if (casts_back) renamed_[at(output)] = cast(output, ElementType::kCompute);
  }

  // Each operation keeps what its derivative reads: pow its base, the products both factors.
  void add_eager(const Operation& op) {
    const Index input = op.inputs.front();
    const std::size_t first = layer_.operations.size();
    const Index wide = is_fp32(input) ? input : cast(input, ElementType::kFp32);
    const std::int64_t groups = layer_.tensors[at(op.outputs.back())].per_token;  // of the rstd
    const auto row = [&](const char* what) {
      return tensor({.name = name(op.outputs.front()) + what, .per_token = groups, .type = ElementType::kFp32});
    };
    const std::string base = name(op.outputs.front());
    const bool centers = op.function == Function::kLayerNorm;
    const auto center = [&](const char* what) {
      if (!centers) return wide;
      const Index centered = like(wide, base + what, ElementType::kFp32);
      push(pass(base + what, Function::kAdd, {wide}, centered));
      layer_.operations.back().gradient = GradientRule::kAlias;
      return centered;
    };
    if (centers) {
      const Index mean = row("_mean");
      push(pass(base + "_mean_of_row", Function::kColumnSum, {wide}, mean));
      layer_.operations.back().gradient = GradientRule::kNone;
      layer_.operations.back().released = {mean};
    }
    const Index squared = center("_centered");
    const Index square = like(wide, base + "_square", ElementType::kFp32);
    Operation pow = pass(base + "_pow", Function::kMultiply, {squared}, square);
    pow.saved = {squared};
    if (centers) pow.released = {squared};
    // pow_backward: another power, and the exponent times it.
    pow.backward_workspace = {
        like(wide, base + "_power", ElementType::kFp32), like(wide, base + "_times_exponent", ElementType::kFp32)};
    push(std::move(pow));
    const Index mean = row("_mean_square");
    Operation average = pass(base + "_mean", Function::kColumnSum, {square}, mean);
    average.released = {square};
    push(std::move(average));
    const Index rstd = row("_rsqrt");
    Operation rsqrt = pass(base + "_rsqrt", Function::kScale, {mean}, rstd);
    rsqrt.saved = {rstd};
    rsqrt.released = {mean};
    push(std::move(rsqrt));
    const Index scaled = like(wide, base + "_normalized", ElementType::kFp32);
    const Index factor_of_rstd = norms_.normalizes_input ? input : center("_centered_again");
    Operation product = pass(base + "_multiply", Function::kMultiply, {factor_of_rstd, rstd}, scaled);
    product.saved = {factor_of_rstd, rstd};
    product.sums_last = true;
    if (wide != input) product.released = {wide};
    if (centers) product.released.push_back(factor_of_rstd);
    push(std::move(product));
    if (op.parameters.empty()) {  // type_as alone
      if (is_fp32(input)) {
        renamed_[at(op.outputs.front())] = scaled;
      } else {
        Operation narrow = pass(base + "_cast", Function::kCast, {scaled}, op.outputs.front());
        narrow.released = {scaled};
        push(std::move(narrow));
      }
      for (std::size_t o = first; o < layer_.operations.size(); ++o) layer_.operations[o].eager_norm = true;
      return;
    }
    Operation weigh = op;  // its parameter is the weight
    weigh.kind = OperationKind::kElementwise;
    weigh.function = Function::kMultiply;
    // type_as of an fp32 input is no cast; what autocast does not narrow, the code does.
    const bool stays = is_fp32(input);
    // A norm behind linear attention narrows before the weight (RMSNormGated).
    const bool widens = layer_.tensors[at(op.outputs.front())].type == ElementType::kFp32;
    const bool in_fp32 = widens || (weighs_in_fp32_ && input != scanned_);
    const bool narrows = !widens && (stays ? !is_autocast_ : in_fp32);
    const Index factor = in_fp32 || stays ? scaled : cast(scaled, ElementType::kCompute);
    weigh.inputs = weigh.saved = {factor};
    weigh.released = {scaled};
    std::erase_if(weigh.parameters, [&](Index p) { return p != op.parameters.front(); });
    if (narrows) {
      const Index weighed = like(scaled, base + "_weighed", ElementType::kFp32);
      weigh.outputs = {weighed};
      push(std::move(weigh));
      Operation narrow = pass(base + "_cast", Function::kCast, {weighed}, op.outputs.front());
      narrow.released = {weighed};
      push(std::move(narrow));
    } else {
      weigh.outputs = {op.outputs.front()};
      push(std::move(weigh));
    }
    for (std::size_t o = first; o < layer_.operations.size(); ++o) layer_.operations[o].eager_norm = true;
  }

  // 0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * pow(x, 3)))), an operation each; autocast's
  // pow makes fp32. (transformers/activations.py, NewGELUActivation)
  void add_gelu_new(const Operation& op) {
    const Index input = op.inputs.front();
    const std::string base = name(op.outputs.front());
    const auto made = [&](const char* what, Index of) { return like(of, base + what, layer_.tensors[at(of)].type); };
    const auto push_pass = [&](const char* what, Function function, Indices inputs, Indices saved) {
      const Index output = made(what, inputs.back());
      Operation step = pass(base + what, function, std::move(inputs), output);
      step.saved = std::move(saved);
      push(std::move(step));
      return output;
    };
    const auto release = [&](Index t) { layer_.operations.back().released.push_back(t); };
    const Index half = push_pass("_half", Function::kScale, {input}, {});
    const bool widens = is_autocast_ && !is_fp32(input);
    const Index base_of_cube = widens ? cast(input, ElementType::kFp32) : input;
    const Index cube = push_pass("_pow", Function::kScale, {base_of_cube}, {base_of_cube});
    layer_.operations.back().backward_temporaries = {made("_square", base_of_cube)};
    const Index scaled = push_pass("_scaled_cube", Function::kScale, {cube}, {});
    release(cube);
    const Index sum = push_pass("_inner", Function::kAdd, {input, scaled}, {});
    layer_.operations.back().gradient = GradientRule::kAlias;
    release(scaled);
    const Index angle = push_pass("_scaled_inner", Function::kScale, {sum}, {});
    release(sum);
    const Index tanh = push_pass("_tanh", Function::kTanh, {angle}, {});
    layer_.operations.back().saved = {tanh};
    release(angle);
    const Index plus_one = push_pass("_plus_one", Function::kScale, {tanh}, {});
    release(tanh);
    const Index output = op.outputs.front();
    layer_.tensors[at(output)].type = layer_.tensors[at(plus_one)].type;
    Operation product = pass(base, Function::kMultiply, {half, plus_one}, output);
    product.saved = {half, plus_one};
    product.released = {half, plus_one};
    append(product.released, op.released);
    push(std::move(product));
  }

  void add_attention(Operation op) {
    if (!plan_.kernels.unpads) return push(std::move(op));
    for (const Index t : Indices(op.inputs)) {
      const Index packed = like(t, name(t) + "_unpadded", layer_.tensors[at(t)].type);
      Operation gather = pass(name(t) + "_unpad", Function::kGather, {t}, packed);
      gather.backward_temporaries = {packed};
      push(std::move(gather));
      replace(op, t, packed);
    }
    const Index output = op.outputs.front();
    push(std::move(op));
    const Index padded = like(output, "attention_padded", layer_.tensors[at(output)].type);
    push(pass("pad_input", Function::kScatterAdd, {output}, padded));
    renamed_[at(output)] = padded;
  }

  // --- rotary embedding: cast, rotate, cast back (models/layers/attention.cpp) ---

  const Operation* rotary_near(std::size_t o, int distance) const {
    const auto n = static_cast<std::ptrdiff_t>(o) + distance;
    if (n < 0 || n >= static_cast<std::ptrdiff_t>(old_.operations.size())) return nullptr;
    const Operation& op = old_.operations[at(n)];
    return op.function == Function::kRotary ? &op : nullptr;
  }
  bool is_rotary_cast(std::size_t o) const {
    if (plan_.kernels.rope == Rope::kComplex) return false;
    const Operation& op = old_.operations[o];
    const Operation* next = rotary_near(o, 1);
    return op.function == Function::kCast && next != nullptr && next->inputs.front() == op.outputs.front();
  }
  bool skip_rotary(std::size_t o) const {
    if (plan_.kernels.rope == Rope::kComplex) return false;
    const Operation& op = old_.operations[o];
    const Operation* before = rotary_near(o, -1);
    return op.function == Function::kCast && before != nullptr && before->outputs.front() == op.inputs.front();
  }
  void add_rotary(std::size_t o) {
    const Operation& to_fp32 = old_.operations[o - 1];
    const Operation& back = old_.operations[o + 1];
    const Index input = renamed_[at(to_fp32.inputs.front())];
    const Index output = back.outputs.front();
    const std::string base = name(output);
    if (plan_.kernels.rope == Rope::kFused) {
      push(pass(base, Function::kRotary, {input}, output));
      return;
    }
    const bool widens = rope_.widens && !is_fp32(input);
    const ElementType type = widens ? ElementType::kFp32 : ElementType::kCompute;
    const Index whole = widens ? cast(input, type) : input;
    const bool halves_first = widens && rope_.halves_first;
    const Indices& tables = old_.operations[o].backward_temporaries;
    const auto over_heads = [&](const char* what, Function function, Indices inputs, Index to) {
      Operation op = pass(base + what, function, std::move(inputs), to);
      op.attention.head_dim = tables.empty() ? 1 : old_.tensors[at(tables.front())].per_position;
      return op;
    };
    const Index cosine = like(input, base + "_cos", type), sine = like(input, base + "_sin", type);
    push(over_heads("_times_cos", Function::kMultiply, {whole}, cosine));
    if (halves_first) layer_.operations.back().released = {whole};
    const Index turned = like(input, base + "_half", halves_first ? ElementType::kCompute : type);
    push(over_heads("_rotate_half", Function::kCopy, {halves_first ? input : whole}, turned));
    const Index half = halves_first ? cast(turned, type) : turned;
    if (halves_first) layer_.operations.back().released = {turned};
    Operation times_sine = over_heads("_times_sin", Function::kMultiply, {half}, sine);
    times_sine.released = {half};
    push(std::move(times_sine));
    const Index turned_whole = widens ? like(input, base + "_wide", type) : output;
    Operation sum = over_heads("_sum", Function::kAdd, {cosine, sine}, turned_whole);
    sum.gradient = GradientRule::kAlias;
    sum.released = {cosine, sine};
    push(std::move(sum));
    if (!widens) return;
    Operation narrow = pass(base + "_narrow", Function::kCast, {turned_whole}, output);
    narrow.released = {turned_whole};
    if (!halves_first) narrow.released.push_back(whole);
    push(std::move(narrow));
  }

  bool is_loss_cast(const Operation& op) const {
    return plan_.autocast && !plan_.loss_in_forward && old_.role == LayerRole::kLoss &&
           plan_.loss.kind != Loss::Kind::kSmoothed && op.function == Function::kCast;
  }

  const LayerSpec old_;
  const Plan& plan_;
  const Numerics& numerics_;
  const EagerNorms norms_;
  const WideRope rope_;
  const bool is_eager_;
  const bool weighs_in_fp32_;
  LayerSpec layer_;
  Indices renamed_;
  const bool is_autocast_;
  const bool is_exact_;  // a program's own modules: tensors are of the types that they had
  const bool routes_in_fp32_;
  const bool streams_fp32_;
  const bool is_narrowed_;
  const bool has_wide_adapters_, has_fp32_adapters_;  // whose products are fp32, too
  Index adapted_ = -1;                                // what the adapter at hand made of its input
  std::vector<bool> fp32_;
  bool widens_rows_ = false;  // of this layer's experts
  bool hands_on_fp32_ = false;
  std::int8_t part_ = 0;
  Index scanned_ = -1;  // what the last recurrence made
};

}

// DistributedDataParallel's parameters are leaves, whose casts autocast's cache keeps
// (sim/graph/ddp): the plan's dtypes say so, and kernels.residual that fp32 flows between them.
bool is_under_autocast(const Plan& plan) {
  return plan.autocast.has_value() ||
         (plan.runtime.kind == RuntimeKind::kDdp && plan.ddp.mixed_precision == DdpOptions::MixedPrecision::kAutocast &&
             plan.param_dtype != plan.master_dtype && plan.kernels.residual == ModuleKernels::Residual::kFp32);
}

void add_train_metrics(LayerSpec& loss, const Plan& plan) {
  for (std::int64_t m = 0; m < plan.kernels.train_metrics; ++m) {
    TensorSpec result = loss.tensors.front();
    result.name = "metric_log_probabilities";
    if (is_under_autocast(plan)) result.type = ElementType::kFp32;
    loss.tensors.push_back(std::move(result));
    const auto output = static_cast<Index>(loss.tensors.size() - 1);
    Operation op;
    op.name = "train_metric";
    op.kind = OperationKind::kSoftmaxLoss;
    op.function = Function::kLogSoftmax;
    op.inputs = {0};
    op.outputs = op.released = {output};
    op.gradient = GradientRule::kNone;
    // Logits are there until the loss lets go of them.
    loss.operations.insert(loss.operations.begin() + m, std::move(op));
  }
}

namespace {

// Layer by layer, with what the ones before hand on; of a kind that is given one thing here and
// another there, two are made. Whether a block hands on what it is not given.
bool rewrite(const ModelSpec& model, const Plan& plan, bool streams_fp32, ModelSpec& rewritten) {
  struct Made {
    std::int32_t of = 0;  // a kind of `model`
    Arrives arrives;
    std::int32_t kind = 0;
    bool hands_on = false;
  };
  std::vector<Made> made;
  std::vector<bool> hands_on(model.order.size(), false);
  rewritten = model;
  bool widens = false;
  for (std::int32_t l = 0; l < static_cast<std::int32_t>(model.order.size()); ++l) {
    const std::int32_t kind = model.order[at(l)].kind;
    const LayerSpec& layer = model.kinds[at(kind)];
    Arrives arrives;
    // fully_shard casts what its units are given.
    const bool is_cast = plan.runtime.kind == RuntimeKind::kFsdp2 && plan.units.blocks == UnitPlacement::kOwn &&
                         layer.role == LayerRole::kBlock && !plan.autocast;
    const bool comes = l > 0 && layer.role != LayerRole::kEmbedding && hands_on[at(l - 1)];
    arrives.input = comes && !is_cast;
    arrives.narrowed = comes && is_cast;
    arrives.joined = layer.joins >= 0 && hands_on[at(chain_joined_at(model, l) - 1)];
    auto found =
        std::ranges::find_if(made, [&](const Made& each) { return each.of == kind && each.arrives == arrives; });
    if (found == made.end()) {
      Rewriter rewriter(layer, plan, model, arrives, streams_fp32);
      LayerSpec made_of_it = rewriter.run();
      Made entry{kind, arrives, kind, rewriter.hands_on_fp32()};
      if (!contains(made, kind, &Made::of)) {
        rewritten.kinds[at(kind)] = std::move(made_of_it);
      } else {
        entry.kind = static_cast<std::int32_t>(rewritten.kinds.size());
        rewritten.kinds.push_back(std::move(made_of_it));
      }
      made.push_back(entry);
      found = made.end() - 1;
    }
    rewritten.order[at(l)].kind = found->kind;
    hands_on[at(l)] = found->hands_on;
    widens |= layer.role == LayerRole::kBlock && found->hands_on && !arrives.input;
  }
  return widens;
}

}

ModelSpec with_module_kernels(ModelSpec model, const Plan& plan) {
  ModuleKernels plain = {.train_metrics = plan.kernels.train_metrics};
  if (plan.kernels == plain && !is_under_autocast(plan)) return model;
  ModelSpec rewritten = model;
  const bool asked = plan.kernels.residual == ModuleKernels::Residual::kFp32;
  const bool widens = rewrite(model, plan, asked, rewritten);
  if (widens && !asked) rewrite(model, plan, true, rewritten);
  return rewritten;
}

}
