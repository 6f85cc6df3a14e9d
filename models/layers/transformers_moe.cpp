// transformers 5: the router's softmax in fp32 and its top-k cast back (models/qwen3_moe/modeling_qwen3_moe.py,
// Qwen3MoeTopKRouter), then integrations/moe.py, grouped_mm_experts_forward: experts sorted, tokens and weights
// gathered in that order, one grouped product for gate and up, silu(gate) * up on its halves, one for down, times the
// weights, gathered back and summed over the experts of a token, all in the compute dtype; what goes into a product and
// comes out has the rows of other ranks' experts set to zero. Kept: softmax its output, top-k and the gathers their
// indices, products their inputs, the weighing both of its factors. What a shared expert makes is added behind,
// wherever it is made. Routers whose scores have a factor (DeepseekV3TopkRouter, Glm4MoeTopkRouter) multiply fp32
// copies of the rows and of their weight, and the scores stay fp32, so that rows that they weigh are, too.
//
// transformers 4 (ExpertKernels::kTransformers4): experts are modules of three linear layers, which a loop runs one
// behind the other (MixtralSparseMoeBlock.forward; scores with a factor: DeepseekV3MoE.moe, which sums in fp32):
// one_hot of the chosen experts, the places of an expert's rows by torch.where, which the host waits for, rows and
// weights by index, index_add_ into zeros. Kept for each: its places, rows, factors. A shared expert runs behind the
// loop.
//
// The layer's operations from the router's logits to the sum stand in for each other: those of the
// shared expert stay, weights of gate and up become one.
#include "models/layers/transformers_moe.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "models/layers/family_rows.h"
#include "models/layers/module_kernels.h"
#include "sim/base/integers.h"
#include "sim/base/lookup.h"
#include "sim/graph/layers/layer_writer.h"

namespace foreshard {
namespace {

// What the code of a family does beyond its operations (models/FAMILY/modeling_FAMILY.py, 5.24).
struct MixtureCode {
  std::string_view family;
  bool shared_first = false;  // the shared expert runs in front of router and experts
  // ... multiplies fp32 copies where autocast is off, though its scores have no factor.
  bool fp32_router = false;
  bool narrow_router = false;   // ... none, though its scores have one
  bool frozen_bias = false;     // what corrects the scores is a parameter that is not trained
  bool plain_router = false;    // scores have a factor, and the router multiplies rows as they are
  bool chooses_logits = false;  // the best logits alone are given scores
  bool scales_routed = false;   // what the experts made, times a number
  bool scales_sum = false;      // the same with the shared expert's
  // A block's norms are defined in front of all else, or everything where it is used.
  bool norms_first = false, as_used = false;
};
constexpr MixtureCode kMixtureCode[] = {
    {.family = "qwen2_moe", .shared_first = true},
    {.family = "qwen3_next", .shared_first = true},
    {.family = "qwen3_5_moe", .shared_first = true},
    {.family = "hunyuan_v1_moe", .shared_first = true},
    {.family = "lfm2_moe", .narrow_router = true},
    {.family = "gpt_neox", .norms_first = true},
    {.family = "bloom", .as_used = true},
    {.family = "ernie4_5_moe", .shared_first = true, .fp32_router = true, .frozen_bias = true},
    {.family = "gemma4", .plain_router = true},
    {.family = "afmoe", .shared_first = true, .plain_router = true},
    {.family = "laguna", .shared_first = true, .scales_routed = true},
    {.family = "cohere2_moe", .chooses_logits = true, .scales_sum = true},
};
// The router is defined behind the experts.
constexpr std::string_view kRouterLast[] = {"qwen3_moe", "mellum", "deepseek_v2", "deepseek_v3", "glm4_moe",
    "glm4_moe_lite", "solar_open", "dots1", "exaone_moe", "kimi_linear", "llama4", "axk1", "deepseek_ocr2", "mistral4",
    "deepseek_v32", "glm_moe_dsa", "lfm2_moe"};

class ExpertRewriter : LayerWriter {
 public:
  ExpertRewriter(LayerSpec& layer, std::string_view family, const Plan& plan)
      : LayerWriter(layer),
        code_(row_of(kMixtureCode, family)),
        loops_(plan.transformers() == 4),
        streams_fp32_(is_under_autocast(plan) && plan.kernels.residual == ModuleKernels::Residual::kFp32),
        is_wide_(
            is_under_autocast(plan) && plan.runtime.kind == RuntimeKind::kDdp && plan.master_dtype == DType::kFp32) {}

  void run() {
    std::vector<Operation> old = std::exchange(layer_.operations, {});
    const auto named = [&](std::string_view name) {
      return std::ranges::find_if(
          old, [&](const Operation& op) { return op.name == name; });
    };
    const auto is_grouped = [](const Operation& op) { return op.groups > 1; };
    const auto begin = named("router_to_fp32");
    const auto end = named("scatter_add");
    const auto first = std::ranges::find_if(old, is_grouped);
    has_biases_ =
        std::ranges::any_of(old, [&](const Operation& op) { return is_grouped(op) && op.parameters.size() != 1; });
    scales_ = named("scale_scores") != old.end() && !code_.narrow_router;
    if (scales_) scale_parameters_ = named("scale_scores")->parameters;
    const bool has_two = std::ranges::count_if(old, is_grouped) == 2;
    const auto last_grouped = std::find_if(old.rbegin(), old.rend(), is_grouped);
    is_gated_ = !has_two || first->n != last_grouped->k;
    const bool is_fused = has_two && is_gated_;
    is_dense_ = is_fused && named("sigmoid") != old.end();
    if (begin == old.end() || end == old.end() || first == old.end()) {
      layer_.operations = std::move(old);
      return;
    }
    const auto last = std::find_if(old.rbegin(), old.rend(), is_grouped).base() - 1;
    const auto shared_end = named("expert_output_to_fp32");
    layer_.operations.assign(std::make_move_iterator(old.begin()), std::make_move_iterator(begin));
    const Index logits = begin->inputs.front();
    const auto router = static_cast<std::ptrdiff_t>(layer_.operations.size()) - 1;
    const bool normalizes = std::any_of(
        begin, end, [](const Operation& op) { return op.name == "normalize"; });
    const Operation& topk =
        *std::find_if(begin, end, [](const Operation& op) { return op.function == Function::kTopK; });
    top_k_ = width(topk.outputs.front());
    hidden_ = last->n;
    const Index input = named("gather_rows")->inputs.front();
    if (is_dense_) route_all(logits, input);
    else if (has_biases_) route_chosen(logits);
    else if (code_.chooses_logits) route_chosen(logits, old[at(begin - old.begin()) + 1].function, normalizes);
    else route(logits, old[at(begin - old.begin()) + 1].function, normalizes);
    const bool shares = (last + 1)->name != "zeros_like";
    const Index output = end->outputs.front();
    Index sum = shares ? activation("routed_output", hidden_) : output;
    const bool are_modules = loops_ && !has_two && !has_biases_ && is_gated_;
    if (are_modules) {
      loop(input, sum, *first, *last);
    } else {
      if (!is_dense_) gather(input);
      compute(*first, *last);
      combine(sum);
    }
    if (shares && code_.scales_routed) sum = scale(sum);
    if (shares) {
      const auto shared = static_cast<std::ptrdiff_t>(layer_.operations.size());
      for (auto op = last + 1; op != shared_end; ++op) {
        for (Index& p : op->parameters) p = place(p);
        layer_.operations.push_back(std::move(*op));
      }
      const Index made = LayerWriter::last().outputs.front();
      const auto all = layer_.operations.begin();
      if (code_.shared_first && !are_modules) std::rotate(all + router, all + shared, layer_.operations.end());
      Operation& add = pass("add_shared", Function::kAdd, {sum, made}, {output});
      add.gradient = GradientRule::kAlias;
      add.released = {sum, made};
      if (code_.scales_sum) {
        const Index plain = activation("experts_and_shared", hidden_);
        add.outputs = {plain};
        pass("scale_sum", Function::kScale, {plain}, {output}).released = {plain};
      }
    }
    if (code_.frozen_bias) {
      layer_.parameters.push_back(
          {.name = "mlp.gate.moe_statics.e_score_correction_bias", .shape = {1, width(logits)}, .trainable = false});
    }
    Indices& released = LayerWriter::last().released;
    append(released, end->released);
    for (auto op = end + 1; op != old.end(); ++op) {  // a norm behind the mixture (FlexOlmo)
      for (Index& p : op->parameters) p = place(p);
      layer_.operations.push_back(std::move(*op));
    }
  }

 private:
  // Rows of experts that other ranks have are set to zero, none without expert parallelism:
  // masked_fill_ in place, masked_fill in a copy.
  Index masked(const std::string& name, Index rows, bool of_a_copy) {
    if (has_biases_ || is_dense_) return rows;
    const std::int64_t each = width(rows);
    if (of_a_copy) {
      const Index copy = activation(name + "_copy", each);
      Operation& cloned = pass(name + "_copy", Function::kCopy, {rows}, {copy});
      cloned.gradient = GradientRule::kAlias;
      cloned.released = {rows};
      rows = copy;
    }
    const Index output = activation(name, each);
    pass(name, Function::kScale, {rows}, {output}).in_place = true;
    return output;
  }

  // The router's product is the operation before.
  void widen_router() {
    Operation product = std::move(last());
    layer_.operations.pop_back();
    const Index wide = activation("router_input_fp32", product.k, ElementType::kFp32);
    pass("router_input_to_fp32", Function::kCast, product.inputs, {wide});
    const Index weight =
        tensor({.name = "router_weight_fp32", .fixed = product.n * product.k, .type = ElementType::kFp32});
    product.inputs = {wide};
    product.saved = {wide, weight};
    product.outputs.push_back(weight);
    append(product.released, {wide, weight});
    layer_.tensors[at(product.outputs.front())].type = ElementType::kFp32;
    layer_.operations.push_back(std::move(product));
  }

  void route(Index logits, Function score, bool normalizes) {
    const std::int64_t experts = width(logits);
    Index wide = logits;
    if ((scales_ && !code_.plain_router) || code_.fp32_router) {
      widen_router();
    } else if (!code_.narrow_router) {
      wide = activation("router_logits_fp32", experts, ElementType::kFp32);
      pass("router_to_fp32", Function::kCast, {logits}, {wide});
    }
    const Index scores = activation("router_scores", experts, ElementType::kFp32);
    pass("router_scores", score, {wide}, {scores}).saved = {scores};
    const Index best = activation("chosen_scores", top_k_, ElementType::kFp32);
    expert_ = activation("expert", top_k_, ElementType::kInt64);
    Operation& topk = pass("topk", Function::kTopK, {scores}, {best, expert_});
    topk.saved = {expert_};
    topk.backward_temporaries = {activation("topk_zeros", experts, ElementType::kFp32)};
    Index chosen = best;
    if (normalizes) chosen = normalized(best);
    weights_ = activation("expert_weights", top_k_, weights_type());
    pass("weights_cast", scales_ ? Function::kScale : Function::kCast, {chosen}, {weights_});
    last().parameters = scale_parameters_;
  }

  Index scale(Index rows) {
    const Index output = activation("scaled_rows", width(rows));
    pass("scale_rows", Function::kScale, {rows}, {output}).released = {rows};
    return output;
  }

  // gpt-oss' softmax is over the chosen logits alone, in their dtype; Cohere's scores of them are in fp32, or sigmoids.
  void route_chosen(Index logits, Function score = Function::kSoftmax, bool normalizes = false) {
    const Index best = activation("chosen_logits", top_k_);
    expert_ = activation("expert", top_k_, ElementType::kInt64);
    Operation& topk = pass("topk", Function::kTopK, {logits}, {best, expert_});
    topk.saved = {expert_};
    topk.backward_temporaries = {activation("topk_zeros", width(logits))};
    const bool casts = code_.chooses_logits && score == Function::kSoftmax;
    const ElementType type = casts ? ElementType::kFp32 : ElementType::kCompute;
    weights_ = activation("expert_weights", top_k_, type);
    pass("router_scores", score, {best}, {weights_}).saved = {weights_};
    if (score == Function::kSigmoid && normalizes) weights_ = normalized(weights_);
    if (!casts) return;
    const Index narrow = activation("expert_weights_cast", top_k_);
    pass("weights_cast", Function::kCast, {weights_}, {narrow}).released = {weights_};
    weights_ = narrow;
  }

  // Divided by their sum.
  Index normalized(Index scores) {
    const ElementType type = layer_.tensors[at(scores)].type;
    const Index sum = activation("score_sum", 1, type);
    pass("score_sum", Function::kAdd, {scores}, {sum}).gradient = GradientRule::kAlias;
    const Index divided = activation("normalized_scores", top_k_, type);
    Operation& divide = pass("normalize", Function::kMultiply, {scores, sum}, {divided});
    divide.saved = {scores, sum};
    divide.sums_last = true;
    return divided;
  }

  // Llama 4: every expert is given every token, weighed by its score, which is 0 for all but the best.
  void route_all(Index logits, Index input) {
    const std::int64_t experts = width(logits);
    const Index best = activation("chosen_logits", top_k_);
    expert_ = activation("expert", top_k_, ElementType::kInt64);
    Operation& topk = pass("topk", Function::kTopK, {logits}, {best, expert_});
    topk.saved = {expert_};
    const Index spread = activation("spread_logits", experts);
    pass("spread_logits", Function::kCopy, {best}, {spread}).released = {best};
    const Index wide = activation("router_logits_fp32", experts, ElementType::kFp32);
    pass("router_to_fp32", Function::kCast, {spread}, {wide}).released = {spread};
    const Index scores = activation("router_scores", experts, ElementType::kFp32);
    Operation& sigmoid = pass("router_scores", Function::kSigmoid, {wide}, {scores});
    sigmoid.saved = {scores};
    sigmoid.released = {wide};
    weights_ = activation("expert_weights", experts);
    pass("weights_cast", Function::kCast, {scores}, {weights_}).released = {scores};
    top_k_ = experts;
    const Index repeated = activation("repeated_rows", experts * hidden_);
    pass("repeat_rows", Function::kCopy, {input}, {repeated});
    rows_ = activation("rows", experts * hidden_);
    Operation& weigh = pass("weigh_rows", Function::kMultiply, {repeated, weights_}, {rows_});
    weigh.saved = {repeated, weights_};
    weigh.released = {repeated};
    weigh.sums_last = true;
  }

  void gather(Index input) {
    const Index sorted = sorted_ = activation("sorted_experts", top_k_, ElementType::kInt64);
    order_ = activation("order", top_k_, ElementType::kInt64);
    constant("sort", Function::kSort, {expert_}, {sorted, order_});
    const Index tokens = activation("token_of_row", top_k_, ElementType::kInt64);
    constant("floor_divide", Function::kCopy, {order_}, {tokens});
    rows_ = activation("rows", top_k_ * hidden_);
    Operation& rows = pass("gather_rows", Function::kGather, {input, tokens}, {rows_});
    rows.saved = {tokens};
    rows.backward_temporaries = {activation("row_zeros", hidden_)};
    rows_ = masked("masked_rows", rows_, false);
    sorted_weights_ = activation("sorted_weights", top_k_, weights_type());
    Operation& weights = pass("gather_weights", Function::kGather, {weights_, order_}, {sorted_weights_});
    weights.saved = {order_};
    weights.backward_temporaries = {activation("weight_zeros", top_k_, weights_type())};
    offsets_ = tensor({.name = "offsets", .fixed = 1024, .type = ElementType::kByte});
    constant("offsets", Function::kSort, {sorted}, {offsets_});
  }

  // Gate and up of `first`'s parameters, down of `last`'s.
  void compute(const Operation& first, const Operation& last) {
    const Index gate = first.parameters.front();
    const std::int64_t ffn = last.k;
    if (first.n == ffn && is_gated_) join(gate);
    Operation up = first;
    up.name = is_gated_ ? "experts.gate_up_proj" : "experts.up_proj";
    up.n = is_gated_ ? 2 * ffn : ffn;
    up.inputs = up.saved = {rows_};
    if (!is_dense_) up.saved.push_back(offsets_);
    if (is_dense_) up.rows = top_k_;
    up.released = {};
    const Index gate_up = activation(is_gated_ ? "expert_gate_up" : "expert_up", top_k_ * up.n);
    up.outputs = {gate_up};
    up.parameters = {place(gate)};
    const Index bias = gather_bias(first, gate_up);
    layer_.operations.push_back(up);
    part_ = up.part;
    const Index both = masked("masked_gate_up", add_bias(gate_up, bias, first), true);
    const Index product = is_gated_ ? gated(both, ffn) : squared(both);
    Operation down = last;
    const Index output = activation("expert_output", top_k_ * hidden_);
    down.inputs = {product};
    down.saved = {product};
    if (!is_dense_) down.saved.push_back(offsets_);
    if (is_dense_) down.rows = top_k_;
    down.outputs = {output};
    down.released = {product};
    down.parameters = {place(last.parameters.front())};
    const Index down_bias = gather_bias(last, output);
    if (has_biases_) release({bias});  // (the name of both)
    layer_.operations.push_back(down);
    made_ = masked("masked_output", add_bias(output, down_bias, last), true);
    if (has_biases_) release({down_bias});
    part_ = 0;
  }

  // Gate and up are halves of `both`.
  Index gated(Index both, std::int64_t ffn) {
    const Index left = activation("expert_gate", top_k_ * ffn), right = activation("expert_up", top_k_ * ffn);
    Operation& split = pass("expert_chunk", Function::kCopy, {both}, {left, right});
    split.view = true;
    const Index product = has_biases_ ? clamped(left, right) : activated(left, right);
    release({left, right, both});
    return product;
  }

  // relu(up)^2 (Nemotron-H).
  Index squared(Index up) {
    const std::int64_t each = width(up);
    const Index relu = activation("expert_relu", each);
    Operation& first = pass("expert_relu", Function::kRelu, {up}, {relu});
    first.saved = {relu};
    first.released = {up};
    const Index product = activation("expert_relu_squared", each);
    Operation& square = pass("expert_relu_squared", Function::kMultiply, {relu}, {product});
    square.saved = square.released = {relu};
    return product;
  }

  // Every row's own expert's bias, taken in front of the product.
  Index gather_bias(const Operation& product, Index rows) {
    if (!has_biases_) return -1;
    const ElementType type = is_wide_ ? ElementType::kFp32 : ElementType::kCompute;
    const Index bias = activation(product.name + " bias of rows", width(rows), type);
    Operation& gather = pass(product.name + " bias of rows", Function::kGather, {sorted_}, {bias});
    gather.parameters = {place(product.parameters[1])};
    gather.saved = {sorted_};
    return bias;
  }

  Index add_bias(Index rows, Index bias, const Operation& product) {
    if (!has_biases_) return rows;
    const Index sum = activation(product.name + " with bias", width(rows));
    Operation& add = pass(product.name + " bias", Function::kAdd, {rows, bias}, {sum});
    add.gradient = GradientRule::kAlias;
    add.in_place = true;
    return sum;
  }

  Index activated(Index gate, Index up) {
    const std::int64_t each = width(gate);
    const Index silu = made("expert_silu", Function::kSilu, {gate}, each, {gate});
    const Index product = activation("expert_silu_times_up", each);
    Operation& times = pass("expert_silu_times_up", Function::kMultiply, {silu, up}, {product});
    times.saved = {silu, up};
    times.released = {silu};
    return product;
  }

  // gpt-oss: both are clamped, (up + 1) * gate * sigmoid(alpha gate).
  Index clamped(Index gate, Index up) {
    const std::int64_t each = width(gate);
    const auto made = [&](const char* name, Function function, Indices inputs, Indices saved) {
      const Index output = activation(name, each);
      pass(name, function, std::move(inputs), {output}).saved = std::move(saved);
      return output;
    };
    const Index left = made("expert_gate_clamped", Function::kScale, {gate}, {gate});
    const Index right = made("expert_up_clamped", Function::kScale, {up}, {up});
    const Index scaled = made("expert_gate_scaled", Function::kScale, {left}, {});
    const Index sigmoid = made("expert_sigmoid", Function::kSigmoid, {scaled}, {});
    last().saved = {sigmoid};
    const Index glu = made("expert_glu", Function::kMultiply, {left, sigmoid}, {left, sigmoid});
    const Index more = made("expert_up_plus_one", Function::kScale, {right}, {});
    last().gradient = GradientRule::kAlias;
    const Index product = made("expert_gated", Function::kMultiply, {more, glu}, {more, glu});
    last().released = {left, right, glu, more};
    return product;
  }

  void combine(Index sum) {
    if (is_dense_) {
      pass("sum_rows", Function::kAdd, {made_}, {sum}).released = {made_, rows_, weights_, expert_};
      return;
    }
    const Index weighed = activation("weighed_rows", top_k_ * hidden_, weights_type());
    Operation& weigh = pass("weigh_rows", Function::kMultiply, {made_, sorted_weights_}, {weighed});
    weigh.saved = {made_, sorted_weights_};
    weigh.sums_last = true;
    const Index back = activation("place_of_row", top_k_, ElementType::kInt64);
    constant("invert", Function::kScatterAdd, {order_}, {back});
    const Index placed = activation("placed_rows", top_k_ * hidden_, weights_type());
    Operation& gathered = pass("place_rows", Function::kGather, {weighed, back}, {placed});
    gathered.saved = {back};
    gathered.backward_temporaries = {activation("placed_zeros", top_k_ * hidden_, weights_type())};
    gathered.released = {weighed};
    const Index wide = scales_ ? activation("routed_output_fp32", hidden_, ElementType::kFp32) : sum;
    pass("sum_rows", Function::kAdd, {placed}, {wide}).released = {placed};
    if (scales_) pass("routed_output_cast", Function::kCast, {wide}, {sum}).released = {wide};
    Indices& released = last().released;
    append(released, {made_, rows_, sorted_weights_, weights_, order_, expert_, offsets_});
    if (has_biases_) released.push_back(sorted_);
  }

  // One expert behind the other, each of its own weights.
  void loop(Index input, Index sum, const Operation& first, const Operation& last) {
    const std::int64_t experts = first.groups;
    const Index weights = part_weights(first.parameters.front());
    const auto of_rows = [&](std::string name, std::int64_t width, ElementType type = ElementType::kCompute) {
      return tensor({.name = std::move(name), .per_token = top_k_ * width, .type = type, .split = experts});
    };
    Index total = scales_ ? activation("routed_sum", hidden_, ElementType::kFp32) : activation("routed_sum", hidden_);
    constant("zeros_like", Function::kCopy, {input}, {total});
    const Index mask = activation("expert_mask", top_k_ * experts, ElementType::kInt64);
    constant("one_hot", Function::kScatterAdd, {expert_}, {mask});
    if (!scales_) {
      const Index hit = tensor({.name = "expert_hit", .fixed = experts, .type = ElementType::kInt64});
      constant("expert_hit", Function::kColumnSum, {mask}, {hit}).host_reads = true;
    }
    const auto step = [&](const char* name, Function function, Indices inputs, std::int64_t width, ElementType type) {
      const Index made = of_rows(name, width, type);
      pass(name, function, inputs, {made}).saved = std::move(inputs);
      return made;
    };
    const auto pick = [&](const char* name, Index from, Index places, ElementType type) {
      const Index picked = step(name, Function::kGather, {from, places}, width(from) == hidden_ ? hidden_ : 1, type);
      LayerWriter::last().saved = {places};
      LayerWriter::last().backward_temporaries = {activation("picked_zeros", width(from), type)};
      return picked;
    };
    const auto linear = [&](const Operation& like, Index from, std::int64_t weight) {
      Operation op = like;
      op.inputs = op.saved = {from};
      op.rows = top_k_;
      op.split = experts;
      op.groups = 1;
      op.released = {};
      op.parameters = {static_cast<Index>(weights + weight)};
      const Index made = of_rows(op.name, op.n);
      op.outputs = {made};
      layer_.operations.push_back(std::move(op));
      return made;
    };
    constexpr ElementType kType = ElementType::kCompute;
    part_ = first.part;
    Indices locals;
    for (std::int64_t e = 0; e < experts; ++e) {
      const Index its = activation("its_mask", top_k_, ElementType::kInt64);
      constant("its_mask", Function::kCopy, {}, {its});
      const Index places = of_rows("places", 2, ElementType::kInt64);
      Operation& where = constant("where", Function::kSort, {its}, {places});
      where.host_reads = true;
      where.released = {its};
      Index factors = scales_ ? pick("gather_weights", weights_, places, weights_type()) : -1;
      const Index rows = pick("gather_rows", input, places, kType);
      const Index gate = linear(first, rows, 3 * e);
      const Index silu = step("expert_silu", Function::kSilu, {gate}, last.k, kType);
      release({gate});
      const Index up = linear(first, rows, 3 * e + 1);
      const Index product = step("expert_silu_times_up", Function::kMultiply, {silu, up}, last.k, kType);
      release({silu, up});
      const Index made = linear(last, product, 3 * e + 2);
      release({product});
      if (!scales_) factors = pick("gather_weights", weights_, places, weights_type());
      const Index weighed = step("weigh_rows", Function::kMultiply, {made, factors}, hidden_, weights_type());
      LayerWriter::last().sums_last = true;
      release(std::exchange(locals, {places, rows, weighed}));
      release({made, factors});
      const bool ends = e + 1 == experts && !scales_;
      const Index added = ends ? sum : like(total, "routed_sum", spec_of(total).type);
      Operation& adds = pass("index_add", Function::kScatterAdd, {total, weighed, places}, {added});
      adds.saved = {places, weighed};  // (expand_as(source))
      adds.gradient = GradientRule::kAliasFirst;
      adds.in_place = true;
      total = added;
    }
    part_ = 0;
    if (scales_) {
      pass("routed_output", Function::kCast, {total}, {sum});
      locals.push_back(total);
    }
    append(locals, {mask, weights_, expert_});
    release(locals);
  }

  // Three stacks become each expert's own weights, of which the first is returned.
  Index part_weights(Index gate) {
    std::vector<ParameterSpec>& list = layer_.parameters;
    const std::vector<ParameterSpec> stacks(list.begin() + gate, list.begin() + gate + 3);
    std::vector<ParameterSpec> own;
    const std::int64_t experts = stacks.front().shape.front();
    for (std::int64_t e = 0; e < experts; ++e) {
      for (ParameterSpec each : stacks) {
        const std::size_t dot = each.name.rfind('.');
        each.name = each.name.substr(0, dot) + "." + std::to_string(e) + each.name.substr(dot) + ".weight";
        each.shape.erase(each.shape.begin());
        own.push_back(std::move(each));
      }
    }
    list.erase(list.begin() + gate, list.begin() + gate + 3);
    list.insert(list.begin() + gate, own.begin(), own.end());
    moved_from_ = static_cast<Index>(gate + 3);
    moved_by_ = static_cast<Index>(3 * (experts - 1));
    for (Operation& op : layer_.operations)
      for (Index& p : op.parameters) p = place(p);
    return gate;
  }

  // The gate's weight takes in the one behind it.
  void join(Index gate) {
    ParameterSpec& weight = layer_.parameters[at(gate)];
    weight.shape[1] *= 2;
    layer_.parameters.erase(layer_.parameters.begin() + gate + 1);
    moved_from_ = static_cast<Index>(gate + 2);
    moved_by_ = -1;
    for (Operation& op : layer_.operations)
      for (Index& p : op.parameters) p = place(p);
  }
  Index place(Index p) const { return p >= moved_from_ ? static_cast<Index>(p + moved_by_) : p; }

  ElementType weights_type() const {
    return scales_ || (loops_ && streams_fp32_) ? ElementType::kFp32 : ElementType::kCompute;
  }

  const MixtureCode code_;
  const bool loops_, streams_fp32_;
  bool is_gated_ = true;
  bool is_wide_ = false;  // weights are fp32, for which autocast has no rule
  bool scales_ = false, has_biases_ = false, is_dense_ = false;
  std::int64_t top_k_ = 1, hidden_ = 0;
  Index expert_ = 0, sorted_ = 0, weights_ = 0, sorted_weights_ = 0, order_ = 0, rows_ = 0, offsets_ = 0, made_ = 0;
  // Parameters that others took the place of: those behind them.
  Index moved_from_ = 0, moved_by_ = 0;
  Indices scale_parameters_;
};

// What comes first of a block's parameters, then of its attention's and its mixture's.
int place_of(const std::string& name, const MixtureCode& code, bool router_last) {
  const auto has = [&](std::string_view word) { return contains(name, word); };
  if (name.starts_with("layer.")) {  // T5's sublayers, each with its norm behind what it is for
    const int sublayer = 3 * (name[6] - '0');
    return sublayer + (has("layer_norm.") ? 2 : has("relative_attention_bias.") ? 1 : 0);
  }
  if (name.starts_with("self_att") || name.starts_with("attention.")) return has(".q_norm.") || has(".k_norm.") ? 1 : 0;
  // A norm of the block's own.
  if (std::ranges::count(name, '.') == 1) return code.norms_first ? -1 : 6;
  if (has(".experts.")) return 3;
  const bool is_router = has(".gate.") || has(".router.");
  return is_router ? (router_last ? 4 : 2) : 5;
}

}

void order_as_transformers(LayerSpec& layer, std::string_view family, int transformers) {
  std::vector<ParameterSpec>& list = layer.parameters;
  const auto has = [&](std::string_view module) {
    return std::ranges::any_of(list, [&](const ParameterSpec& p) { return p.name.starts_with(module); });
  };
  const MixtureCode code = row_of(kMixtureCode, family);
  // (In transformers 4 those alone whose scores have a factor.)
  const bool has_factor = family.starts_with("deepseek") || family.starts_with("glm4") || family == "dots1";
  const bool last = contains(kRouterLast, family) && (transformers == 5 || has_factor);
  const bool attends = has("self_attn.") || has("self_attention.") || code.norms_first;
  const bool sorts = has("layer.0.") || (attends && (has("mlp.") || has("block_sparse_moe.")));
  if (layer.role != LayerRole::kBlock || !sorts || code.as_used) return;
  std::vector<std::size_t> order(list.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
    return place_of(list[a].name, code, last) < place_of(list[b].name, code, last);
  });
  std::vector<ParameterSpec> sorted;
  Indices place(list.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    place[order[i]] = static_cast<Index>(i);
    sorted.push_back(std::move(list[order[i]]));
  }
  list = std::move(sorted);
  for (Operation& op : layer.operations)
    for (Index& p : op.parameters) p = place[at(p)];
}

bool routes_without_autocast(std::string_view family) { return row_of(kMixtureCode, family).fp32_router; }

void use_transformers_experts(LayerSpec& layer, std::string_view family, const Plan& plan) {
  ExpertRewriter(layer, family, plan).run();
}

}
