// The operators of the recorded modules in the order in which they run. `released` says where Python's names end: a
// function's arguments and locals when it returns, temporaries with the call that they are arguments of.
#include "models/recorded.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "models/families.h"
#include "models/model_dims.h"
#include "sim/base/error.h"
#include "sim/graph/layers/layer_writer.h"

namespace foreshard {
namespace {

class Recorder : public LayerWriter {
 public:
  Recorder(const RecordedSettings& settings, std::string name, LayerRole role, TensorSpec input)
      : LayerWriter(std::move(name), role, std::move(input)), settings_(settings) {}

  Index linear(std::string name, Index input, Indices parameters, std::int64_t n, std::int64_t k) {
    const Index output = activation(name, n);
    Operation& op = operation(std::move(name), OperationKind::kGemm, Function::kMatrixProduct, {input}, {output});
    op.saved = {input};
    // torchtitan's selective checkpointing keeps every second aten::mm; a bias makes it an addmm.
    op.kept_by_selective = parameters.size() == 1 && products_++ % 2 == 0;
    op.parameters = std::move(parameters);
    op.n = n;
    op.k = k;
    return output;
  }

  Index norm(std::string name, Index input, Indices parameters) {
    const bool rms = settings_.model != "gpt2";
    const Index output = activation(name, settings_.dim);
    Indices statistics;
    if (!rms) statistics.push_back(activation(name + " mean", 1, ElementType::kFp32));
    statistics.push_back(activation(name + " rstd", 1, ElementType::kFp32));
    Operation& op = operation(
        std::move(name), OperationKind::kNorm, rms ? Function::kRmsNorm : Function::kLayerNorm, {input}, {output});
    op.saved = {input};
    for (Index t : statistics) {
      op.outputs.push_back(t);
      op.saved.push_back(t);
    }
    op.makes_all = true;  // a function of Python's stands for the fused one
    op.parameters = std::move(parameters);
    op.released = std::move(statistics);
    return output;
  }
  Indices norm_parameters(const std::string& name) {
    Indices parameters = {parameter(name + ".weight", {settings_.dim})};
    layer_.parameters.back().is_norm = true;
    if (settings_.model == "gpt2") parameters.push_back(parameter(name + ".bias", {settings_.dim}));
    return parameters;
  }
  Indices linear_parameters(const std::string& name, std::int64_t n, std::int64_t k) {
    Indices parameters = {parameter(name + ".weight", {n, k})};
    if (settings_.model == "gpt2") parameters.push_back(parameter(name + ".bias", {n}));
    return parameters;
  }

  Index sum(std::string name, Index residual, Index branch) {
    const Index output = activation(name, settings_.dim);
    pass(std::move(name), Function::kAdd, {residual, branch}, {output}).gradient = GradientRule::kAlias;
    last().released = {branch};
    return output;
  }

  Index attention(Index q, Index k, Index v) {
    const std::int64_t head_dim = settings_.dim / settings_.heads;
    const bool flash = settings_.attention == "flash";
    const Index output = activation("attention", settings_.dim);
    const Index logsumexp = activation("logsumexp", settings_.heads, ElementType::kFp32);
    // flash: random-number state and an unused tensor; efficient: seed and offset, 8 bytes each
    const Index seed = tensor({.name = "rng_state", .fixed = flash ? 16 : 8, .type = ElementType::kByte});
    const Index unused = tensor({.name = "rng_unused", .fixed = 8, .type = ElementType::kByte});
    Operation& op = operation(
        "attention", OperationKind::kAttention, Function::kAttention, {q, k, v}, {output, logsumexp, seed, unused});
    op.saved = {k, q, v, logsumexp, output, seed, unused};
    op.attention = {.heads = settings_.heads,
        .kv_heads = settings_.model == "gpt2" ? settings_.heads : settings_.kv_heads,
        .head_dim = head_dim,
        .causal = true};
    op.released = {unused, seed, logsumexp};
    op.kept_by_selective = true;
    return output;
  }

 private:
  const RecordedSettings& settings_;
  int products_ = 0;
};

// Complex multiplication in fp32.
Index rotary(Recorder& r, const RecordedSettings& s, const std::string& name, std::int64_t width, Index input) {
  const Index wide = r.activation(name + " fp32", width, ElementType::kFp32);
  r.pass(name + " to fp32", Function::kCast, {input}, {wide});
  const Index table =
      r.tensor({.name = name + " rotary conjugate", .per_position = s.dim / s.heads, .type = ElementType::kFp32});
  const Index product = r.activation(name + " rotated fp32", width, ElementType::kFp32);
  r.pass(name + " rotary", Function::kRotary, {wide}, {product}).backward_temporaries = {table};
  const Index output = r.activation(name + " rotated", width);
  r.pass(name + " from fp32", Function::kCast, {product}, {output}).released = {wide, product};
  return output;
}

Index swiglu(Recorder& r, const RecordedSettings& s, Index input, const Indices& w) {
  const Index gate = r.linear("w1", input, {w[0]}, s.ffn, s.dim);
  const Index silu = r.made("silu", Function::kSilu, {gate}, s.ffn, {gate});
  const Index up = r.linear("w3", input, {w[2]}, s.ffn, s.dim);
  const Index product = r.made("silu times up", Function::kMultiply, {silu, up}, s.ffn, {up, silu});
  r.last().released = {silu, up};
  const Index down = r.linear("w2", product, {w[1]}, s.dim, s.ffn);
  r.last().released = {product, input};
  return down;
}

// Top-k router with a static dispatch: every expert receives as many rows.
Index mixture(Recorder& r, const RecordedSettings& s, Index x, Index gate, const Indices& experts) {
  const std::int64_t k = s.top_k;
  const Index logits = r.linear("gate", x, {gate}, s.experts, s.dim);
  const Index wide = r.activation("gate fp32", s.experts, ElementType::kFp32);
  r.pass("gate to fp32", Function::kCast, {logits}, {wide});
  const Index probabilities = r.activation("probabilities", s.experts, ElementType::kFp32);
  r.pass("softmax", Function::kCopy, {wide}, {probabilities}).saved = {probabilities};
  const Index score = r.activation("score", k, ElementType::kFp32);
  const Index expert = r.activation("expert", k, ElementType::kInt64);
  Operation& topk = r.pass("topk", Function::kCopy, {probabilities}, {score, expert});
  topk.saved = {expert};
  topk.backward_temporaries = {r.activation("topk zeros", s.experts, ElementType::kFp32)};
  const Index sorted = r.activation("sorted", k, ElementType::kInt64);
  const Index order = r.activation("order", k, ElementType::kInt64);
  r.constant("sort", Function::kCopy, {expert}, {sorted, order});
  const Index source = r.activation("source", k, ElementType::kInt64);
  r.constant("floor_divide", Function::kCopy, {order}, {source});
  const Index rows = r.activation("rows", k * s.dim);
  Operation& dispatch = r.pass("index", Function::kCopy, {x, source}, {rows});
  dispatch.saved = {source};
  dispatch.backward_temporaries = {r.activation("index zeros", s.dim)};

  const auto product = [&](const char* name, Index input, Index weight, std::int64_t n, std::int64_t inner) {
    const Index output = r.activation(name, k * n);
    Operation& op = r.operation(name, OperationKind::kGemm, Function::kMatrixProduct, {input}, {output});
    op.saved = {input};
    op.parameters = {weight};
    op.n = n;
    op.k = inner;
    op.rows = k;
    op.part = 1;
    return output;
  };
  const Index w1 = product("experts w1", rows, experts[0], s.ffn, s.dim);
  const Index silu = r.made("silu", Function::kSilu, {w1}, k * s.ffn, {w1});
  r.last().part = 1;
  const Index w3 = product("experts w3", rows, experts[2], s.ffn, s.dim);
  const Index inner = r.made("silu times up", Function::kMultiply, {silu, w3}, k * s.ffn, {w3, silu});
  r.last().part = 1;
  r.last().released = {silu, w3};
  const Index made = product("experts w2", inner, experts[1], s.dim, s.ffn);

  const Index picked = r.activation("score of rows", k, ElementType::kFp32);
  Operation& pick = r.pass("index", Function::kCopy, {score, order}, {picked});
  pick.saved = {order};
  pick.backward_temporaries = {r.activation("score zeros", k, ElementType::kFp32)};
  const Index weight = r.activation("weight of rows", k);
  r.pass("score cast", Function::kCast, {picked}, {weight});
  const Index y = r.activation("weighted rows", k * s.dim);
  Operation& weigh = r.pass("multiply", Function::kMultiply, {made, weight}, {y});
  weigh.saved = {weight, made};
  weigh.sums_last = true;
  weigh.released = {made, weight};
  const Index zeros = r.activation("zeros", s.dim);
  r.constant("zeros_like", Function::kCopy, {x}, {zeros});
  const Index target = r.activation("target", k, ElementType::kInt64);
  r.constant("floor_divide", Function::kCopy, {order}, {target});
  const Index output = r.activation("feed_forward", s.dim);
  Operation& combine = r.pass("index_add", Function::kCopy, {zeros, target, y}, {output});
  combine.saved = {target, y};
  combine.released = {zeros, target, score, expert, order, rows, y, x};
  return output;
}

LayerSpec llama_block(const RecordedSettings& s) {
  const bool moe = s.model == "moe";
  const std::int64_t head_dim = s.dim / s.heads;
  const std::int64_t kv = s.kv_heads * head_dim;
  Recorder r(s, moe ? "moe block" : "llama block", LayerRole::kBlock, {.name = "input", .per_token = s.dim});
  const Indices norm1 = r.norm_parameters("attention_norm");
  const Index wq = r.parameter("attention.wq.weight", {s.heads * head_dim, s.dim});
  const Index wk = r.parameter("attention.wk.weight", {kv, s.dim});
  const Index wv = r.parameter("attention.wv.weight", {kv, s.dim});
  const Index wo = r.parameter("attention.wo.weight", {s.dim, s.heads * head_dim});
  const Indices norm2 = r.norm_parameters("ffn_norm");
  Index gate = 0;
  Indices w;
  if (moe) {
    gate = r.parameter("feed_forward.gate.weight", {s.experts, s.dim});
    w = {r.parameter("feed_forward.experts.w1", {s.experts, s.dim, s.ffn}, 1),
        r.parameter("feed_forward.experts.w2", {s.experts, s.ffn, s.dim}, 1),
        r.parameter("feed_forward.experts.w3", {s.experts, s.dim, s.ffn}, 1)};
    r.layer().nested = {"feed_forward.experts"};
  } else {
    w = {r.parameter("feed_forward.w1.weight", {s.ffn, s.dim}), r.parameter("feed_forward.w2.weight", {s.dim, s.ffn}),
        r.parameter("feed_forward.w3.weight", {s.ffn, s.dim})};
  }
  const Index n1 = r.norm("attention_norm", 0, norm1);
  const Index plain_q = r.linear("wq", n1, {wq}, s.heads * head_dim, s.dim);
  const Index plain_k = r.linear("wk", n1, {wk}, kv, s.dim);
  const Index v = r.linear("wv", n1, {wv}, kv, s.dim);
  const Index q = rotary(r, s, "q", s.heads * head_dim, plain_q);
  const Index k = rotary(r, s, "k", kv, plain_k);
  r.release({plain_k, plain_q});
  const Index attention = r.attention(q, k, v);
  const Index projected = r.linear("wo", attention, {wo}, s.dim, s.heads * head_dim);
  r.last().released = {q, k, v, attention, n1};
  const Index middle = r.sum("attention residual", 0, projected);
  const Index n2 = r.norm("ffn_norm", middle, norm2);
  const Index fed = moe ? mixture(r, s, n2, gate, w) : swiglu(r, s, n2, w);
  const Index output = r.sum("feed_forward residual", middle, fed);
  r.release({middle});
  return r.finish(output);
}

LayerSpec gpt2_block(const RecordedSettings& s) {
  const std::int64_t d = s.dim;
  Recorder r(s, "gpt2 block", LayerRole::kBlock, {.name = "input", .per_token = d});
  const Indices ln1 = r.norm_parameters("ln_1");
  const Indices ln2 = r.norm_parameters("ln_2");
  const Indices c_attn = r.linear_parameters("c_attn", 3 * d, d);
  const Indices c_proj = r.linear_parameters("c_proj", d, d);
  const Indices c_fc = r.linear_parameters("c_fc", s.ffn, d);
  const Indices c_out = r.linear_parameters("c_out", d, s.ffn);
  const Index n1 = r.norm("ln_1", 0, ln1);
  const Index qkv = r.linear("c_attn", n1, c_attn, 3 * d, d);
  const Index q = r.activation("q", d);
  const Index k = r.activation("k", d);
  const Index v = r.activation("v", d);
  r.pass("split", Function::kCopy, {qkv}, {q, k, v}).view = true;
  const Index attention = r.attention(q, k, v);
  const Index projected = r.linear("c_proj", attention, c_proj, d, d);
  const Index middle = r.sum("attention residual", 0, projected);
  const Index n2 = r.norm("ln_2", middle, ln2);
  const Index up = r.linear("c_fc", n2, c_fc, s.ffn, d);
  const Index gelu = r.made("gelu", Function::kGelu, {up}, s.ffn, {up});
  const Index down = r.linear("c_out", gelu, c_out, d, s.ffn);
  const Index output = r.sum("mlp residual", middle, down);
  r.release({middle, q, k, v});
  return r.finish(output);
}

LayerSpec embedding(const RecordedSettings& s) {
  const bool gpt2 = s.model == "gpt2";
  const std::string name = gpt2 ? "wte" : "tok_embeddings";
  Recorder r(s, "embedding", LayerRole::kEmbedding, {.name = "token_ids", .per_token = 1, .type = ElementType::kInt64});
  const auto part = static_cast<std::int8_t>(gpt2 ? 1 : 0);
  const Index table = r.parameter(name + ".weight", {s.vocab, s.dim}, part);
  const Index tokens = r.activation(name, s.dim);
  const auto look_up = [&](Index weight, Index ids, Index output) -> Operation& {
    Operation& op = r.operation("embedding", OperationKind::kEmbedding, Function::kEmbedding, {ids}, {output});
    op.gradient = GradientRule::kNone;
    op.parameters = {weight};
    return op;
  };
  look_up(table, 0, tokens).part = part;
  if (!gpt2) return r.finish(tokens);
  // The table of positions belongs to the model itself.
  r.layer().nested = {name};
  const Index positions = r.parameter("wpe.weight", {s.seq, s.dim});
  const Index ids = r.tensor({.name = "position_ids", .per_position = 1, .type = ElementType::kInt64});
  r.constant("arange", Function::kArange, {}, {ids});
  const Index rows = r.tensor({.name = "wpe", .per_position = s.dim});
  look_up(positions, ids, rows).saved = {ids};
  const Index output = r.sum("embedding sum", tokens, rows);
  r.last().released = {tokens, rows};
  return r.finish(output);
}

LayerSpec final_norm(const RecordedSettings& s) {
  Recorder r(s, "final norm", LayerRole::kFinalNorm, {.name = "input", .per_token = s.dim});
  const std::string name = s.model == "gpt2" ? "ln_f" : "norm";
  return r.finish(r.norm(name, 0, r.norm_parameters(name)));
}

LayerSpec head(const RecordedSettings& s) {
  const bool gpt2 = s.model == "gpt2";
  Recorder r(s, "head", LayerRole::kHead, {.name = "input", .per_token = s.dim});
  const std::string table = gpt2 ? "wte.weight" : "tok_embeddings.weight";
  const std::string own = gpt2 ? "lm_head.weight" : "output.weight";
  const Index weight = r.parameter(s.tied ? table : own, {s.vocab, s.dim});
  r.layer().parameters.back().tied = s.tied;
  return r.finish(r.linear("logits", 0, {weight}, s.vocab, s.dim));
}

LayerSpec loss(const RecordedSettings& s) {
  Recorder r(s, "cross entropy", LayerRole::kLoss, {.name = "logits", .per_token = s.vocab});
  const Index wide = r.activation("logits fp32", s.vocab, ElementType::kFp32);
  r.pass("logits to fp32", Function::kCast, {0}, {wide});
  const Index probabilities = r.activation("log probabilities", s.vocab, ElementType::kFp32);
  r.operation("log_softmax", OperationKind::kSoftmaxLoss, Function::kLogSoftmax, {wide}, {probabilities}).saved = {
      probabilities};
  const Index mean = r.tensor({.name = "loss", .fixed = 1, .type = ElementType::kFp32});
  const Index weight = r.tensor({.name = "total weight", .fixed = 1, .type = ElementType::kFp32});
  Operation& nll = r.operation(
      "nll_loss", OperationKind::kSoftmaxLoss, Function::kNegativeLogLikelihood, {probabilities}, {mean, weight});
  nll.saved = {probabilities, weight};
  nll.released = {wide, 0};
  return r.finish(mean);
}

void check(const RecordedSettings& s) {
  const auto refuse = [](std::string_view what, const std::string& word) {
    throw Error(ExitCode::kMissingCapability, "recorded models: no " + std::string(what) + " \"" + word + "\"");
  };
  if (s.model != "llama" && s.model != "moe" && s.model != "gpt2") refuse("model", s.model);
  if (s.attention != "flash" && s.attention != "efficient") refuse("attention", s.attention);
  if (s.norm != "fused") refuse("norm", s.norm);
}

}

ModelSpec build_recorded_model(const RecordedSettings& s) {
  check(s);
  const bool gpt2 = s.model == "gpt2";
  ModelSpec model;
  model.name = s.model;
  model.family = gpt2 ? "gpt2" : "llama";
  model.source = "modules of the recordings";
  model.hidden = s.dim;
  model.vocabulary = s.vocab;
  model.max_positions = s.seq;
  model.tied_embeddings = s.tied;
  model.block_prefix = "layers";
  model.kinds = {embedding(s), gpt2 ? gpt2_block(s) : llama_block(s), final_norm(s), head(s), loss(s)};
  model.order.push_back({.kind = 0, .name = gpt2 ? "wte" : "tok_embeddings"});
  for (std::int64_t call = 0; call < s.repeat; ++call) {
    for (std::int64_t i = 0; i < s.layers; ++i) {
      const auto same = call == 0 ? -1 : static_cast<std::int32_t>(1 + i);
      model.order.push_back({.kind = 1, .name = "layers." + std::to_string(i), .same_as = same});
    }
  }
  model.order.push_back({.kind = 2, .name = gpt2 ? "ln_f" : "norm"});
  model.order.push_back({.kind = 3, .name = gpt2 ? "lm_head" : "output"});
  model.order.push_back({.kind = 4, .name = "loss"});
  model.parameters();  // throws where the count overflows
  return model;
}

// Dimensions of the two families with the recorder's names, which are Hugging Face's without the
// outer module's. The recorder has no rotary embedding; ours is computed and changes no event.

namespace {

void drop_prefix(std::string& name, std::string_view prefix) {
  if (name.starts_with(prefix)) name.erase(0, prefix.size());
}

// Makes the modules of these names, in the order of the forward, such as may be units: the
// operations from the first to the last that read their parameters.
void nest(LayerSpec& layer, const std::vector<std::string>& names) {
  layer.nested = names;
  for (std::size_t n = 0; n < names.size(); ++n) {
    const auto part = static_cast<std::int8_t>(n + 1);
    for (ParameterSpec& parameter : layer.parameters)
      if (parameter.name.starts_with(names[n] + ".")) parameter.part = part;
    const auto reads = [&](const Operation& operation) {
      return std::ranges::any_of(
          operation.parameters, [&](std::int16_t p) { return layer.parameters[std::size_t(p)].part == part; });
    };
    const auto first = std::ranges::find_if(layer.operations, reads);
    const auto last = std::find_if(layer.operations.rbegin(), layer.operations.rend(), reads);
    for (auto operation = first; operation < last.base(); ++operation) operation->part = part;
  }
}

}

ModelSpec build_library_model(const LibraryModel& settings) {
  const bool gpt = settings.arch == "gpt";
  if (!gpt && settings.arch != "llama")
    throw Error(ExitCode::kMissingCapability, "the recorder's architecture \"" + settings.arch + "\" is not known");
  ModelDims dims = *family_dims(gpt ? "gpt3" : "llama");
  dims.name = settings.arch;
  dims.source = "the recorder's configs.json";
  dims.layers = settings.layers;
  dims.hidden = settings.dim;
  dims.heads = settings.heads;
  dims.kv_heads = gpt ? settings.heads : settings.kv_heads;
  if (settings.heads > 0) dims.head_dim = settings.dim / settings.heads;
  dims.ffn = settings.ffn;
  dims.vocabulary = settings.vocab;
  dims.max_positions = dims.position_rows = gpt ? settings.positions : 1 << 20;
  // FSDP1 that makes a unit of a tied table leaves the head with a parameter of its own
  // (use_orig_params=False; else the head fails on the shard of the table).
  dims.tied = settings.tied && settings.wrap != "blocks+emb";
  ModelSpec model = build_model(dims);
  const std::string_view outer = gpt ? "transformer." : "model.";
  drop_prefix(model.block_prefix, outer);
  model.buffer_elements = settings.buffer;
  for (LayerSpec& layer : model.kinds) {
    for (ParameterSpec& parameter : layer.parameters) drop_prefix(parameter.name, outer);
    if (settings.unused && layer.role == LayerRole::kHead)
      layer.parameters.push_back({.name = "extra.weight", .shape = {settings.dim, settings.dim}});
    if (settings.wrap == "sub" && layer.role == LayerRole::kBlock) nest(layer, {gpt ? "attn" : "self_attn", "mlp"});
    if (settings.wrap == "blocks+emb" && gpt && layer.role == LayerRole::kEmbedding) nest(layer, {"wte", "wpe"});
  }
  return model;
}

}
