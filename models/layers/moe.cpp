// A mixture of experts as torchtitan executes it (torchtitan/models/moe: TokenChoiceTopKRouter,
// TokenReorderer, GroupedExperts with use_grouped_mm, score_before_experts off, which Mixtral, Qwen
// and DeepSeek compute, unless Experts::score_first).
//
// Router: logits, their fp32 copy, softmax or sigmoid, top-k (with a correction bias: of the sum, the scores are
// gathered then), the scores divided by their sum. Reorder: rows per expert, a stable argsort of the chosen experts,
// scores and tokens in that order; every token's row is copied top_k times. Experts: three grouped products over all
// experts, offsets by cumsum, so that the host reads nothing back. Combine: rows times scores in fp32, cast, added into
// the shared expert's output, which runs after the routed ones, or into zeros.
//
// What is kept: softmax its output, top-k and the gathers their indices, products their inputs and
// the offsets, the weighing its fp32 factors. Where one tensor holds gate and up of all experts
// (gpt-oss, Llama 4), one product makes both. gpt-oss' clamps and Llama 4's weighing in front of
// the experts instead of behind them are written as the plain gate and the weighing behind.
// Group-limited routing (DeepSeek's n_group) adds kernels on tokens x experts only and is left out.
#include <string>
#include <utility>

#include "models/layers/block_parts.h"
#include "sim/base/lookup.h"

namespace foreshard {
namespace {

struct Routed {
  Index scores = 0;  // fp32, in the experts' order
  Index tokens = 0;  // int64: whose row it is
  Index offsets = 0;
  Indices locals;
};

// Scores and numbers of the chosen experts.
struct Choice {
  Index scores = 0, experts = 0;
};

Choice choose(LayerBuilder& layer, const Experts& moe, Index scores) {
  const Index expert = layer.activation("expert", moe.top_k, ElementType::kInt64);
  const Index chosen = layer.activation("chosen_scores", moe.top_k, ElementType::kFp32);
  if (!moe.corrected) {
    const Index zeros = layer.activation("topk_zeros", moe.experts, ElementType::kFp32);
    layer.elementwise("topk", Function::kTopK, {scores}, {expert}, chosen);
    layer.last().outputs.push_back(expert);
    layer.last().backward_temporaries = {zeros};
    return {chosen, expert};
  }
  const Index corrected = layer.activation("corrected_scores", moe.experts, ElementType::kFp32);
  layer.constant("correct", Function::kAdd, {scores}, corrected);
  const Index best = layer.activation("best", moe.top_k, ElementType::kFp32);
  layer.constant("topk", Function::kTopK, {corrected}, best);
  layer.last().outputs.push_back(expert);
  layer.last().released = {best, corrected};
  layer.elementwise("gather_scores", Function::kGather, {scores, expert}, {expert}, chosen);
  return {chosen, expert};
}

Choice route(LayerBuilder& layer, const ModelDims& dims, const ParameterNames& names, Index input) {
  const Experts& moe = dims.moe;
  const Index logits = layer.linear(
      {.name = names.router, .result = "router_logits", .n = moe.experts, .k = dims.hidden, .bias = moe.bias}, input);
  // torchtitan recomputes the router's product under selective checkpointing.
  layer.leave_off_selective();
  const Index wide = layer.activation("router_logits_fp32", moe.experts, ElementType::kFp32);
  layer.elementwise("router_to_fp32", Function::kCast, {logits}, {}, wide);
  const Index scores = layer.activation("router_scores", moe.experts, ElementType::kFp32);
  layer.elementwise(moe.sigmoid ? "sigmoid" : "softmax", moe.sigmoid ? Function::kSigmoid : Function::kSoftmax, {wide},
      {scores}, scores);
  layer.release({wide, logits});
  Choice choice = choose(layer, moe, scores);
  if (moe.normalized) {
    const Index sum = layer.activation("score_sum", 1, ElementType::kFp32);
    const Index normalized = layer.activation("normalized_scores", moe.top_k, ElementType::kFp32);
    layer.elementwise("score_sum", Function::kAdd, {choice.scores}, {}, sum);
    layer.last().gradient = GradientRule::kAlias;  // expanded, a view
    layer.elementwise("normalize", Function::kMultiply, {choice.scores, sum}, {choice.scores, sum}, normalized);
    layer.last().sums_last = true;
    layer.release({sum, choice.scores});
    choice.scores = normalized;
  }
  if (moe.scaled) {
    const Index scaled = layer.activation("scaled_scores", moe.top_k, ElementType::kFp32);
    layer.elementwise("scale_scores", Function::kScale, {choice.scores}, {}, scaled);
    if (!names.expert_scale.empty()) {
      layer.last().parameters = {layer.parameter(names.expert_scale, "", {moe.experts})};
      layer.last().saved = {choice.scores};
    }
    layer.release({choice.scores});
    choice.scores = scaled;
  }
  layer.release({scores});
  return choice;
}

Routed reorder(LayerBuilder& layer, const Experts& moe, const Choice& choice) {
  const Index counts = layer.tensor({.name = "rows_per_expert", .fixed = moe.experts, .type = ElementType::kInt64});
  layer.constant("histc", Function::kSort, {choice.experts}, counts);
  const Index order = layer.activation("order", moe.top_k, ElementType::kInt64);
  const Index sorted = layer.activation("sorted_experts", moe.top_k, ElementType::kInt64);
  layer.constant("argsort", Function::kSort, {choice.experts}, order);
  layer.last().outputs.push_back(sorted);
  layer.last().released = {sorted};
  const Index scores = layer.activation("sorted_scores", moe.top_k, ElementType::kFp32);
  layer.elementwise("index_scores", Function::kGather, {choice.scores, order}, {order}, scores);
  layer.last().backward_temporaries = {layer.activation("score_zeros", moe.top_k, ElementType::kFp32)};
  const Index tokens = layer.activation("token_of_row", moe.top_k, ElementType::kInt64);
  layer.constant("floor_divide", Function::kCopy, {order}, tokens);
  layer.release({order});
  const Index offsets = layer.tensor({.name = "offsets", .fixed = 4 * moe.experts, .type = ElementType::kByte});
  layer.constant("cumsum", Function::kCopy, {counts}, offsets);
  return {scores, tokens, offsets, {counts, choice.scores, choice.experts}};
}

// Of what experts read and make.
std::int64_t rows_width(const ModelDims& dims) { return dims.moe.latent > 0 ? dims.moe.latent : dims.hidden; }

// Rows in the experts' order, and where each expert's begin.
struct Rows {
  Index rows = 0, offsets = 0;
};

Index grouped_product(LayerBuilder& layer, const Experts& moe, const Linear& linear, Rows input) {
  Indices parameters = {layer.parameter(linear.name, "", {moe.experts, linear.n, linear.k})};
  if (moe.bias) parameters.push_back(layer.parameter(linear.name, "_bias", {moe.experts, linear.n}));
  const Index output = layer.activation(linear.result, moe.top_k * linear.n);
  Operation& op = layer.operation(std::string(linear.name), OperationKind::kGemm, Function::kMatrixProduct);
  op.inputs = {input.rows};
  op.saved = {input.rows, input.offsets};
  op.outputs = {output};
  op.parameters = std::move(parameters);
  op.n = linear.n;
  op.k = linear.k;
  op.rows = moe.top_k;
  op.groups = moe.experts;
  return output;
}

// Gate and up as parts of one product's result, which ends with them.
Index fused_gate_times_up(LayerBuilder& layer, const ModelDims& dims, std::string_view name, Rows input) {
  const Experts& moe = dims.moe;
  const std::int64_t width = moe.top_k * moe.ffn;
  const Index both = grouped_product(
      layer, moe, {.name = name, .result = "expert_gate_up", .n = 2 * moe.ffn, .k = dims.hidden}, input);
  const Index gate = layer.activation("expert_gate", width);
  const Index up = layer.activation("expert_up", width);
  layer.split("expert_chunk", both, {gate, up});
  const Index silu =
      layer.elementwise("expert_silu", Function::kSilu, {gate}, {gate}, layer.activation("expert_silu", width));
  const Index inner = layer.elementwise("expert_silu_times_up", Function::kMultiply, {silu, up}, {silu, up},
      layer.activation("expert_silu_times_up", width));
  layer.release({silu, up, gate, both});
  return inner;
}

// silu(w1 x) * (w3 x).
Index gate_times_up(LayerBuilder& layer, const ModelDims& dims, const ParameterNames& names, Rows input) {
  const Experts& moe = dims.moe;
  const std::string prefix = std::string(names.experts) + ".";
  const std::string gate_name = prefix + std::string(names.expert_gate);
  const std::string up_name = prefix + std::string(names.expert_up);
  if (moe.fused_gate_up) return fused_gate_times_up(layer, dims, gate_name, input);
  const std::int64_t width = moe.top_k * moe.ffn;
  const Index gate =
      grouped_product(layer, moe, {.name = gate_name, .result = "expert_gate", .n = moe.ffn, .k = dims.hidden}, input);
  const Index silu =
      layer.elementwise("expert_silu", Function::kSilu, {gate}, {gate}, layer.activation("expert_silu", width));
  layer.release({gate});
  const Index up =
      grouped_product(layer, moe, {.name = up_name, .result = "expert_up", .n = moe.ffn, .k = dims.hidden}, input);
  const Index inner = layer.elementwise("expert_silu_times_up", Function::kMultiply, {silu, up}, {silu, up},
      layer.activation("expert_silu_times_up", width));
  layer.release({silu, up});
  return inner;
}

// relu(w1 x)^2, of experts without a gate.
Index square_of_up(LayerBuilder& layer, const ModelDims& dims, const ParameterNames& names, Rows input) {
  const std::int64_t width = dims.moe.top_k * dims.moe.ffn;
  const std::string name = std::string(names.experts) + "." + std::string(names.expert_up);
  const Index up = grouped_product(
      layer, dims.moe, {.name = name, .result = "expert_up", .n = dims.moe.ffn, .k = rows_width(dims)}, input);
  const Index relu = layer.activation("expert_relu", width);
  layer.elementwise("expert_relu", Function::kRelu, {up}, {relu}, relu);
  layer.release({up});
  const Index inner = layer.elementwise(
      "expert_relu_squared", Function::kMultiply, {relu}, {relu}, layer.activation("expert_relu_squared", width));
  layer.release({relu});
  return inner;
}

// Gate, up and down (w2) of the experts, which may be a unit of their own.
Index run_experts(LayerBuilder& layer, const ModelDims& dims, const ParameterNames& names, Rows input) {
  const Experts& moe = dims.moe;
  const std::string down_name = std::string(names.experts) + "." + std::string(names.expert_down);
  layer.begin_nested(std::string(names.experts));
  const Index inner = dims.activation == Activation::kRelu2 ? square_of_up(layer, dims, names, input)
                                                            : gate_times_up(layer, dims, names, input);
  const Index made = grouped_product(layer, moe,
      {.name = down_name, .result = "expert_output", .n = rows_width(dims), .k = moe.ffn}, {inner, input.offsets});
  layer.release({inner});
  layer.end_nested();
  return made;
}

Index shared_experts(LayerBuilder& layer, const ModelDims& dims, const ParameterNames& names, Index input) {
  const Index made = feed_forward(layer, dims,
      {.gate = names.shared_expert_gate,
          .up = names.shared_expert_up,
          .down = names.shared_expert_down,
          .ffn = dims.moe.shared_ffn},
      input);
  if (!dims.moe.shared_gate) return made;
  const Index gate =
      layer.linear({.name = names.shared_gate, .result = "shared_gate", .n = 1, .k = dims.hidden}, input);
  const Index weight =
      layer.elementwise("shared_sigmoid", Function::kSigmoid, {gate}, {}, layer.activation("shared_weight", 1));
  layer.last().saved = {weight};
  layer.release({gate});
  const Index weighed = layer.elementwise("weigh_shared", Function::kMultiply, {made, weight}, {weight, made},
      layer.activation("weighed_shared", dims.hidden));
  layer.last().sums_last = true;
  layer.release({made, weight});
  return weighed;
}

}

Index mixture(LayerBuilder& layer, const ModelDims& dims, const ParameterNames& names, Index input, Index routed_by) {
  const Experts& moe = dims.moe;
  const std::int64_t width = moe.top_k * rows_width(dims);
  Index tokens = input;
  if (moe.latent > 0)
    tokens = layer.linear({.name = names.latent_in, .result = "latent", .n = moe.latent, .k = dims.hidden}, input);
  const Choice choice = route(layer, dims, names, routed_by < 0 ? input : routed_by);
  if (routed_by >= 0) layer.hold({routed_by});
  const Routed routed = reorder(layer, moe, choice);
  Index rows = layer.elementwise(
      "gather_rows", Function::kGather, {tokens, routed.tokens}, {routed.tokens}, layer.activation("rows", width));
  layer.last().backward_temporaries = {layer.activation("row_zeros", rows_width(dims))};
  const auto weigh = [&](Index plain, const std::string& name) {
    const Index wide = layer.activation(name + "_fp32", width, ElementType::kFp32);
    layer.elementwise(name + "_to_fp32", Function::kCast, {plain}, {}, wide);
    const Index weighed = layer.activation("weighed_rows_fp32", width, ElementType::kFp32);
    layer.elementwise("weigh_rows", Function::kMultiply, {wide, routed.scores}, {routed.scores, wide}, weighed);
    layer.last().sums_last = true;
    layer.release({wide});
    const Index narrow = layer.activation("weighed_rows", width);
    layer.elementwise("weighed_rows_cast", Function::kCast, {weighed}, {}, narrow);
    layer.release({weighed, plain});
    return narrow;
  };
  if (moe.score_first) rows = weigh(rows, "rows");
  const Index made = run_experts(layer, dims, names, {rows, routed.offsets});

  // A shared expert beside latents is added to what is made of their sum.
  Index base = 0;
  if (moe.shared_ffn > 0 && moe.latent == 0) base = shared_experts(layer, dims, names, input);
  else base = layer.constant("zeros_like", Function::kCopy, {}, layer.activation("zeros", rows_width(dims)));
  const Index narrow = moe.score_first ? made : weigh(made, "expert_output");
  Index output = layer.elementwise("scatter_add", Function::kScatterAdd, {base, routed.tokens, narrow}, {routed.tokens},
      layer.activation("experts_output", rows_width(dims)));
  layer.last().gradient = GradientRule::kAliasFirst;
  Indices ended = {base, narrow, rows, routed.scores, routed.tokens, routed.offsets};
  append(ended, routed.locals);
  if (moe.latent > 0) {
    ended.push_back(tokens);
    layer.release(ended);
    ended = {output};
    output =
        layer.linear({.name = names.latent_out, .result = "from_latent", .n = dims.hidden, .k = moe.latent}, output);
    if (moe.shared_ffn > 0) {
      layer.release(std::exchange(ended, {output}));
      const Index shared = shared_experts(layer, dims, names, input);
      ended.push_back(shared);
      output = layer.residual_add("shared_sum", dims.hidden, output, shared);
    }
  }
  if (!keeps_input(dims)) ended.push_back(input);
  layer.release(ended);
  if (!names.correction.empty()) {
    layer.parameter(names.correction, "", {moe.experts});
    layer.last_parameter().trainable = false;
  }
  return output;
}

}
