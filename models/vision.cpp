// In the order in which Hugging Face executes them:
//   ViT    patches, blocks, norm, classifier on the class token
//   CLIP   patches, blocks, norm of the class token, projection | words, blocks, norm, projection
//          of each text's last word, and the comparison of both
//   LLaVA  words | patches, blocks, projector, joined with the words, then the decoder
// where a bar stands, the output of what is on its left waits.
#include "models/vision.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "models/layers/layers.h"
#include "models/layers/vision_layers.h"
#include "sim/base/error.h"

namespace foreshard {
namespace {

constexpr std::int64_t kLargestImageSize = 1'000'000;
constexpr std::int64_t kMostImageLayers = 10'000;

[[noreturn]] void fail(const VisionDims& dims, const std::string& what) {
  throw Error(ExitCode::kInvalidInput, "model " + dims.name + ": " + what);
}

void check_size(
    const VisionDims& dims, std::string_view what, std::int64_t value, std::int64_t largest = kLargestImageSize) {
  if (value >= 1 && value <= largest) return;
  fail(dims, std::string(what) + " is " + std::to_string(value) + "; expected 1 to " + std::to_string(largest));
}

void check_heads(const VisionDims& dims, std::int64_t hidden, std::int64_t heads) {
  if (hidden % heads == 0) return;
  fail(dims, std::to_string(heads) + " heads do not divide the hidden size " + std::to_string(hidden));
}

void check_tower(const VisionDims& dims) {
  const TowerDims& tower = dims.tower;
  check_size(dims, "the image size", tower.image, 65'536);
  check_size(dims, "the patch size", tower.patch, tower.image);
  check_size(dims, "the number of channels", tower.channels, 65'536);
  check_size(dims, "the number of the tower's layers", tower.layers, kMostImageLayers);
  check_size(dims, "the tower's hidden size", tower.hidden);
  check_size(dims, "the number of the tower's heads", tower.heads);
  check_size(dims, "the width of the tower's feed-forward layer", tower.ffn);
  check_heads(dims, tower.hidden, tower.heads);
}

void check_clip_text(const VisionDims& dims) {
  const ModelDims& text = dims.text;
  check_size(dims, "the number of the text's layers", text.layers, kMostImageLayers);
  check_size(dims, "the text's hidden size", text.hidden);
  check_size(dims, "the number of the text's heads", text.heads);
  check_size(dims, "the width of the text's feed-forward layer", text.ffn);
  check_size(dims, "the vocabulary", text.vocabulary, 1'000'000'000);
  check_size(dims, "the number of positions", text.max_positions);
  check_size(dims, "the projection", dims.projection);
  check_heads(dims, text.hidden, text.heads);
}

// --- the three models ---

class Model {
 public:
  explicit Model(const VisionDims& dims) {
    model_.name = dims.name;
    model_.family = dims.family;
    model_.source = dims.source;
    model_.numerics.gelu_tanh = false;
  }
  std::int32_t kind(LayerSpec layer) {
    model_.kinds.push_back(std::move(layer));
    return static_cast<std::int32_t>(model_.kinds.size() - 1);
  }
  void layer(std::string name, LayerSpec spec) {
    const std::int32_t number = kind(std::move(spec));
    model_.order.push_back({.kind = number, .name = std::move(name)});
  }
  void layers(const std::string& prefix, std::int64_t count, LayerSpec spec) {
    const std::int32_t number = kind(std::move(spec));
    for (std::int64_t i = 0; i < count; ++i)
      model_.order.push_back({.kind = number, .name = prefix + std::to_string(i)});
  }
  ModelSpec& spec() { return model_; }
  ModelSpec finish() {
    model_.parameters();  // throws where the count overflows
    return with_images(std::move(model_), 1);
  }

 private:
  ModelSpec model_;
};

// What the classifier reads of all tokens. A mean's gradient is written out for each of them.
Index classified(LayerWriter& head, const VisionDims& dims) {
  const TowerDims& tower = dims.tower;
  using enum VisionDims::Reads;
  const auto mean = [&](Index of, std::int64_t tokens) {
    const Index made = head.tensor({.name = "mean", .per_token = tower.hidden});
    head.pass("mean", Function::kScale, {of}, {made}).backward_workspace = {
        head.tensor({.name = "mean.grad of each", .per_token = tokens * tower.hidden})};
    return made;
  };
  if (dims.reads == kMean) return mean(0, tower.positions());
  const Index token = class_token(head, tower);
  if (dims.reads == kToken) return token;
  const Index patches = mean(head.last().outputs.back(), tower.patches());
  const Index both = head.tensor({.name = "token_and_mean", .per_token = 2 * tower.hidden});
  head.pass("token_and_mean", Function::kCopy, {token, patches}, {both}).gradient = GradientRule::kAlias;
  return both;
}

ModelSpec build_vit(const VisionDims& dims) {
  check_size(dims, "the number of labels", dims.labels, 1'000'000'000);
  const TowerDims& tower = dims.tower;
  const std::int64_t hidden = tower.hidden;
  Model model(dims);
  model.layer("embedding", patch_embedding(dims, {}));
  model.layers("layers.", tower.layers, tower_block(dims, {}));

  const std::string prefix = dims.family == "vit_msn" ? "vit" : dims.family;
  LayerWriter norm(dims.family + " norm", LayerRole::kFinalNorm, {.name = "input", .per_token = hidden},
      {.positions = tower.positions()});
  const TensorSpec normed{.name = "final_norm", .per_token = hidden};
  model.layer("norm", norm.finish(layer_norm(norm, prefix + ".layernorm", normed, hidden, 0)));

  LayerWriter head(dims.family + " head", LayerRole::kHead, whole_sequence(tower), {.positions = 1});
  const Index read = classified(head, dims);
  const std::int64_t width = dims.reads == VisionDims::Reads::kBoth ? 2 * hidden : hidden;
  model.layer("head", head.finish(linear(head, "classifier", dims.labels, width, Bias::kAdded, read)));

  ModelDims labels;
  labels.vocabulary = dims.labels;
  LayerSpec loss = loss_layer(labels);
  loss.domain = {.positions = 1};
  model.layer("loss", std::move(loss));

  ModelSpec& spec = model.spec();
  spec.block_prefix = prefix + ".encoder.layer";
  spec.hidden = hidden;
  spec.vocabulary = dims.labels;
  spec.max_positions = spec.fixed_sequence = tower.positions();
  spec.numerics.norm_epsilon = 1e-12;
  return model.finish();
}

// x / |x|: pow, sum and pow again, then the division.
Index normalized(LayerWriter& layer, const std::string& name, std::int64_t width, Index input) {
  const Index output = layer.tensor({.name = name, .per_token = width});
  const Index squares = layer.tensor({.name = name + "_squares", .per_token = width});
  const Index length = layer.tensor({.name = name + "_length", .per_token = 1});
  Operation& op = layer.pass(name, Function::kMultiply, {input}, {output, squares, length});
  op.saved = {input, length};
  op.released = {squares, length};
  return output;
}

// Normalised features of both towers, compared row by row.
LayerSpec comparison(const VisionDims& dims) {
  const std::int64_t width = dims.projection;
  LayerWriter layer("clip head", LayerRole::kHead, {.name = "pooled", .per_token = dims.text.hidden}, {.positions = 1});
  const Index words = linear(layer, "text_projection", width, dims.text.hidden, Bias::kNone, 0);
  const Index images = layer.tensor({.name = "image_features", .per_token = width});
  layer.layer().joins = images;
  const Index image = normalized(layer, "image_embeds", width, images);
  const Index text = normalized(layer, "text_embeds", width, words);
  const Index scores = layer.tensor({.name = "similarity", .per_token = 1});
  Operation& op = layer.pass("similarity", Function::kMultiply, {text, image}, {scores});
  op.saved = {text, image};
  op.parameters = {layer.parameter("logit_scale", {1})};  // fully_shard wants a dimension
  return layer.finish(scores);
}

LayerSpec contrastive_loss() {
  LayerWriter layer("contrastive loss", LayerRole::kLoss, {.name = "similarity", .per_token = 1}, {.positions = 1});
  const Index wide = layer.tensor({.name = "similarity_fp32", .per_token = 1, .type = ElementType::kFp32});
  layer.pass("to_fp32", Function::kCast, {0}, {wide});
  const Index loss = layer.tensor({.name = "loss", .fixed = 1, .type = ElementType::kFp32});
  Operation& op =
      layer.operation("cross_entropy", OperationKind::kSoftmaxLoss, Function::kCrossEntropy, {wide}, {loss});
  op.saved = {wide};
  op.released = {wide, 0};
  return layer.finish(loss);
}

LayerSpec clip_words(const ModelDims& text) {
  LayerWriter layer(
      "clip embedding", LayerRole::kEmbedding, {.name = "token_ids", .per_token = 1, .type = ElementType::kInt64});
  const Index tokens = lookup(layer, "text_model.embeddings.token_embedding", {text.vocabulary, text.hidden},
      {.name = "token_embedding", .per_token = text.hidden});
  layer.last().inputs = {0};
  const Index rows = lookup(layer, "text_model.embeddings.position_embedding", {text.max_positions, text.hidden},
      {.name = "position_embedding", .per_position = text.hidden});
  return layer.finish(add(layer, {.name = "embedding_sum", .per_token = text.hidden}, {tokens, rows}));
}

ModelSpec build_clip(const VisionDims& dims) {
  check_clip_text(dims);
  constexpr Place kPlace = {.tower = true};
  const TowerDims& tower = dims.tower;
  const ModelDims& text = dims.text;
  Model model(dims);
  model.layer("vision.embedding", patch_embedding(dims, kPlace));
  model.layers("vision.layers.", tower.layers, tower_block(dims, kPlace));
  LayerWriter norm("vision norm", LayerRole::kInner, whole_sequence(tower), {.positions = 1});
  norm.layer().tower = true;
  const TensorSpec pooled{.name = "pooled", .per_token = tower.hidden};
  model.layer("vision.norm",
      norm.finish(layer_norm(norm, "vision_model.post_layernorm", pooled, tower.hidden, class_token(norm, tower))));
  LayerWriter projection(
      "vision projection", LayerRole::kInner, {.name = "pooled", .per_token = tower.hidden}, {.positions = 1});
  model.layer("vision.projection",
      projection.finish(linear(projection, "visual_projection", dims.projection, tower.hidden, Bias::kNone, 0)));

  model.layer("embedding", clip_words(text));
  model.layers("layers.", text.layers,
      encoder_block({"text", text.hidden, text.heads, text.ffn, tower.quick_gelu}, "clip", Mask::kCausal));
  LayerWriter last("text norm", LayerRole::kFinalNorm, {.name = "input", .per_token = text.hidden});
  const TensorSpec normed{.name = "final_norm", .per_token = text.hidden};
  const Index all = layer_norm(last, "text_model.final_layer_norm", normed, text.hidden, 0);
  const Index pool = last.tensor({.name = "pooled", .per_sequence = text.hidden});
  last.pass("pool", Function::kCopy, {all}, {pool});
  model.layer("norm", last.finish(pool));
  model.layer("head", comparison(dims));
  model.layer("loss", contrastive_loss());

  ModelSpec& spec = model.spec();
  spec.block_prefix = "text_model.encoder.layers";
  spec.hidden = text.hidden;
  spec.vocabulary = text.vocabulary;
  spec.max_positions = text.max_positions;
  return model.finish();
}

// The tower's last block and the norm behind it: what is read is the block's input but for the
// class token. (The norm's two vectors count to the block's unit here.)
LayerSpec unread_block(const VisionDims& dims, const Place& place) {
  const TowerDims& tower = dims.tower;
  LayerSpec block = tower_block(dims, place);
  block.name = "vision last block";
  block.unread = true;
  const Index result = block.output;
  LayerWriter out(block);
  const std::string module = "vision_model.post_layernorm";
  const Index pooled = out.tensor({.name = "pooled", .per_sequence = tower.hidden});
  Operation& norm = out.operation(module, OperationKind::kNorm, Function::kLayerNorm, {result}, {pooled});
  for (const char* name : {".weight", ".bias"}) norm.parameters.push_back(out.parameter(module + name, {tower.hidden}));
  block.parameters[block.parameters.size() - 2].is_norm = true;
  const Index features = out.tensor({.name = "features", .per_sequence = tower.patches() * tower.hidden});
  out.pass("select", Function::kCopy, {0}, {features});
  return out.finish(features);
}

LayerSpec projector(const VisionDims& dims) {
  const std::int64_t hidden = dims.text.hidden;
  LayerWriter layer("projector", LayerRole::kInner, {.name = "features", .per_token = dims.tower.hidden},
      domain_of({.of_images = true}, dims.tower.patches()));
  const std::string module = "multi_modal_projector.linear_";
  const Index up = linear(layer, module + "1", hidden, dims.tower.hidden, Bias::kAdded, 0);
  const Index gelu = layer.tensor({.name = "gelu", .per_token = hidden});
  layer.pass("gelu", Function::kGelu, {up}, {gelu}).saved = {up};
  return layer.finish(linear(layer, module + "2", hidden, hidden, Bias::kAdded, gelu));
}

// masked_scatter: features take the places of the image tokens. Its mask is kept for the gradients;
// the kernel makes it contiguous and numbers its places (at::cuda::launch_masked_scatter_kernel).
LayerSpec merge(const VisionDims& dims) {
  const std::int64_t hidden = dims.text.hidden;
  LayerWriter layer("merge", LayerRole::kInner, {.name = "image_features", .per_image = dims.tower.patches() * hidden});
  const Index words = layer.tensor({.name = "words", .per_token = hidden});
  layer.layer().joins = words;
  const Index mask = layer.tensor({.name = "image_mask", .per_token = 1, .type = ElementType::kByte});
  layer.pass("image_mask", Function::kCopy, {}, {mask}).gradient = GradientRule::kNone;
  const Index merged = layer.tensor({.name = "merged", .per_token = hidden});
  const Index whole = layer.tensor({.name = "mask", .per_token = hidden, .type = ElementType::kByte});
  const Index places = layer.tensor({.name = "places", .per_token = hidden, .type = ElementType::kInt64});
  Operation& op = layer.pass("masked_scatter", Function::kCopy, {words, 0}, {merged});
  op.saved = {mask};
  op.released = {mask};
  op.forward_workspace = {places, whole};
  return layer.finish(merged);
}

ModelSpec build_llava(const VisionDims& dims) {
  constexpr Place kPlace = {.of_images = true, .tower = true};
  const TowerDims& tower = dims.tower;
  ModelDims text = dims.text;
  text.name = dims.name;
  const ModelSpec decoder = build_model(text);  // checks the sizes
  Model model(dims);
  std::vector<std::int32_t> kinds;  // of the decoder, in this model
  for (const LayerSpec& kind : decoder.kinds) kinds.push_back(model.kind(kind));
  const auto take = [&](const LayerInstance& layer) {
    model.spec().order.push_back({.kind = kinds[at(layer.kind)], .name = layer.name});
  };
  take(decoder.order.front());
  model.layer("vision.embedding", patch_embedding(dims, kPlace));
  if (tower.layers > 1) model.layers("vision.layers.", tower.layers - 1, tower_block(dims, kPlace));
  model.layer("vision.layers." + std::to_string(tower.layers - 1), unread_block(dims, kPlace));
  model.layer("projector", projector(dims));
  model.layer("merge", merge(dims));
  std::for_each(decoder.order.begin() + 1, decoder.order.end(), take);

  ModelSpec& spec = model.spec();
  spec.block_prefix = decoder.block_prefix;
  spec.hidden = decoder.hidden;
  spec.vocabulary = decoder.vocabulary;
  spec.max_positions = decoder.max_positions;
  spec.tied_embeddings = decoder.tied_embeddings;
  spec.numerics = decoder.numerics;
  spec.image_tokens = tower.patches();
  return model.finish();
}

}

ModelSpec build_vision_model(const VisionDims& dims, Stack stack) {
  if (stack == Stack::kNative) {
    throw Error(ExitCode::kMissingCapability,
        "model " + dims.name + ": the engine runs decoders of words; nearest plan: runtime: fsdp2");
  }
  check_tower(dims);
  if (dims.labels > 0) return build_vit(dims);
  if (dims.family == "clip") return build_clip(dims);
  if (dims.family == "llava") return build_llava(dims);
  fail(dims, "the family is \"" + dims.family + "\"; expected a classifier's, clip or llava");
}

}
