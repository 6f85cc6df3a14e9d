// Linear attention by the gated delta rule (arXiv 2412.06464) in the order of transformers 5.17
// (models/qwen3_next, qwen3_5, olmo_hybrid: GatedDeltaNet.forward) over the kernels of
// flash-linear-attention 0.6 (fla/ops/gated_delta_rule/chunk.py), which transformers takes where
// that is installed; where it is not, its own loop over chunks in fp32 is another computation.
//
// Kimi Linear's (models/kimi_linear, KimiLinearDeltaAttention.forward; fla/ops/kda/chunk.py) decays
// each channel of a key by itself: what is kept of decays is as wide as keys, in fp32, before and
// behind their sums, and pairs of queries and keys are kept beside the inverse.
//
// One function of autograd keeps queries and keys of length one with their lengths, values, the
// sums of decays along a chunk, beta, and the inverse of each chunk's triangle; backward makes the
// rest again. Its norm is behind it and narrows before the weight, whatever the family's others do
// (module_kernels.cpp); the gate of what that makes is of fp32.
#include <string>

#include "models/layers/block_parts.h"

namespace foreshard {
namespace {

class Mixer {
 public:
  Mixer(LayerBuilder& layer, const ModelDims& dims, const ParameterNames& names, Index input)
      : layer_(layer),
        rule_(dims.delta),
        shape_(dims.delta.scan),
        hidden_(dims.hidden),
        module_(std::string(names.mamba) + "."),
        input_(input) {}

  Index run() {
    // Parameters of the module itself come before those of the modules in it.
    decay_parameters_ = {by_channel() ? parameter("forget_gate.dt_bias", {shape_.shared()})
                                      : parameter("dt_bias", {shape_.heads}),
                         by_channel() ? parameter("forget_gate.A_log", {1, 1, shape_.heads, 1})
                                      : parameter("A_log", {shape_.heads})};
    convolution_ = parameter("conv1d.weight", {shape_.convolved(), 1, rule_.convolution});
    const Index normal = convolve(project());
    const Index scanned = attend(normal);
    if (by_channel()) {
      gate_ = low_rank("g_a_proj", "g_b_proj", "gate", shape_.inner());
    } else if (is_apart()) {
      gate_ = product("g_proj", "gate", shape_.inner());
    }
    const Index gated = gate(scanned);
    const Index made = layer_.linear({.name = module_ + (is_apart() ? "o_proj" : "out_proj"),
                                      .result = "mixed",
                                      .n = hidden_,
                                      .k = shape_.inner()},
                                     gated);
    layer_.release(held_);
    layer_.release({input_});
    return made;
  }

 private:
  bool by_channel() const { return rule_.projections == DeltaRule::Projections::kLowRank; }
  bool is_apart() const {
    return rule_.projections == DeltaRule::Projections::kApart || by_channel();
  }

  Index parameter(const char* name, std::vector<std::int64_t> shape) {
    return layer_.parameter(module_, name, std::move(shape));
  }
  Index product(const char* name, const char* result, std::int64_t n) {
    return layer_.linear({.name = module_ + name, .result = result, .n = n, .k = hidden_}, input_);
  }
  Index low_rank(const char* down, const char* up, const char* result, std::int64_t n) {
    const Index narrow = product(down, "narrow", shape_.head_dim);
    const Index made = layer_.linear(
        {.name = module_ + up, .result = result, .n = n, .k = shape_.head_dim}, narrow);
    layer_.release({narrow});
    return made;
  }
  Index copy(const char* name, Index of) {
    return layer_.elementwise(name, Function::kCopy, {of}, {},
                              layer_.activation(name, layer_.width(of)));
  }
  Index wide(const char* name, std::int64_t per_token) {
    return layer_.activation(name, per_token, ElementType::kFp32);
  }
  void hold(const Indices& tensors) { held_.insert(held_.end(), tensors.begin(), tensors.end()); }

  // Queries, keys and values side by side, and what gates.
  Index project() {
    const std::int64_t keys = shape_.shared(), values = shape_.inner();
    switch (rule_.projections) {
      case DeltaRule::Projections::kByUse: {
        const Index all = product("in_proj_qkv", "q_k_v", 2 * keys + values);
        gate_ = product("in_proj_z", "gate", values);
        correction_ = product("in_proj_b", "correction", shape_.heads);
        decay_ = product("in_proj_a", "decay", shape_.heads);
        hold({gate_, correction_, decay_});
        return all;
      }
      case DeltaRule::Projections::kByHead: {
        const Index all = product("in_proj_qkvz", "q_k_v_gate", 2 * (keys + values));
        const Index gates = product("in_proj_ba", "correction_decay", 2 * shape_.heads);
        return by_use(all, gates);
      }
      case DeltaRule::Projections::kApart:
      case DeltaRule::Projections::kLowRank:
        break;
    }
    const Index q = product("q_proj", "q", keys), k = product("k_proj", "k", keys),
                v = product("v_proj", "v", values);
    const Index all = layer_.concatenate("q_k_v", {q, k, v});
    layer_.release({v, q, k});
    return all;
  }

  // Parts of rows by heads of keys: all are copied.
  Index by_use(Index all, Index gates) {
    const auto part = [&](const char* name, std::int64_t width) {
      return layer_.activation(name, width);
    };
    const Indices parts = {part("q of heads", shape_.shared()), part("k of heads", shape_.shared()),
                           part("v of heads", shape_.inner()),
                           part("gate of heads", shape_.inner())};
    layer_.split("split", all, parts);
    const Indices of_gates = {part("correction of heads", shape_.heads),
                              part("decay of heads", shape_.heads)};
    layer_.split("split_gates", gates, of_gates);
    const Index v = copy("v", parts[2]);
    gate_ = copy("gate", parts[3]);
    correction_ = copy("correction", of_gates[0]);
    decay_ = copy("decay", of_gates[1]);
    const Index q = copy("q", parts[0]), k = copy("k", parts[1]);
    layer_.release(parts);
    layer_.release(of_gates);
    const Index joined = layer_.concatenate("q_k_v", {q, k, v});
    layer_.release({q, k, v});
    hold({all, gates, gate_, correction_, decay_});
    return joined;
  }

  Index convolve(Index input) {
    const Index made =
        foreshard::convolve(layer_, module_ + "conv1d", {convolution_}, rule_.convolution, input);
    const Index normal =
        layer_.elementwise("silu", Function::kSilu, {made}, {made},
                           layer_.activation("q_k_v convolved", shape_.convolved()));
    layer_.release({made});
    return normal;
  }

  // The logarithm of what is left of the state: -exp(A_log) softplus(a + dt_bias), in fp32.
  Index log_decay() {
    const Index a = layer_.elementwise("decay_fp32", Function::kCast, {decay_}, {},
                                       wide("decay_fp32", shape_.heads));
    const Index step =
        layer_.elementwise("step", Function::kAdd, {a}, {}, wide("step", shape_.heads));
    layer_.last().gradient = GradientRule::kAlias;
    layer_.last().parameters = {decay_parameters_[0]};
    layer_.release({a});
    const Index positive = layer_.elementwise("softplus", Function::kSigmoid, {step}, {step},
                                              wide("softplus", shape_.heads));
    layer_.release({step});
    const Index decay = layer_.elementwise("log_decay", Function::kMultiply, {positive}, {positive},
                                           wide("log_decay", shape_.heads));
    layer_.last().parameters = {decay_parameters_[1]};
    layer_.release({positive});
    return decay;
  }

  // The same for each channel of a key, softplus by its operations (KimiLinearForgetGate).
  Index log_decay_of_channels() {
    const std::int64_t width = shape_.shared();
    const auto made = [&](const char* name, Function function, Indices inputs, Indices saved) {
      return layer_.elementwise(name, function, std::move(inputs), std::move(saved),
                                wide(name, width));
    };
    const Index narrow =
        low_rank("forget_gate.f_a_proj", "forget_gate.f_b_proj", "decay of channels", width);
    const Index a = made("decay_fp32", Function::kCast, {narrow}, {});
    const Index step = made("step", Function::kAdd, {a}, {});
    layer_.last().gradient = GradientRule::kAlias;
    layer_.last().parameters = {decay_parameters_[0]};
    layer_.release({a});
    const Index is_large = layer_.activation("is_large", width, ElementType::kByte);
    layer_.constant("is_large", Function::kCopy, {step}, is_large);
    const Index exponential = wide("exp", width);
    layer_.elementwise("exp", Function::kSigmoid, {step}, {exponential}, exponential);
    const Index plus_one = made("plus_one", Function::kScale, {exponential}, {});
    layer_.release({exponential});
    const Index log = made("log", Function::kSigmoid, {plus_one}, {plus_one});
    layer_.release({plus_one});
    const Index softplus = made("softplus", Function::kMultiply, {step, log}, {is_large});
    layer_.release({log, is_large});
    const Index decay = made("log_decay", Function::kMultiply, {softplus}, {softplus});
    layer_.last().parameters = {decay_parameters_[1]};
    layer_.release({narrow, step, softplus});
    return decay;
  }

  // How much of what the state predicts of a value is corrected.
  Index correction() {
    if (is_apart()) correction_ = product("b_proj", "correction", shape_.heads);
    const Index share = layer_.activation("beta", shape_.heads);
    layer_.elementwise("beta", Function::kSigmoid, {correction_}, {share}, share);
    if (is_apart()) layer_.release({correction_});
    if (!rule_.doubled) return share;
    const Index twice = layer_.elementwise("doubled_beta", Function::kScale, {share}, {},
                                           layer_.activation("doubled_beta", shape_.heads));
    layer_.release({share});
    return twice;
  }

  Index attend(Index normal) {
    const std::int64_t keys = shape_.heads * shape_.state, values = shape_.inner();
    const Indices parts = {layer_.activation("q of all", shape_.shared()),
                           layer_.activation("k of all", shape_.shared()),
                           layer_.activation("v of all", values)};
    layer_.split("split_convolved", normal, parts);
    const bool repeats = shape_.heads > shape_.groups;
    const auto expand = [&](const char* name, Index part) {
      const Index made =
          layer_.elementwise(name, Function::kCopy, {part}, {}, layer_.activation(name, keys));
      if (!repeats) layer_.last().gradient = GradientRule::kAlias;
      return made;
    };
    Index q = 0, k = 0;
    const auto expand_both = [&] {
      q = expand("q", parts[0]);
      k = expand("k", parts[1]);
    };
    // OLMo hybrid repeats heads before it makes its gates.
    if (repeats && is_apart()) expand_both();
    Index decay = by_channel() ? log_decay_of_channels() : Index{0};
    const Index beta = correction();
    if (!by_channel()) {
      if (is_apart()) decay_ = product("a_proj", "decay", shape_.heads);
      decay = log_decay();
      if (is_apart()) layer_.release({decay_});
    }
    if (q == 0) expand_both();
    const Index v = copy("v by positions", parts[2]);
    layer_.last().gradient = GradientRule::kAlias;
    layer_.release(parts);

    const Index unit_q = layer_.activation("unit_q", keys),
                unit_k = layer_.activation("unit_k", keys);
    const Index of_q = wide("length_of_q", shape_.heads), of_k = wide("length_of_k", shape_.heads);
    const Index sums = wide("sums_of_decays", layer_.width(decay));
    const Index inverse = layer_.activation("inverse", shape_.heads * shape_.chunk);
    const Index scanned = layer_.activation("attended", values);
    const std::int64_t states = shape_.inner() * shape_.state / shape_.chunk;
    const auto workspace = [&](const char* name, std::int64_t width) {
      return layer_.activation(name, std::max<std::int64_t>(1, width));
    };
    const Index of_keys = workspace("w", keys), of_values = workspace("u", values),
                state = workspace("states", states), corrected = workspace("corrected", values);
    const Indices of_heads = {workspace("w.grad", keys), workspace("k.grad of w", keys)};
    const Index pairs = layer_.activation("pairs", shape_.heads * shape_.chunk);
    const Index decayed_k = workspace("decayed k", keys);
    const Index diagonals = wide("diagonals", shape_.heads * 16);
    const Indices of_channels = {workspace("decayed q", keys),
                                 decayed_k,
                                 wide("pairs.grad", shape_.heads * shape_.chunk),
                                 wide("inverse.grad", shape_.heads * shape_.chunk),
                                 wide("q.grad", keys),
                                 wide("k.grad", keys),
                                 wide("decay.grad", keys)};
    Operation& op =
        layer_.operation(module_ + "delta_rule", OperationKind::kScan, Function::kDeltaRule);
    op.scan = shape_;
    op.inputs = {q, k, v, decay, beta};
    op.outputs = {scanned, unit_q, of_q, unit_k, of_k, sums, inverse};
    op.saved = {unit_q, of_q, unit_k, of_k, v, sums, beta, inverse};
    op.forward_workspace = {of_keys, of_values, state, corrected};
    op.backward_workspace = {of_keys,
                             of_values,
                             state,
                             corrected,
                             workspace("states.grad", states),
                             workspace("corrected.grad", values)};
    if (by_channel()) {
      op.outputs.push_back(pairs);
      op.saved.insert(op.saved.end(), {pairs, decay});
      op.forward_workspace.insert(op.forward_workspace.end(), {decayed_k, diagonals});
      op.backward_workspace.insert(op.backward_workspace.end(), of_channels.begin(),
                                   of_channels.end());
      op.released.push_back(pairs);
    } else {
      op.backward_workspace.insert(op.backward_workspace.end(), of_heads.begin(), of_heads.end());
    }
    layer_.release({unit_q, of_q, unit_k, of_k, sums, inverse, v, beta});
    // Copies that only the kernels read end with them; repeated heads are the module's.
    if (repeats) {
      hold({q, k});
    } else {
      layer_.release({q, k});
    }
    hold({normal, decay});
    return scanned;
  }

  Index gate(Index scanned) {
    const std::int64_t values = shape_.inner();
    const Index normed = layer_.norm(module_ + (is_apart() ? "o_norm" : "norm"), "delta_norm",
                                     NormKind::kRms, shape_.head_dim, scanned, shape_.heads);
    if (by_channel()) layer_.widen(normed);  // (its weight is fp32 there)
    const Index open =
        layer_.elementwise("gate_fp32", Function::kCast, {gate_}, {}, wide("gate_fp32", values));
    const Index sigma = wide("opened", values);
    if (by_channel()) {
      layer_.elementwise("sigmoid_gate", Function::kSigmoid, {open}, {sigma}, sigma);
    } else {
      layer_.elementwise("silu_gate", Function::kSilu, {open}, {open}, sigma);
    }
    const Index product = layer_.elementwise("gated_fp32", Function::kMultiply, {normed, sigma},
                                             {normed, sigma}, wide("gated_fp32", values));
    const Index gated = layer_.elementwise("gated", Function::kCast, {product}, {},
                                           layer_.activation("gated", values));
    layer_.release({product, normed, open, sigma, scanned});
    if (is_apart()) hold({gate_});
    return gated;
  }

  LayerBuilder& layer_;
  const DeltaRule& rule_;
  const ScanShape& shape_;
  const std::int64_t hidden_;
  const std::string module_;
  const Index input_;
  Indices decay_parameters_, held_;
  Index convolution_ = 0, gate_ = 0, correction_ = 0, decay_ = 0;
};

}  // namespace

Index mix_by_delta_rule(LayerBuilder& layer, const ModelDims& dims, const ParameterNames& names,
                        Index input) {
  return Mixer(layer, dims, names, input).run();
}

}  // namespace foreshard
