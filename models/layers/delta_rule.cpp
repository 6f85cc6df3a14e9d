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
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "models/layers/block_parts.h"
#include "sim/base/lookup.h"

namespace foreshard {
namespace {

class Mixer {
 public:
  Mixer(LayerBuilder& layer, const ModelDims& dims, const ParameterNames& names, Index input)
      : layer_(layer),
        rule_(dims.delta),
        hidden_(dims.hidden),
        module_(std::string(names.mamba) + "."),
        input_(input) {}

  Index run() {
    // Parameters of the module itself come before those of the modules in it.
    if (by_channel()) {
      decay_parameters_ = {
          parameter("forget_gate.dt_bias", {keys_}), parameter("forget_gate.A_log", {1, 1, heads_, 1})};
    } else {
      decay_parameters_ = {parameter("dt_bias", {heads_}), parameter("A_log", {heads_})};
    }
    const Index weight = parameter("conv1d.weight", {shape_.convolved(), 1, rule_.convolution});
    const Index convolved = convolve(layer_, module_ + "conv1d", {weight}, rule_.convolution, project());
    const Index normal =
        pass("silu", Function::kSilu, {convolved}, {convolved}, narrow("q_k_v convolved", shape_.convolved()));
    layer_.release({convolved});
    const Index scanned = attend(normal);
    if (by_channel()) gate_ = low_rank("g_a_proj", "g_b_proj", "gate", values_);
    else if (is_apart()) gate_ = product("g_proj", "gate", values_);
    const Index made = product(is_apart() ? "o_proj" : "out_proj", "mixed", hidden_, gate(scanned));
    layer_.release(held_);
    layer_.release({input_});
    return made;
  }

 private:
  using Projections = DeltaRule::Projections;
  bool by_channel() const { return rule_.projections == Projections::kLowRank; }
  bool is_apart() const { return rule_.projections == Projections::kApart || by_channel(); }

  Index parameter(const char* name, std::vector<std::int64_t> shape) {
    return layer_.parameter(module_, name, std::move(shape));
  }
  Index product(const char* name, const char* result, std::int64_t n, Index of) {
    return layer_.linear({.name = module_ + name, .result = result, .n = n, .k = layer_.width(of)}, of);
  }
  Index product(const char* name, const char* result, std::int64_t n) { return product(name, result, n, input_); }
  Index low_rank(const char* down, const char* up, const char* result, std::int64_t n) {
    const Index low = product(down, "low", shape_.head_dim);
    const Index made = product(up, result, n, low);
    layer_.release({low});
    return made;
  }
  Index narrow(const char* name, std::int64_t width) {
    return layer_.activation(name, std::max<std::int64_t>(1, width));
  }
  Index wide(const char* name, std::int64_t width) { return layer_.activation(name, width, ElementType::kFp32); }
  Index pass(const char* name, Function function, Indices inputs, Indices saved, Index output) {
    return layer_.elementwise(name, function, std::move(inputs), std::move(saved), output);
  }
  Index copy(const char* name, Index of) {
    return pass(name, Function::kCopy, {of}, {}, narrow(name, layer_.width(of)));
  }

  // Queries, keys and values side by side, and what gates.
  Index project() {
    if (rule_.projections == Projections::kByUse) {
      const Index all = product("in_proj_qkv", "q_k_v", 2 * keys_ + values_);
      gate_ = product("in_proj_z", "gate", values_);
      correction_ = product("in_proj_b", "correction", heads_);
      decay_ = product("in_proj_a", "decay", heads_);
      held_ = {gate_, correction_, decay_};
      return all;
    }
    Index q = 0, k = 0, v = 0;
    if (is_apart()) {
      q = product("q_proj", "q", keys_);
      k = product("k_proj", "k", keys_);
      v = product("v_proj", "v", values_);
    } else {  // parts of rows by heads of keys: all are copied
      const Index all = product("in_proj_qkvz", "q_k_v_gate", 2 * (keys_ + values_));
      const Index gates = product("in_proj_ba", "correction_decay", 2 * heads_);
      const Indices parts = {narrow("q of heads", keys_), narrow("k of heads", keys_), narrow("v of heads", values_),
          narrow("gate of heads", values_)};
      const Indices of_gates = {narrow("correction of heads", heads_), narrow("decay of heads", heads_)};
      layer_.split("split", all, parts);
      layer_.split("split_gates", gates, of_gates);
      v = copy("v", parts[2]);
      gate_ = copy("gate", parts[3]);
      correction_ = copy("correction", of_gates[0]);
      decay_ = copy("decay", of_gates[1]);
      q = copy("q", parts[0]);
      k = copy("k", parts[1]);
      layer_.release(parts);
      layer_.release(of_gates);
      held_ = {all, gates, gate_, correction_, decay_};
    }
    const Index joined = layer_.concatenate("q_k_v", {q, k, v});
    layer_.release({v, q, k});
    return joined;
  }

  // The logarithm of what is left of the state: -exp(A_log) softplus(a + dt_bias), in fp32, for
  // each head or channel of a key; softplus of channels by its operations (KimiLinearForgetGate).
  Index log_decay() {
    const std::int64_t width = layer_.width(decay_);
    const auto made = [&](const char* name, Function function, Indices inputs, Indices saved) {
      return pass(name, function, std::move(inputs), std::move(saved), wide(name, width));
    };
    const Index a = made("decay_fp32", Function::kCast, {decay_}, {});
    const Index step = made("step", Function::kAdd, {a}, {});
    layer_.last().gradient = GradientRule::kAlias;
    layer_.last().parameters = {decay_parameters_[0]};
    layer_.release({a});
    const Index softplus = by_channel() ? softplus_of(step) : made("softplus", Function::kSigmoid, {step}, {step});
    const Index decay = made("log_decay", Function::kMultiply, {softplus}, {softplus});
    layer_.last().parameters = {decay_parameters_[1]};
    layer_.release({step, softplus});
    return decay;
  }
  // where(x > 20, x, log(1 + exp(x)))
  Index softplus_of(Index step) {
    const std::int64_t width = layer_.width(step);
    const Index is_large = layer_.activation("is_large", width, ElementType::kByte);
    layer_.constant("is_large", Function::kCopy, {step}, is_large);
    const Index power = wide("exp", width);
    pass("exp", Function::kSigmoid, {step}, {power}, power);
    const Index sum = pass("plus_one", Function::kScale, {power}, {}, wide("plus_one", width));
    layer_.release({power});
    const Index log = pass("log", Function::kSigmoid, {sum}, {sum}, wide("log", width));
    layer_.release({sum});
    const Index chosen = pass("softplus", Function::kMultiply, {step, log}, {is_large}, wide("softplus", width));
    layer_.release({log, is_large});
    return chosen;
  }

  // How much of what the state predicts of a value is corrected.
  Index correction() {
    if (is_apart()) correction_ = product("b_proj", "correction", heads_);
    const Index share = narrow("beta", heads_);
    pass("beta", Function::kSigmoid, {correction_}, {share}, share);
    if (is_apart()) layer_.release({correction_});
    if (!rule_.doubled) return share;
    const Index twice = pass("doubled_beta", Function::kScale, {share}, {}, narrow("doubled_beta", heads_));
    layer_.release({share});
    return twice;
  }

  Index attend(Index normal) {
    const std::int64_t keys = heads_ * shape_.state, pairs = heads_ * shape_.chunk;
    const Indices parts = {narrow("q of all", keys_), narrow("k of all", keys_), narrow("v of all", values_)};
    layer_.split("split_convolved", normal, parts);
    const bool repeats = heads_ > shape_.groups;
    Index q = 0, k = 0;
    const auto expand = [&] {
      for (Index* each : {&q, &k}) {
        const bool of_q = each == &q;
        const char* name = of_q ? "q" : "k";
        *each = pass(name, Function::kCopy, {parts[of_q ? 0 : 1]}, {}, narrow(name, keys));
        if (!repeats) layer_.last().gradient = GradientRule::kAlias;
      }
    };
    // OLMo hybrid repeats heads before it makes its gates, Kimi Linear's decays come first.
    if (repeats && is_apart()) expand();
    Index beta = 0;
    if (by_channel()) {
      decay_ = low_rank("forget_gate.f_a_proj", "forget_gate.f_b_proj", "decay of channels", keys_);
    } else {
      beta = correction();
      if (is_apart()) decay_ = product("a_proj", "decay", heads_);
    }
    const Index decay = log_decay();
    if (is_apart()) layer_.release({decay_});
    if (by_channel()) beta = correction();
    if (q == 0) expand();
    const Index v = copy("v by positions", parts[2]);
    layer_.last().gradient = GradientRule::kAlias;
    layer_.release(parts);

    const Indices kept = {narrow("unit_q", keys), wide("length_of_q", heads_), narrow("unit_k", keys),
        wide("length_of_k", heads_), wide("sums_of_decays", layer_.width(decay)), narrow("inverse", pairs)};
    const Index scanned = narrow("attended", values_);
    const std::int64_t states = values_ * shape_.state / shape_.chunk;
    const Indices again = {
        narrow("w", keys), narrow("u", values_), narrow("states", states), narrow("corrected", values_)};
    Indices forward = again, backward = again, saved = kept, outputs = {scanned};
    append(outputs, kept);
    append(saved, {v, beta});
    append(backward, {narrow("states.grad", states), narrow("corrected.grad", values_)});
    Indices released = kept;
    if (by_channel()) {
      const Index of_q_k = narrow("pairs", pairs), decayed = narrow("decayed k", keys);
      append(outputs, {of_q_k});
      append(saved, {of_q_k, decay});
      append(released, {of_q_k});
      append(forward, {decayed, wide("diagonals", heads_ * 16)});
      append(backward, {narrow("decayed q", keys), decayed, wide("pairs.grad", pairs), wide("inverse.grad", pairs),
                           wide("q.grad", keys), wide("k.grad", keys), wide("decay.grad", keys)});
    } else {
      append(backward, {narrow("w.grad", keys), narrow("k.grad of w", keys)});
    }
    Operation& op = layer_.operation(module_ + "delta_rule", OperationKind::kScan, Function::kDeltaRule);
    op.scan = shape_;
    op.inputs = {q, k, v, decay, beta};
    op.outputs = std::move(outputs);
    op.saved = std::move(saved);
    op.forward_workspace = std::move(forward);
    op.backward_workspace = std::move(backward);
    // Copies that only the kernels read end with them; repeated heads are the module's.
    append(released, {v, beta});
    append(repeats ? held_ : released, {q, k});
    append(held_, {normal, decay});
    layer_.release(released);
    return scanned;
  }

  Index gate(Index scanned) {
    const Index normed = layer_.norm(
        module_ + (is_apart() ? "o_norm" : "norm"), "delta_norm", NormKind::kRms, shape_.head_dim, scanned, heads_);
    if (by_channel()) layer_.widen(normed);  // (its weight is fp32 there)
    const Index open = pass("gate_fp32", Function::kCast, {gate_}, {}, wide("gate_fp32", values_));
    const Index sigma = wide("opened", values_);
    pass("open", by_channel() ? Function::kSigmoid : Function::kSilu, {open}, {by_channel() ? sigma : open}, sigma);
    const Index gated =
        pass("gated_fp32", Function::kMultiply, {normed, sigma}, {normed, sigma}, wide("gated_fp32", values_));
    const Index made = pass("gated", Function::kCast, {gated}, {}, narrow("gated", values_));
    layer_.release({gated, normed, open, sigma, scanned});
    if (is_apart()) append(held_, {gate_});
    return made;
  }

  LayerBuilder& layer_;
  const DeltaRule& rule_;
  const ScanShape& shape_ = rule_.scan;
  const std::int64_t hidden_, heads_ = shape_.heads, keys_ = shape_.shared(), values_ = shape_.inner();
  const std::string module_;
  const Index input_;
  Indices decay_parameters_, held_;
  Index gate_ = 0, correction_ = 0, decay_ = 0;
};

}

Index mix_by_delta_rule(LayerBuilder& layer, const ModelDims& dims, const ParameterNames& names, Index input) {
  return Mixer(layer, dims, names, input).run();
}

}
