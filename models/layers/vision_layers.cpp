// The blocks are the decoder's of models/layers/layers.h under other names, without a causal mask.
#include "models/layers/vision_layers.h"

#include <algorithm>
#include <utility>

#include "models/layers/layers.h"
#include "sim/base/error.h"

namespace foreshard {
namespace {

// --- blocks ---

using Renames = std::vector<std::pair<std::string_view, std::string_view>>;

// What decoder_block calls them, and what they are called here.
const Renames& block_names(std::string_view family) {
  static const Renames kVit = {{"self_attn_layer_norm", "layernorm_before"},
      {"self_attn.q_proj", "attention.attention.query"}, {"self_attn.k_proj", "attention.attention.key"},
      {"self_attn.v_proj", "attention.attention.value"}, {"self_attn.out_proj", "attention.output.dense"},
      {"final_layer_norm", "layernorm_after"}, {"fc1", "intermediate.dense"}, {"fc2", "output.dense"}};
  static const Renames kClip = {{"self_attn_layer_norm", "layer_norm1"}, {"final_layer_norm", "layer_norm2"},
      {"fc1", "mlp.fc1"}, {"fc2", "mlp.fc2"}};
  return family == "clip" || family == "llava" ? kClip : kVit;
}

void rename(LayerSpec& layer, const Renames& names) {
  const auto renamed = [&](const std::string& name) {
    for (const auto& [from, to] : names) {
      if (name == from) return std::string(to);
      if (name.starts_with(from) && name[from.size()] == '.') return std::string(to).append(name.substr(from.size()));
    }
    return name;
  };
  for (ParameterSpec& parameter : layer.parameters) parameter.name = renamed(parameter.name);
  for (Operation& op : layer.operations) op.name = renamed(op.name);
}

// x * sigmoid(1.702 x) in place of gelu(x), as PyTorch's elementary operations: the scaled input is
// forgotten at once, the sigmoid's result and the input are kept.
void use_quick_gelu(LayerSpec& layer) {
  const auto at =
      std::ranges::find_if(layer.operations, [](const Operation& op) { return op.function == Function::kGelu; });
  FORESHARD_CHECK(at != layer.operations.end(), "a block without gelu");
  const Index input = at->inputs.front();
  const Index output = at->outputs.front();
  const std::int64_t width = tensor(layer, input).per_token;
  const auto add = [&](const char* name) { return add_tensor(layer, {.name = name, .per_token = width}); };
  const Index scaled = add("scaled");
  const Index sigmoid = add("sigmoid");
  std::vector<Operation> made;
  LayerWriter out(layer, made);
  out.pass("quick_gelu_scale", Function::kScale, {input}, {scaled});
  out.pass("quick_gelu_sigmoid", Function::kGelu, {scaled}, {sigmoid}).saved = {sigmoid};
  out.pass("quick_gelu", Function::kMultiply, {input, sigmoid}, {output}).saved = {input, sigmoid};
  layer.operations.insert(layer.operations.erase(at), made.begin(), made.end());
}

}

LayerSpec encoder_block(const BlockDims& sizes, std::string_view family, Mask mask) {
  ModelDims dims;
  dims.family = sizes.name;
  dims.hidden = sizes.hidden;
  dims.heads = dims.kv_heads = sizes.heads;
  dims.head_dim = sizes.hidden / sizes.heads;
  dims.ffn = sizes.ffn;
  dims.naming = Naming::kOpt;
  dims.norm = NormKind::kLayer;
  dims.activation = sizes.gated ? Activation::kSwiGlu : Activation::kGelu;
  dims.fused_gate_up = sizes.gated;
  dims.parts.branch_weights = dims.drops_attention_alone = sizes.branch_weights;
  dims.positions = Positions::kLearned;
  dims.qkv_bias = dims.output_bias = dims.mlp_bias = true;
  dims.dropout = sizes.dropout;
  dims.attention_dropout = sizes.attention_dropout;
  LayerSpec layer = decoder_block(dims);
  rename(layer, block_names(family));
  if (sizes.quick_gelu) use_quick_gelu(layer);
  for (Operation& op : layer.operations)
    if (op.kind == OperationKind::kAttention) op.attention.causal = mask == Mask::kCausal;
  return layer;
}

Domain domain_of(const Place& place, std::int64_t positions) {
  return {.positions = positions, .of_images = place.of_images};
}

LayerSpec tower_block(const VisionDims& dims, const Place& place) {
  const TowerDims& tower = dims.tower;
  LayerSpec layer =
      encoder_block({place.tower ? "vision" : dims.family, tower.hidden, tower.heads, tower.ffn, tower.quick_gelu,
                        tower.dropout, tower.attention_dropout, tower.branch_weights, tower.gated},
          dims.family, Mask::kNone);
  layer.domain = domain_of(place, tower.positions());
  layer.tower = place.tower;
  return layer;
}

// --- embeddings ---

Index lookup(LayerWriter& layer, const std::string& module, std::vector<std::int64_t> shape, TensorSpec rows) {
  const Index output = layer.tensor(std::move(rows));
  Operation& op = layer.operation(module, OperationKind::kEmbedding, Function::kEmbedding, {}, {output});
  op.gradient = GradientRule::kNone;
  op.parameters = {layer.parameter(module + ".weight", std::move(shape))};
  return output;
}

Index linear(LayerWriter& layer, const std::string& module, std::int64_t n, std::int64_t k, Bias bias, Index input) {
  const Index output = layer.activation(module, n);
  Indices parameters = {layer.parameter(module + ".weight", {n, k})};
  if (bias == Bias::kAdded) parameters.push_back(layer.parameter(module + ".bias", {n}));
  Operation& op = layer.operation(module, OperationKind::kGemm, Function::kMatrixProduct, {input}, {output});
  op.saved = {input};
  op.parameters = std::move(parameters);
  op.n = n;
  op.k = k;
  return output;
}

Index layer_norm(LayerWriter& layer, const std::string& module, TensorSpec result, std::int64_t width, Index input) {
  TensorSpec statistics = result;
  statistics.type = ElementType::kFp32;
  statistics.per_token /= width;
  statistics.per_sequence /= width;
  const Index output = layer.tensor(std::move(result));
  statistics.name = module + "_mean";
  const Index mean = layer.tensor(statistics);
  statistics.name = module + "_rstd";
  const Index rstd = layer.tensor(statistics);
  const Index weight = layer.parameter(module + ".weight", {width});
  const Index bias = layer.parameter(module + ".bias", {width});
  layer.layer().parameters[at(weight)].is_norm = true;
  Operation& op = layer.operation(module, OperationKind::kNorm, Function::kLayerNorm, {input}, {output, mean, rstd});
  op.saved = {input, mean, rstd};
  op.released = {mean, rstd};
  op.parameters = {weight, bias};
  return output;
}

Index add(LayerWriter& layer, TensorSpec sum, Indices inputs) {
  const Index output = layer.tensor(std::move(sum));
  Operation& op = layer.pass(layer.layer().tensors.back().name, Function::kAdd, std::move(inputs), {output});
  op.gradient = GradientRule::kAlias;
  return output;
}

LayerSpec patch_embedding(const VisionDims& dims, const Place& place) {
  const TowerDims& tower = dims.tower;
  const bool vit = dims.labels > 0;
  const std::string prefix = dims.family == "vit_msn" ? "vit" : dims.family;
  const std::int64_t hidden = tower.hidden;
  const std::int64_t pixels = tower.channels * tower.patch * tower.patch;
  LayerWriter layer(place.tower ? "vision embedding" : dims.family + " embedding", LayerRole::kEmbedding,
      {.name = "pixel_values", .per_token = pixels, .type = ElementType::kFp32}, domain_of(place, tower.patches()));
  layer.layer().tower = place.tower;
  const auto cast = layer.tensor({.name = "pixels", .per_token = pixels});
  layer.pass("pixels_to_dtype", Function::kCast, {0}, {cast}).gradient = GradientRule::kNone;

  const std::string conv =
      vit ? prefix + ".embeddings.patch_embeddings.projection" : "vision_model.embeddings.patch_embedding";
  const Index patches = layer.tensor({.name = "patches", .per_token = hidden});
  Operation& product = layer.operation(conv, OperationKind::kGemm, Function::kMatrixProduct, {cast}, {patches});
  product.saved = {cast};
  product.n = hidden;
  product.k = pixels;
  product.parameters = {layer.parameter(conv + ".weight", {hidden, tower.channels, tower.patch, tower.patch})};
  if (vit) product.parameters.push_back(layer.parameter(conv + ".bias", {hidden}));

  // More positions than patches.
  std::int64_t more = tower.tokens * hidden;
  const auto sequence = [&](std::string name) {
    return TensorSpec{.name = std::move(name), .per_token = hidden, .per_sequence = more};
  };
  const auto join = [&](const char* name, Index from, Indices parameters) {
    const Index joined = layer.tensor(sequence(name));
    layer.pass(name, Function::kCopy, {from}, {joined}).parameters = std::move(parameters);
    return joined;
  };
  const std::string embeddings = prefix + ".embeddings.";
  Indices of_tokens;
  if (tower.tokens > 0) {
    of_tokens = {vit ? layer.parameter(embeddings + "cls_token", {1, 1, hidden})
                     : layer.parameter("vision_model.embeddings.class_embedding", {hidden})};
  }
  if (tower.tokens > 1) of_tokens.push_back(layer.parameter(embeddings + "distillation_token", {1, 1, hidden}));
  if (tower.spare_token) {
    of_tokens.push_back(layer.parameter(embeddings + "mask_token", {1, hidden}));
    layer.layer().parameters.back().trainable = false;
  }
  const Index tokens = tower.tokens > 0 ? join("class_token", patches, of_tokens) : patches;
  if (vit) {
    const std::int64_t rows = tower.patches() + tower.tokens;
    Index sum = add(layer, sequence("embedding_sum"), {tokens});
    layer.last().parameters = {layer.parameter(embeddings + "position_embeddings", {1, rows, hidden})};
    if (tower.registers > 0) {
      more += tower.registers * hidden;
      sum = join("registers", sum, {layer.parameter(embeddings + "register_tokens", {1, tower.registers, hidden})});
    }
    if (!tower.dropout) return layer.finish(sum);
    TensorSpec bytes = sequence("embedding_dropout_mask");
    bytes.type = ElementType::kByte;
    const Index mask = layer.tensor(std::move(bytes));
    const Index output = layer.tensor(sequence("embedding_dropout"));
    Operation& drop = layer.pass("embedding_dropout", Function::kDropout, {sum}, {output, mask});
    drop.saved = {mask};
    drop.released = {mask, sum};
    return layer.finish(output);
  }
  const Index rows = lookup(layer, "vision_model.embeddings.position_embedding", {tower.positions(), hidden},
      {.name = "position_embedding", .fixed = tower.positions() * hidden});
  const Index sum = add(layer, sequence("embedding_sum"), {tokens, rows});
  return layer.finish(layer_norm(layer, "vision_model.pre_layrnorm", sequence("pre_norm"), hidden, sum));
}

// The position that classifies or is compared, as a view: its gradient is the others' zeros and its own.
Index class_token(LayerWriter& layer, const TowerDims& tower) {
  const Index token = layer.tensor({.name = "class_token", .per_token = tower.hidden});
  const Index rest = layer.tensor({.name = "other_tokens", .per_token = (tower.positions() - 1) * tower.hidden});
  layer.pass("select", Function::kCopy, {0}, {token, rest}).view = true;
  return token;
}

TensorSpec whole_sequence(const TowerDims& tower) {
  return {.name = "input", .per_token = tower.positions() * tower.hidden};
}

}
