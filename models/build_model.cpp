// Checks the sizes, builds each kind of layer once, and lists the layers of the step in order.
#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "models/layers/block_parts.h"
#include "models/layers/layers.h"
#include "models/model_dims.h"
#include "models/parameter_names.h"
#include "sim/base/lookup.h"

namespace foreshard {
namespace {

// Far above any model, far below where products of two sizes leave 64 bits.
constexpr std::int64_t kLargestSize = 1'000'000'000;
constexpr std::int64_t kMostLayers = 100'000;
constexpr std::int64_t kMostExperts = 1'000'000;

[[noreturn]] void fail(const ModelDims& dims, const std::string& what) {
  throw Error(ExitCode::kInvalidInput, "model " + dims.name + ": " + what);
}

void check_size(const ModelDims& dims, std::string_view what, std::int64_t value, std::int64_t largest = kLargestSize) {
  if (value < 1) fail(dims, std::string(what) + " is " + std::to_string(value) + "; expected at least 1");
  if (value > largest)
    fail(dims, std::string(what) + " is " + std::to_string(value) + "; expected at most " + std::to_string(largest));
}

void check_latent(const ModelDims& dims) {
  const Latent& latent = dims.latent;
  if (latent.q_rank != 0) check_size(dims, "the rank of the queries' latent", latent.q_rank);
  check_size(dims, "the rank of the keys' and values' latent", latent.kv_rank);
  check_size(dims, "the plain part of each head of q and k", latent.nope);
  check_size(dims, "the rotated part of each head of q and k", latent.rope);
  check_size(dims, "each head of the values", latent.value);
  const std::int64_t widest = std::max(latent.nope + latent.rope, latent.nope + latent.value);
  check_size(dims, "the width of all heads of the latent attention", checked_multiply(dims.heads, widest));
}

void check_experts(const ModelDims& dims) {
  const Experts& moe = dims.moe;
  check_size(dims, "the number of experts", moe.experts, kMostExperts);
  check_size(dims, "the number of experts per token", moe.top_k);
  check_size(dims, "the width of an expert", moe.ffn);
  if (moe.shared_ffn != 0) check_size(dims, "the width of the shared experts", moe.shared_ffn);
  if (moe.top_k > moe.experts)
    fail(dims, "every token goes to " + std::to_string(moe.top_k) + " of " + std::to_string(moe.experts) + " experts");
  for (const std::int64_t layer : moe.dense_layers)
    if (layer < 0 || layer >= dims.layers)
      fail(dims, "dense layer " + std::to_string(layer) + " is none of the " + std::to_string(dims.layers));
}

constexpr std::string_view kLetters = "M*-Emdca";

// Attention's and the feed-forward layer's sizes count where a layer has them.
bool has_layers(const ModelDims& dims, std::string_view letters) {
  return dims.pattern.empty() || dims.pattern.find_first_of(letters) != std::string::npos;
}

void check_pattern(const ModelDims& dims) {
  const auto wrong = dims.pattern.find_first_not_of(kLetters);
  if (wrong != std::string::npos)
    fail(dims, "a layer of kind '" + dims.pattern.substr(wrong, 1) + "'; expected letters of " + std::string(kLetters));
  if (std::ssize(dims.pattern) != dims.layers)
    fail(dims, "the pattern has " + std::to_string(dims.pattern.size()) + " layers of " + std::to_string(dims.layers));
  if (dims.prediction_pattern.find_first_not_of(dims.pattern) != std::string::npos)
    fail(dims, "a block of prediction has layers that the model has not");
  if (dims.moe.experts == 0 && contains(dims.pattern, 'E')) fail(dims, "layers of experts without a number of experts");
  const auto check_scan = [&](const ScanShape& scan, std::int64_t convolution) {
    check_size(dims, "the number of the mixer's heads", scan.heads);
    check_size(dims, "the dimension of the mixer's heads", scan.head_dim);
    check_size(dims, "the mixer's state", scan.state);
    check_size(dims, "the number of the mixer's groups", scan.groups);
    check_size(dims, "the mixer's chunk", scan.chunk);
    check_size(dims, "the mixer's convolution", convolution);
    check_size(dims, "the width of all heads of the mixer", scan.inner());
    check_size(dims, "the width that the mixer convolves", scan.convolved());
    if (scan.heads % scan.groups != 0)
      fail(dims, std::to_string(scan.groups) + " groups of the mixer do not divide its " + std::to_string(scan.heads) +
                     " heads");
  };
  if (has_layers(dims, "Mm")) check_scan(dims.mamba.scan, dims.mamba.convolution);
  if (has_layers(dims, "c")) check_size(dims, "the mixer's convolution", dims.convolution.positions);
  if (has_layers(dims, "d")) check_scan(dims.delta.scan, dims.delta.convolution);
}

void check(const ModelDims& dims) {
  check_size(dims, "the number of layers", dims.layers, kMostLayers);
  check_size(dims, "the hidden size", dims.hidden);
  if (!dims.pattern.empty()) check_pattern(dims);
  if (has_layers(dims, "*a")) {
    check_size(dims, "the number of heads", dims.heads);
    check_size(dims, "the number of key/value heads", dims.kv_heads);
    check_size(dims, "the head dimension", dims.head_dim);
  }
  if (has_layers(dims, "-mdca")) check_size(dims, "the width of the feed-forward layer", dims.ffn);
  check_size(dims, "the vocabulary", dims.vocabulary);
  check_size(dims, "the number of positions", dims.max_positions);
  if (dims.positions == Positions::kLearned) check_size(dims, "the number of learned positions", dims.position_rows);
  if (dims.embedding_width != 0) check_size(dims, "the embedding's width", dims.embedding_width);
  if (!dims.final_norm && dims.embedding_width == 0 && dims.encoder_layers == 0)
    fail(dims, "nothing stands between the last block and the head; expected a norm or a projection");
  if (has_layers(dims, "*a") && dims.heads % dims.kv_heads != 0) {
    fail(dims,
        std::to_string(dims.kv_heads) + " key/value heads do not divide " + std::to_string(dims.heads) + " heads");
  }
  if (has_layers(dims, "*a"))
    check_size(dims, "the width of all heads (heads x head dimension)", checked_multiply(dims.heads, dims.head_dim));
  if (dims.rotary_dim > dims.head_dim)
    fail(dims, std::to_string(dims.rotary_dim) + " rotated elements of heads of " + std::to_string(dims.head_dim));
  if (dims.encoder_layers != 0) {
    check_size(dims, "the number of the encoder's layers", dims.encoder_layers, kMostLayers);
    if (dims.positions == Positions::kNone)
      check_size(dims, "the number of buckets of positions", dims.position_buckets);
  }
  if (dims.latent.kv_rank != 0) check_latent(dims);
  if (dims.moe.experts != 0) check_experts(dims);
}

// The engine's kernels know no constants beside those of Numerics.
void check_native(const ModelDims& dims) {
  const char* what = !dims.pattern.empty()                   ? "layers of several kinds"
                     : dims.encoder_layers > 0               ? "cross attention"
                     : dims.scores > 0                       ? "a head of scores"
                     : dims.sinks                            ? "attention sinks"
                     : dims.branch_scale                     ? "scaled branches"
                     : dims.logit_scale                      ? "scaled logits"
                     : dims.moe.bias                         ? "experts with biases"
                     : dims.embedding_width > 0              ? "projections of embeddings"
                     : dims.activation == Activation::kRelu2 ? "squared activations"
                     : dims.activation == Activation::kXielu ? "xIELU"
                     : dims.parts != BlockParts{} || dims.activation == Activation::kReGlu2
                         ? "gates and norms inside its branches"
                     : dims.positions == Positions::kSinusoidal                    ? "sinusoidal positions"
                     : !dims.bidirectional && dims.residual == Residual::kPostNorm ? "norms behind the sums"
                     : dims.qk_norm == HeadNorm::kUnweighted || dims.norm == NormKind::kLayerUnweighted ||
                             dims.norm == NormKind::kRmsUnweighted
                         ? "norms without weights"
                         : nullptr;
  if (what == nullptr) return;
  throw Error(ExitCode::kMissingCapability,
      "model " + dims.name + ": the engine has no kernel for " + what + "; nearest plan: runtime: fsdp2");
}

}

bool has_experts(const ModelDims& dims, std::int64_t layer) {
  if (!dims.pattern.empty() && dims.pattern[at(layer)] == 'E') return true;
  const std::vector<std::int64_t>& dense = dims.moe.dense_layers;
  return dims.moe.experts > 0 && !std::ranges::binary_search(dense, layer);
}

namespace {

// Of a letter of ModelDims::pattern.
MixerKind mixer_of(char letter) {
  if (letter == 'M' || letter == 'm') return MixerKind::kMamba;
  if (letter == 'd') return MixerKind::kDelta;
  if (letter == 'c') return MixerKind::kConvolution;
  return letter == '-' || letter == 'E' ? MixerKind::kNone : MixerKind::kAttention;
}

FeedForwardKind feed_forward_of(const ModelDims& dims, std::int64_t layer) {
  const char letter = dims.pattern.empty() ? 'a' : dims.pattern[at(layer)];
  if (letter == 'M' || letter == '*') return FeedForwardKind::kNone;
  if (letter == '-') return FeedForwardKind::kDense;
  return has_experts(dims, layer) ? FeedForwardKind::kExperts : FeedForwardKind::kDense;
}

}

BlockKind block_kind(const ModelDims& dims, std::int64_t layer) {
  const std::vector<std::int64_t>& unrotated = dims.unrotated_layers;
  const std::vector<std::int64_t>& windowed = dims.windowed_layers;
  return {.mlp = feed_forward_of(dims, layer),
      .mixer = dims.pattern.empty() ? MixerKind::kAttention : mixer_of(dims.pattern[at(layer)]),
      .rotates = !std::ranges::binary_search(unrotated, layer),
      .windowed = dims.window > 0 && (windowed.empty() || std::ranges::binary_search(windowed, layer)),
      .norms_input = layer > 0 || !dims.plain_first,
      .shares_keys = layer >= dims.layers - dims.parts.shared_layers};
}

namespace {

// For each token as many rows as it has predictions, of all but what the layer reads.
LayerSpec with_predictions(LayerSpec layer, std::int64_t predictions) {
  const bool is_head = layer.role == LayerRole::kHead;
  for (std::size_t t = is_head ? 1 : 0; t < layer.tensors.size(); ++t)
    layer.tensors[t].per_token = checked_multiply(layer.tensors[t].per_token, predictions);
  for (Operation& op : layer.operations)
    if (op.kind == OperationKind::kGemm) op.rows = predictions;
  return layer;
}

// Appends layers to a model, each kind once.
class Order {
 public:
  explicit Order(ModelSpec& model) : model_(model) {}
  std::int32_t kind(LayerSpec layer) {
    model_.kinds.push_back(std::move(layer));
    return static_cast<std::int32_t>(model_.kinds.size() - 1);
  }
  void add(LayerSpec layer, std::string name) {
    model_.order.push_back({.kind = kind(std::move(layer)), .name = std::move(name)});
  }
  // Blocks, of which the first differs.
  void add_stack(std::int64_t count, const std::string& prefix, auto block) {
    add(block(StackPlace::kFirst), prefix + "0");
    if (count == 1) return;
    const std::int32_t later = kind(block(StackPlace::kLater));
    for (std::int64_t i = 1; i < count; ++i)
      model_.order.push_back({.kind = later, .name = prefix + std::to_string(i)});
  }

 private:
  ModelSpec& model_;
};

void add_decoder(const ModelDims& dims, Stack stack, ModelSpec& model) {
  Order order(model);
  order.add(embedding_layer(dims, stack), "embedding");
  if (dims.parts.layer_input > 0) order.add(layer_inputs(dims, stack), "layer_inputs");
  std::vector<std::pair<BlockKind, std::int32_t>> blocks;
  std::int64_t last_group = -1;
  std::int32_t first_of_group = -1;
  const std::string_view predicts = dims.prediction_pattern;
  const std::int64_t of_prediction = predicts.empty() ? 1 : std::ssize(predicts);
  for (std::int64_t i = 0; i < dims.layers + dims.prediction_layers * of_prediction; ++i) {
    const std::int64_t beyond = i - dims.layers;
    BlockKind kind =
        beyond < 0 || predicts.empty()
            ? block_kind(dims, std::min(i, dims.layers - 1))
            : block_kind(dims, static_cast<std::int64_t>(dims.pattern.find(predicts[at(beyond % of_prediction)])));
    kind.predicts = beyond >= 0 && beyond % of_prediction == 0;
    auto found = std::ranges::find_if(blocks, [&](const auto& block) { return block.first == kind; });
    if (found == blocks.end()) {
      blocks.emplace_back(kind, order.kind(decoder_block(dims, stack, kind)));
      found = blocks.end() - 1;
    }
    // A group's later layers are its first again.
    const std::int64_t group = dims.block_groups > 0 ? i * dims.block_groups / dims.layers : i;
    const bool again = std::exchange(last_group, group) == group;
    const auto first = static_cast<std::int32_t>(model.order.size());
    model.order.push_back(
        {.kind = found->second, .name = "layers." + std::to_string(i), .same_as = again ? first_of_group : -1});
    if (!again) first_of_group = first;
  }
  // A head of tokens' scores reads an encoder's last block, where that ends with a norm.
  const bool of_tokens = dims.scores > 0 && dims.score_of != ScoreOf::kSequence;
  if (dims.bidirectional && of_tokens && dims.residual == Residual::kPostNorm) return;
  order.add(final_norm_layer(dims, stack), "norm");
  if (dims.parts.transforms) order.add(masked_head_transform(dims, LayerRole::kInner), "transform");
  if (dims.bidirectional && dims.residual != Residual::kPostNorm && !of_tokens && !dims.parts.plain_head) {
    order.add(dims.scores > 0 ? first_token(dims, LayerRole::kInner) : masked_head_transform(dims, LayerRole::kInner),
        "transform");
  }
}

void add_encoder_decoder(const ModelDims& dims, ModelSpec& model) {
  Order order(model);
  ModelDims tokens = dims;
  const bool learned = dims.positions != Positions::kNone;
  if (learned) {  // of each stack, behind the table that they share
    tokens.positions = Positions::kNone;
    tokens.embedding_norm = tokens.embedding_dropout = false;
  }
  order.add(embedding_layer(tokens), "embedding");
  if (learned) order.add(stack_positions(dims, "encoder"), "encoder.positions");
  order.add_stack(
      dims.encoder_layers, "encoder.layers.", [&](StackPlace place) { return encoding_block(dims, place); });
  if (dims.final_norm) order.add(encoding_norm(dims), "encoder.norm");
  model.order.push_back({.kind = 0, .name = "decoder.embedding", .same_as = 0});
  if (learned) order.add(stack_positions(dims, "decoder"), "decoder.positions");
  order.add_stack(dims.layers, "layers.", [&](StackPlace place) { return decoding_block(dims, place); });
  if (dims.final_norm) order.add(decoding_norm(dims), "norm");
}

}

ModelSpec build_model(const ModelDims& dims, Stack stack) {
  check(dims);
  if (stack == Stack::kNative) check_native(dims);
  ModelSpec model;
  model.name = dims.name;
  model.family = dims.family;
  model.source = dims.source;
  model.hidden = dims.hidden;
  model.vocabulary = dims.vocabulary;
  model.max_positions = dims.max_positions;
  const bool of_words = dims.scores == 0 || dims.score_of == ScoreOf::kValue;
  model.tied_embeddings = dims.tied && of_words;
  model.head_first = dims.head_first && of_words;
  model.numerics = dims.numerics;
  model.numerics.alibi = dims.positions == Positions::kAlibi;
  model.block_prefix = parameter_names(dims).blocks;

  model.kinds.reserve(8);
  model.order.reserve(at(dims.encoder_layers + dims.layers) + 6);
  if (dims.encoder_layers > 0) add_encoder_decoder(dims, model);
  else add_decoder(dims, stack, model);
  Order order(model);
  ModelDims head = dims;
  if (dims.scores > 0) {
    head.vocabulary = dims.scores;
    head.tied = head.logit_scale = head.logit_softcap = false;
  }
  const std::int64_t predictions = 1 + dims.prediction_layers;
  order.add(with_predictions(head_layer(of_words ? dims : head, stack), predictions), "head");
  LayerSpec loss = with_predictions(loss_layer(head, stack), predictions);
  loss.domain = model.kinds.back().domain;
  order.add(std::move(loss), "loss");

  model.parameters();  // throws where the count overflows
  return model;
}

}
