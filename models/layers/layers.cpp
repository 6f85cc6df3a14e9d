// Each kind of layer from its modules (models/layers/block_parts.h), with where Python's names end.
#include "models/layers/layers.h"

#include <algorithm>
#include <string>
#include <utility>

#include "models/layers/block_parts.h"
#include "sim/base/lookup.h"
#include "sim/graph/layers/given_mask.h"

namespace foreshard {
namespace {

// The engine's loss: a few rows of logits at a time become log-probabilities in fp32, then their
// own gradient, which takes the logits' place.
LayerSpec native_loss(LayerBuilder& layer, const ModelDims& dims) {
  const Index loss = layer.tensor({.name = "loss", .fixed = 1, .type = ElementType::kFp32});
  const Index rows = layer.tensor({.name = "log_probability_rows",
      .fixed = loss_rows(dims.vocabulary) * dims.vocabulary,
      .type = ElementType::kFp32});
  Operation& op = layer.operation("cross_entropy", OperationKind::kSoftmaxLoss, Function::kCrossEntropy);
  op.inputs = op.saved = {0};
  op.outputs = {loss, rows};
  op.in_place = true;
  return layer.finish(loss);
}

// Rows for the segment that each token belongs to.
Index add_token_types(LayerBuilder& layer, const ModelDims& dims, const ParameterNames& names, Index tokens) {
  const std::int64_t width = token_width(dims);
  const Index types = layer.tensor({.name = "token_type_ids", .per_token = 1, .type = ElementType::kInt64});
  layer.constant("zeros", Function::kCopy, {}, types);
  const Index rows = layer.activation("token_type_embedding", width);
  layer.look_up(
      names.token_types, {types}, rows, layer.parameter(names.token_types, ".weight", {dims.token_types, width}));
  return layer.residual_add("token_type_sum", width, tokens, rows);
}

// Rows of an fp32 buffer.
Index add_sinusoids(LayerBuilder& layer, const ModelDims& dims, Index tokens) {
  const Index ids = layer.tensor({.name = "position_ids", .per_position = 1, .type = ElementType::kInt64});
  layer.constant("arange", Function::kArange, {}, ids);
  const Index rows =
      layer.tensor({.name = std::string(kSinusoids), .per_position = dims.hidden, .type = ElementType::kFp32});
  layer.constant("sinusoids", Function::kGather, {ids}, rows);
  return layer.residual_add("embedding_sum", dims.hidden, tokens, rows);
}

// The rows of distances, perhaps normed, which every block reads (DeBERTa).
Index read_distances(LayerBuilder& layer, const ModelDims& dims, const ParameterNames& names, Index input) {
  const std::string encoder(names.blocks.substr(0, names.blocks.rfind('.') + 1));
  const Index output =
      layer.elementwise("distance_rows", Function::kAdd, {input}, {}, layer.activation("with_distances", dims.hidden));
  layer.last().in_place = true;
  layer.last().gradient = GradientRule::kAlias;
  Indices read = {layer.parameter(encoder, "rel_embeddings.weight", {dims.parts.distances, dims.hidden})};
  for (const char* name : {"LayerNorm.weight", "LayerNorm.bias"})
    if (dims.parts.distance_norm) read.push_back(layer.parameter(encoder, name, {dims.hidden}));
  layer.last().parameters = std::move(read);
  return output;
}

void define_last(LayerSpec& layer, Index parameter) {
  const auto place = layer.parameters.begin() + parameter;
  std::rotate(place, place + 1, layer.parameters.end());
  const auto last = static_cast<Index>(layer.parameters.size() - 1);
  for (Operation& op : layer.operations) {
    for (Index& p : op.parameters)
      if (p == parameter) p = last;
      else if (p > parameter) --p;
  }
}

Index mix(LayerBuilder& layer, const ModelDims& dims, const ParameterNames& names, FeedForwardKind kind, Index input) {
  if (kind == FeedForwardKind::kExperts) {
    const Index made = mixture(layer, dims, names, input);
    if (!dims.parts.mixture_norm) return made;
    const Index normed = layer.norm(names.mixture_norm, "mixture_norm", dims.norm, dims.hidden, made);
    layer.release({made});
    return normed;
  }
  const Index down = feed_forward(layer, dims,
      {.gate = dims.fused_gate_up ? names.gate_up : names.gate,
          .up = names.up,
          .down = names.down,
          .ffn = dims.ffn,
          .norm = dims.parts.ffn_norm ? names.ffn_norm : ""},
      input);
  if (!keeps_input(dims)) layer.release({input});
  return down;
}

// A feed-forward layer and experts, which read the same stream by norms of their own (Gemma 4).
Index mix_beside(LayerBuilder& layer, const ModelDims& dims, const ParameterNames& names, Index middle) {
  const auto norm = [&](std::string_view base, const char* number, const char* result, Index of) {
    return layer.norm(std::string(base) + number, result, dims.norm, dims.hidden, of);
  };
  const Index dense_input = layer.norm(names.norm2, "norm2", dims.norm, dims.hidden, middle);
  const Index dense = mix(layer, dims, names, FeedForwardKind::kDense, dense_input);
  const Index first = norm(names.post_mlp_norm, "_1", "post_mlp_norm_1", dense);
  layer.release({dense});
  const Index plain = layer.norm("", "router_norm", NormKind::kRmsUnweighted, dims.hidden, middle);
  const Index weighed = layer.elementwise(
      "router_scale", Function::kMultiply, {plain}, {plain}, layer.activation("router_weighed", dims.hidden));
  layer.last().parameters = {layer.parameter(names.router_scale, "", {dims.hidden})};
  layer.release({plain});
  const Index scaled =
      layer.elementwise("router_root", Function::kScale, {weighed}, {}, layer.activation("router_input", dims.hidden));
  layer.release({weighed});
  const Index rows = norm(names.norm2, "_2", "norm2_2", middle);
  const Index routed = mixture(layer, dims, names, rows, scaled);
  layer.release(layer.held());
  const Index second = norm(names.post_mlp_norm, "_2", "post_mlp_norm_2", routed);
  layer.release({routed});
  const Index sum = layer.residual_add("experts_and_mlp", dims.hidden, first, second);
  layer.release({first, second});
  return sum;
}

// Whether the caller lets go of what it hands in.
enum class Input : std::uint8_t { kEnds, kStays };
// A branch times the model's constant or a vector, where it has one.
Index scale_branch(LayerBuilder& layer, const ModelDims& dims, std::string_view name, Index branch) {
  if (dims.parts.branch_weights) {
    layer.elementwise(name, Function::kMultiply, {branch}, {branch}, layer.activation(name, dims.hidden));
    layer.last().parameters = {layer.parameter(name, ".lambda1", {dims.hidden})};
    layer.last().backward_workspace = {layer.activation("weight.grad of each", dims.hidden)};
    const Index weighed = layer.last().outputs.front();
    layer.release({branch});
    return weighed;
  }
  if (!dims.branch_scale) return branch;
  const Index scaled = layer.elementwise(name, Function::kScale, {branch}, {}, layer.activation(name, dims.hidden));
  layer.release({branch});
  return scaled;
}

// Wx of each element, or of each head.
Index project_gate(LayerBuilder& layer, const ModelDims& dims, const ParameterNames& names, Index input) {
  return layer.linear({.name = names.attention_gate,
                          .result = "attention_gate",
                          .n = dims.parts.gate_of_heads ? dims.heads : attention_width(dims),
                          .k = dims.hidden},
      input);
}

// Attention's output times its gate.
Index weigh_by_gate(LayerBuilder& layer, const ModelDims& dims, Index attention, Index gate) {
  const std::int64_t width = layer.width(gate);
  Index weight = 0;
  if (dims.parts.gate == OutputGate::kSigmoid) {
    weight = layer.activation("gate_sigmoid", width);
    layer.elementwise("gate_sigmoid", Function::kSigmoid, {gate}, {weight}, weight);
    if (!dims.parts.gate_beside_queries) layer.release({gate});
  } else {
    const Index wide = layer.activation("gate_fp32", width, ElementType::kFp32);
    layer.elementwise("gate_to_fp32", Function::kCast, {gate}, {}, wide);
    layer.release({gate});
    const Index softplus = layer.elementwise("gate_softplus", Function::kSigmoid, {wide}, {wide},
        layer.activation("gate_softplus", width, ElementType::kFp32));
    layer.release({wide});
    weight = layer.elementwise("gate_cast", Function::kCast, {softplus}, {}, layer.activation("gate_weight", width));
    layer.release({softplus});
  }
  const Index gated = layer.elementwise("gated_attention", Function::kMultiply, {attention, weight},
      {attention, weight}, layer.activation("gated_attention", layer.width(attention)));
  layer.last().sums_last = dims.parts.gate_of_heads;
  layer.release({attention, weight});
  return gated;
}

// Attention with its output projection.
Index attend_and_project(
    LayerBuilder& layer, const ModelDims& dims, const ParameterNames& names, Index input, Input use) {
  const bool gates = dims.parts.gate != OutputGate::kNone;
  const bool is_beside = dims.parts.gate_beside_queries;
  Index gate = gates && !is_beside ? project_gate(layer, dims, names, input) : Index{0};
  Index attention = attend(layer, dims, names, input);
  Indices held = layer.last().inputs;  // q, k, v
  if (is_beside) {
    const Indices locals = layer.held();
    layer.hold(locals);
    gate = locals.front();
  }
  if (gates) attention = weigh_by_gate(layer, dims, attention, gate);
  if (dims.parts.attention_norm) {
    held.push_back(attention);
    attention = layer.norm(names.attention_norm, "attention_norm", dims.norm, attention_width(dims), attention);
  }
  if (dims.sinks) attention = weigh_by_sinks(layer, dims, names, attention);
  const Index projected = layer.linear({.name = names.o,
                                           .result = "attention_projection",
                                           .n = dims.hidden,
                                           .k = attention_width(dims),
                                           .bias = dims.output_bias,
                                           .conv1d = dims.conv1d},
      attention);
  const Indices locals = layer.held();
  append(held, locals);
  held.push_back(attention);
  if (use == Input::kEnds) held.push_back(input);
  layer.release(held);
  return projected;
}

// x + norm(W (gelu(Vx) * what the layer is given)). Its gradient is added, among zeros, to that of
// all layers' (which is counted here alone).
Index add_layer_input(LayerBuilder& layer, const ModelDims& dims, Index x) {
  const std::int64_t width = dims.parts.layer_input;
  const Index gate =
      layer.linear({.name = "per_layer_input_gate", .result = "input_gate", .n = width, .k = dims.hidden}, x);
  const auto pass = [&](const char* name, Function function, Index of) {
    return layer.elementwise(name, function, {of}, {of}, layer.activation(name, width));
  };
  const Index gelu = pass("input_gelu", Function::kGelu, gate);
  layer.release({gate});
  const Index gated = pass("gated_input", Function::kMultiply, gelu);
  for (const char* name : {"layer_inputs.grad", "zeros"})
    layer.last().backward_workspace.push_back(layer.activation(name, width * dims.layers));
  layer.release({gelu});
  const Index made =
      layer.linear({.name = "per_layer_projection", .result = "layer_input", .n = dims.hidden, .k = width}, gated);
  layer.release({gated});
  const Index normed = layer.norm("post_per_layer_input_norm", "layer_input_norm", dims.norm, dims.hidden, made);
  layer.release({made});
  const Index sum = layer.residual_add("layer_input_residual", dims.hidden, x, normed);
  layer.release({normed, x});
  return sum;
}

// Both branches read the block's input; their sum and the input meet at the end.
Index parallel_branches(LayerBuilder& layer, const ModelDims& dims, const ParameterNames& names, FeedForwardKind mlp) {
  const bool one_norm = dims.residual == Residual::kParallelOfOneNorm;
  const Index norm1 = layer.norm(names.norm1, "norm1", dims.norm, dims.hidden, 0);
  const auto second = [&] { return layer.norm(names.norm2, "norm2", dims.norm, dims.hidden, 0); };
  // GPT-NeoX' second norm is an argument of its feed-forward layer, Falcon's is a name before.
  const bool is_argument = dims.naming == Naming::kNeoX;
  Index norm2 = one_norm ? norm1 : is_argument ? 0 : second();
  Index attention = attend_and_project(layer, dims, names, norm1, one_norm ? Input::kStays : Input::kEnds);
  // Falcon's drops of the sum of both.
  const bool drops_sum = dims.naming == Naming::kFalcon;
  const bool drops = dims.dropout && !drops_sum;
  attention = layer.dropout("attention_dropout", drops && !dims.drops_mlp_alone, attention);
  if (!one_norm && is_argument) norm2 = second();
  Index down = mix(layer, dims, names, mlp, norm2);
  down = layer.dropout("mlp_dropout", drops, down);
  Index both = layer.residual_add("branches", dims.hidden, down, attention);
  layer.release({down});
  both = layer.dropout("branches_dropout", dims.dropout && drops_sum, both);
  const Index output = layer.residual_add("residual", dims.hidden, both, 0);
  layer.release({both, attention});
  if (one_norm) layer.release({norm1});
  return output;
}

}

std::int64_t loss_rows(std::int64_t vocabulary) {
  constexpr std::int64_t kElements = std::int64_t{1} << 20;
  return std::max<std::int64_t>(1, kElements / vocabulary);
}

LayerSpec embedding_layer(const ModelDims& dims, Stack stack) {
  const ParameterNames& names = parameter_names(dims);
  // The batch's token ids live through the whole step, so that the lookup need not keep them.
  LayerBuilder layer(dims.family + " embedding", LayerRole::kEmbedding,
      {.name = "token_ids", .per_token = 1, .type = ElementType::kInt64}, stack);
  Index output = layer.activation("token_embedding", token_width(dims));
  layer.look_up(
      names.embedding, {0}, output, layer.parameter(names.embedding, ".weight", {dims.vocabulary, token_width(dims)}));
  layer.last().saved.clear();

  // An encoder's tables are all as narrow, and what they make is projected at the end.
  const std::int64_t width = dims.bidirectional ? token_width(dims) : dims.hidden;
  const auto project = [&] {
    if (dims.embedding_width == 0) return;
    output = layer.linear({.name = names.project_in,
                              .result = "projected_embedding",
                              .n = dims.hidden,
                              .k = dims.embedding_width,
                              .bias = dims.bidirectional},
        output);
  };
  Index positions = 0;
  if (dims.positions == Positions::kLearned)
    positions = layer.parameter(names.positions, ".weight", {dims.position_rows, width});
  if (!dims.bidirectional) project();
  if (dims.token_types > 0) output = add_token_types(layer, dims, names, output);
  if (dims.positions == Positions::kLearned) {
    const Index ids = layer.tensor({.name = "position_ids", .per_position = 1, .type = ElementType::kInt64});
    layer.constant("arange", Function::kArange, {}, ids);
    const Index rows = layer.tensor({.name = "position_embedding", .per_position = width});
    layer.look_up(names.positions, {ids}, rows, positions);
    // The rows' gradient is the sum over the batch, a [S, hidden] temporary that is left out here.
    output = layer.residual_add("embedding_sum", width, output, rows);
  }
  const auto scale = [&] {
    output = layer.elementwise(
        "embedding_scale", Function::kScale, {output}, {}, layer.activation("scaled_embedding", dims.hidden));
  };
  if (dims.positions == Positions::kSinusoidal) {  // (XGLM's table scales what it looks up)
    if (dims.embedding_scale) scale();
    output = add_sinusoids(layer, dims, output);
  } else if (dims.embedding_scale) {
    scale();
  }
  if (dims.embedding_norm) output = layer.norm(names.embedding_norm, "embedding_norm", dims.norm, width, output);
  output = layer.dropout("embedding_dropout", dims.embedding_dropout, output);
  if (dims.bidirectional) project();
  if (dims.parts.distances > 0) output = read_distances(layer, dims, names, output);
  LayerSpec made = layer.finish(output);
  if (dims.positions == Positions::kSinusoidal)
    made.resident_bytes += checked_multiply(checked_multiply(dims.position_rows, dims.hidden), 4);
  if (starts_behind_padding(dims.naming))
    define_last(made, positions);  // transformers 5.17, RobertaEmbeddings.__init__
  return made;
}

namespace {

// Normed by themselves, side by side, and projected (DeepSeek-V3's model.layers.61: hnorm, enorm,
// eh_proj). The embedding of the next token, which the table has, is told as the input once more.
Index with_next_token(LayerBuilder& layer, const ModelDims& dims) {
  const Index hidden = layer.norm("hnorm", "hidden_norm", dims.norm, dims.hidden, 0);
  const Index token = layer.norm("enorm", "token_norm", dims.norm, dims.hidden, 0);
  const Index both = layer.concatenate("hidden_and_token", {hidden, token});
  layer.release({hidden, token});
  const Index projected =
      layer.linear({.name = "eh_proj", .result = "projected", .n = dims.hidden, .k = 2 * dims.hidden}, both);
  layer.release({both});
  return projected;
}

// What a kind of block is called by, behind its family.
std::string kind_of(const BlockKind& kind) {
  if (kind.mixer == MixerKind::kNone)
    return kind.mlp == FeedForwardKind::kExperts ? " expert layer" : " feed-forward layer";
  const std::string mixer = kind.mixer == MixerKind::kMamba         ? " mamba"
                            : kind.mixer == MixerKind::kDelta       ? " linear attention"
                            : kind.mixer == MixerKind::kConvolution ? " convolution"
                                                                    : "";
  if (kind.mlp == FeedForwardKind::kNone) return (mixer.empty() ? " attention" : mixer) + " layer";
  return mixer + (kind.mlp == FeedForwardKind::kExperts ? " expert block" : " block");
}

}

LayerSpec decoder_block(const ModelDims& model, Stack stack, BlockKind kind) {
  if (model.residual == Residual::kPostNorm) return encoder_block(model);
  ModelDims dims = model;
  if (!kind.rotates) {
    dims.positions = Positions::kNone;
    dims.qk_norm = model.qk_norm == HeadNorm::kUnweighted ? HeadNorm::kNone : model.qk_norm;
  }
  if (kind.windowed && dims.parts.windowed_rotary_dim > 0) dims.rotary_dim = dims.parts.windowed_rotary_dim;
  if (!kind.windowed) {
    dims.window = 0;
    if (dims.parts.full_head_dim > 0) dims.head_dim = dims.parts.full_head_dim;
    if (dims.parts.full_kv_heads > 0) dims.kv_heads = dims.parts.full_kv_heads;
  }
  dims.parts.keys_are_values = dims.parts.keys_are_values && !kind.windowed;
  dims.parts.shares_keys = kind.shares_keys;
  if (kind.shares_keys) dims.ffn *= dims.parts.shared_ffn_factor;
  const bool is_delta = kind.mixer == MixerKind::kDelta;
  if (is_delta && dims.delta.pre_norm) dims.residual = Residual::kPreNorm;
  const ParameterNames& names = parameter_names(dims);
  const std::string name = dims.family + (kind.rotates ? "" : " unrotated") +
                           (kind.windowed && !dims.windowed_layers.empty() ? " windowed" : "") +
                           (kind.norms_input ? "" : " first") + (kind.shares_keys ? " sharing" : "") +
                           (kind.predicts ? " prediction" : "") + kind_of(kind);
  LayerBuilder layer(name, LayerRole::kBlock, hidden_state(dims), stack);
  if (dims.residual == Residual::kParallel || dims.residual == Residual::kParallelOfOneNorm)
    return layer.finish(parallel_branches(layer, dims, names, kind.mlp));
  const Index input = kind.predicts ? with_next_token(layer, dims) : Index{0};
  const bool before = dims.residual != Residual::kPostBranch;
  const bool behind = dims.residual == Residual::kSandwich || !before;
  const bool norms = before && kind.norms_input;
  if (kind.mixer == MixerKind::kNone) {
    const Index normed = layer.norm(names.norm1, "norm1", dims.norm, dims.hidden, input);
    const Index branch = scale_branch(layer, dims, "scaled_mlp", mix(layer, dims, names, kind.mlp, normed));
    const Index output = layer.residual_add("mlp_residual", dims.hidden, input, branch);
    layer.release({branch});
    return layer.finish(output);
  }
  const Index norm1 = norms ? layer.norm(names.norm1, "norm1", dims.norm, dims.hidden, input) : input;
  Index branch = kind.mixer == MixerKind::kMamba ? mix_by_scan(layer, dims, names, norm1)
                 : is_delta                      ? mix_by_delta_rule(layer, dims, names, norm1)
                 : kind.mixer == MixerKind::kConvolution
                     ? mix_by_convolution(layer, dims, names, norm1)
                     : attend_and_project(layer, dims, names, norm1, norms ? Input::kEnds : Input::kStays);
  if (behind) branch = layer.norm(names.post_attention_norm, "post_attention_norm", dims.norm, dims.hidden, branch);
  branch = scale_branch(layer, dims, "scaled_attention", branch);
  branch = layer.dropout("attention_dropout", dims.dropout && !dims.drops_mlp_alone, branch);
  const Index middle = layer.residual_add("attention_residual", dims.hidden, input, branch);
  if (kind.mlp == FeedForwardKind::kNone) {
    layer.release({branch});
    return layer.finish(middle);
  }
  const bool beside = dims.parts.experts_beside && kind.mlp == FeedForwardKind::kExperts;
  const Index norm2 = before && !beside ? layer.norm(names.norm2, "norm2", dims.norm, dims.hidden, middle) : middle;
  Index down = beside ? mix_beside(layer, dims, names, middle) : mix(layer, dims, names, kind.mlp, norm2);
  if (behind) down = layer.norm(names.post_mlp_norm, "post_mlp_norm", dims.norm, dims.hidden, down);
  down = scale_branch(layer, dims, "scaled_mlp", down);
  down = layer.dropout("mlp_dropout", dims.dropout && !dims.drops_attention_alone, down);
  Index output = layer.residual_add("mlp_residual", dims.hidden, middle, down);
  layer.release({down, middle});
  if (dims.parts.layer_input > 0) output = add_layer_input(layer, dims, output);
  if (dims.parts.layer_scale) {
    const Index sum = std::exchange(output, layer.activation("scaled_output", dims.hidden));
    layer.elementwise("layer_scale", Function::kScale, {sum}, {}, output);
    layer.release({sum});
  }
  return layer.finish(output);
}

constexpr std::string_view kInputNorm = "model.per_layer_projection_norm";

// Gemma4TextModel.get_per_layer_inputs and project_per_layer_inputs: rows of all layers' table, and
// a projection of the embedding. Blocks read views of the result, which is kept here.
LayerSpec layer_inputs(const ModelDims& dims, Stack stack) {
  LayerBuilder layer(dims.family + " inputs of layers", LayerRole::kInner, hidden_state(dims), stack);
  const ParameterNames& names = parameter_names(dims);
  const std::int64_t each = dims.parts.layer_input, width = each * dims.layers;
  const auto scale = [&](const char* name, Index of) {
    const Index made = layer.elementwise(name, Function::kScale, {of}, {}, layer.activation(name, width));
    layer.release({of});
    return made;
  };
  const Index rows = layer.activation("rows_of_layers", width);
  constexpr std::string_view kTable = "model.embed_tokens_per_layer";
  layer.look_up(kTable, {}, rows, layer.parameter(kTable, ".weight", {dims.parts.layer_input_rows, width}));
  const Index tokens = scale("scaled_rows", rows);
  const Index projected = layer.linear(
      {.name = "model.per_layer_model_projection", .result = "projected_embedding", .n = width, .k = dims.hidden}, 0);
  const Index scaled = scale("scaled_projection", projected);
  // (Accelerate takes this norm, the last among the model's children, for the one in front of the
  // head: each of the two has the other's place.)
  const Index normed = layer.norm(names.final_norm, "projection_norm", dims.norm, each, scaled, dims.layers);
  layer.last_parameter().shape = {dims.hidden};
  layer.release({scaled});
  const Index sum = layer.residual_add("sum_of_inputs", width, normed, tokens);
  layer.release({normed, tokens});
  const Index all = scale("layer_inputs", sum);
  const Index output = layer.activation("embedding", dims.hidden);
  layer.elementwise("with_layer_inputs", Function::kAdd, {0, all}, {all}, output);
  layer.release({all});
  return layer.finish(output);
}

LayerSpec final_norm_layer(const ModelDims& dims, Stack stack) {
  if (dims.bidirectional && dims.residual == Residual::kPostNorm)
    return dims.scores > 0 ? first_token(dims) : masked_head_transform(dims);
  LayerBuilder layer(dims.family + " norm", LayerRole::kFinalNorm, hidden_state(dims), stack);
  const ParameterNames& names = parameter_names(dims);
  Index output = 0;
  if (dims.final_norm) {
    const std::int64_t other = dims.parts.layer_input;
    output = layer.norm(other > 0 ? kInputNorm : names.final_norm, "final_norm", dims.norm, dims.hidden, output);
    if (other > 0) layer.last_parameter().shape = {other};
  }
  if (dims.embedding_width > 0) {
    output = layer.linear(
        {.name = names.project_out, .result = "projected_output", .n = dims.embedding_width, .k = dims.hidden}, output);
  }
  return layer.finish(output);
}

LayerSpec head_layer(const ModelDims& dims, Stack stack) {
  if (dims.scores > 0) return score_head(dims);
  if (dims.bidirectional) return masked_head(dims);
  const ParameterNames& names = parameter_names(dims);
  LayerBuilder layer(dims.family + " head", LayerRole::kHead, {.name = "input", .per_token = token_width(dims)}, stack);
  const Linear head = {
      .name = names.head, .result = "logits", .n = dims.vocabulary, .k = token_width(dims), .bias = dims.head_bias};
  Index input = 0, logits = 0;
  if (dims.output_scale) {
    input = layer.elementwise(
        "output_scale", Function::kScale, {input}, {}, layer.activation("scaled_output", token_width(dims)));
  }
  if (dims.tied) {
    const Index weight = layer.parameter(names.embedding, ".weight", {dims.vocabulary, token_width(dims)});
    layer.last_parameter().tied = true;
    Indices parameters = {weight};
    if (dims.head_bias) parameters.push_back(layer.parameter(names.head, ".bias", {head.n}));
    logits = layer.matrix_product(head, input, std::move(parameters));
  } else {
    logits = layer.linear(head, input);
  }
  if (dims.logit_scale) {
    const Index scaled = layer.elementwise(
        "logit_scale", Function::kScale, {logits}, {}, layer.activation("scaled_logits", dims.vocabulary));
    layer.release({logits});
    logits = scaled;
  }
  if (dims.buffered_bias) {
    const Index biased = layer.activation("biased_logits", dims.vocabulary, ElementType::kFp32);
    layer.elementwise("logit_bias", Function::kAdd, {logits}, {}, biased);
    layer.last().gradient = GradientRule::kAlias;
    layer.release({logits});
    logits = biased;
  }
  if (dims.logit_softcap) {
    // logits / cap, tanh, times cap: three passes, of which tanh keeps its output.
    const auto pass = [&](std::string_view name, Function function, Index input) {
      const Index output = layer.elementwise(name, function, {input}, {}, layer.activation(name, dims.vocabulary));
      layer.release({input});
      return output;
    };
    const Index divided = pass("softcap_divide", Function::kScale, logits);
    const Index capped = pass("softcap_tanh", Function::kTanh, divided);
    layer.last().saved = {capped};
    logits = pass("softcap_multiply", Function::kScale, capped);
  }
  LayerSpec made = layer.finish(logits);
  if (dims.buffered_bias) made.resident_bytes += checked_multiply(dims.vocabulary, 4);
  return made;
}

LayerSpec loss_layer(const ModelDims& dims, Stack stack) {
  const ElementType given = dims.buffered_bias ? ElementType::kFp32 : ElementType::kCompute;
  LayerBuilder layer(
      "cross entropy", LayerRole::kLoss, {.name = "logits", .per_token = dims.vocabulary, .type = given}, stack);
  if (stack == Stack::kNative) return native_loss(layer, dims);
  // BertForMaskedLM and T5ForConditionalGeneration give CrossEntropyLoss the logits as they are.
  const bool as_they_are = (dims.bidirectional && !dims.wide_loss) || dims.encoder_layers > 0;
  const ElementType type = as_they_are ? given : ElementType::kFp32;
  Index wide = 0;
  if (!as_they_are) {
    wide = layer.activation("logits_fp32", dims.vocabulary, ElementType::kFp32);
    layer.elementwise("logits_to_fp32", Function::kCast, {0}, {}, wide);
  }
  const Index probabilities = layer.activation("log_probabilities", dims.vocabulary, type);
  Operation& softmax = layer.operation("log_softmax", OperationKind::kSoftmaxLoss, Function::kLogSoftmax);
  softmax.inputs = {wide};
  softmax.outputs = softmax.saved = {probabilities};

  const Index loss = layer.tensor({.name = "loss", .fixed = 1, .type = ElementType::kFp32});
  const Index weight = layer.tensor({.name = "total_weight", .fixed = 1, .type = ElementType::kFp32});
  Operation& nll = layer.operation("nll_loss", OperationKind::kSoftmaxLoss, Function::kNegativeLogLikelihood);
  nll.inputs = {probabilities};
  nll.outputs = {loss, weight};
  nll.saved = {probabilities, weight};
  nll.released = {wide};
  if (wide != 0) nll.released.push_back(0);
  return layer.finish(loss);
}

}
