// Checks the sizes, builds each kind of layer once, and lists the layers of the step in order.
#include <string>
#include <string_view>
#include <utility>

#include "models/layers.h"
#include "models/model_dims.h"
#include "models/parameter_names.h"

namespace foreshard {
namespace {

// Far above any model, far below where products of two sizes leave 64 bits.
constexpr std::int64_t kLargestSize = 1'000'000'000;
constexpr std::int64_t kMostLayers = 100'000;

[[noreturn]] void fail(const ModelDims& dims, const std::string& what) {
  throw Error(ExitCode::kInvalidInput, "model " + dims.name + ": " + what);
}

void check_size(const ModelDims& dims, std::string_view what, std::int64_t value,
                std::int64_t largest = kLargestSize) {
  if (value < 1) {
    fail(dims, std::string(what) + " is " + std::to_string(value) + "; expected at least 1");
  }
  if (value > largest) {
    fail(dims, std::string(what) + " is " + std::to_string(value) + "; expected at most " +
                   std::to_string(largest));
  }
}

void check(const ModelDims& dims) {
  check_size(dims, "the number of layers", dims.layers, kMostLayers);
  check_size(dims, "the hidden size", dims.hidden);
  check_size(dims, "the number of heads", dims.heads);
  check_size(dims, "the number of key/value heads", dims.kv_heads);
  check_size(dims, "the head dimension", dims.head_dim);
  check_size(dims, "the width of the feed-forward layer", dims.ffn);
  check_size(dims, "the vocabulary", dims.vocabulary);
  check_size(dims, "the number of positions", dims.max_positions);
  if (dims.positions == Positions::kLearned) {
    check_size(dims, "the number of learned positions", dims.position_rows);
  }
  if (dims.heads % dims.kv_heads != 0) {
    fail(dims, std::to_string(dims.kv_heads) + " key/value heads do not divide " +
                   std::to_string(dims.heads) + " heads");
  }
  check_size(dims, "the width of all heads (heads x head dimension)",
             checked_multiply(dims.heads, dims.head_dim));
}

}  // namespace

ModelSpec build_model(const ModelDims& dims, Stack stack) {
  check(dims);
  ModelSpec model;
  model.name = dims.name;
  model.family = dims.family;
  model.source = dims.source;
  model.hidden = dims.hidden;
  model.vocabulary = dims.vocabulary;
  model.max_positions = dims.max_positions;
  model.tied_embeddings = dims.tied;
  model.numerics = dims.numerics;
  model.numerics.alibi = dims.positions == Positions::kAlibi;
  model.block_prefix = parameter_names(dims.naming).blocks;

  model.kinds.reserve(5);
  model.order.reserve(static_cast<std::size_t>(dims.layers) + 4);
  const auto add_kind = [&model](LayerSpec layer) {
    model.kinds.push_back(std::move(layer));
    return static_cast<std::int32_t>(model.kinds.size() - 1);
  };
  model.order.push_back({.kind = add_kind(embedding_layer(dims, stack)), .name = "embedding"});
  const std::int32_t block = add_kind(decoder_block(dims, stack));
  for (std::int64_t i = 0; i < dims.layers; ++i) {
    model.order.push_back({.kind = block, .name = "layers." + std::to_string(i)});
  }
  model.order.push_back({.kind = add_kind(final_norm_layer(dims, stack)), .name = "norm"});
  model.order.push_back({.kind = add_kind(head_layer(dims, stack)), .name = "head"});
  model.order.push_back({.kind = add_kind(loss_layer(dims, stack)), .name = "loss"});

  model.parameters();  // throws where the count overflows
  return model;
}

}  // namespace foreshard
