// Sums over layers and operations. Counts come from files, so every product and sum of integers is
// checked; FLOPs are doubles and cannot overflow.
#include "sim/spec/model_spec.h"

#include <algorithm>
#include <array>

#include "sim/base/error.h"

namespace foreshard {

const char* to_string(Function function) {
  static constexpr std::array<const char*, kFunctions> kNames = {"matrix_product",
                                                                 "attention",
                                                                 "rms_norm",
                                                                 "layer_norm",
                                                                 "add",
                                                                 "cast",
                                                                 "rotary",
                                                                 "silu",
                                                                 "multiply",
                                                                 "silu_multiply",
                                                                 "gelu",
                                                                 "relu",
                                                                 "embedding",
                                                                 "arange",
                                                                 "log_softmax",
                                                                 "negative_log_likelihood",
                                                                 "cross_entropy",
                                                                 "column_sum",
                                                                 "copy",
                                                                 "adamw",
                                                                 "sgd",
                                                                 "sum_of_squares",
                                                                 "scale"};
  return kNames[static_cast<std::size_t>(function)];
}

std::int64_t ParameterSpec::numel() const {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count = checked_multiply(count, size);
  return count;
}

std::int64_t LayerSpec::numel() const {
  std::int64_t count = 0;
  for (const ParameterSpec& parameter : parameters) {
    if (!parameter.tied) count = checked_add(count, parameter.numel());
  }
  return count;
}

std::int64_t ModelSpec::parameters() const {
  // Instances per kind first: a model has few kinds and many layers.
  std::vector<std::int64_t> instances(kinds.size(), 0);
  for (const LayerInstance& layer : order) ++instances[static_cast<std::size_t>(layer.kind)];
  std::int64_t count = 0;
  for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
    count = checked_add(count, checked_multiply(instances[kind], kinds[kind].numel()));
  }
  return count;
}

std::int64_t ModelSpec::block_count() const {
  return std::count_if(order.begin(), order.end(), [this](const LayerInstance& layer) {
    return kinds[static_cast<std::size_t>(layer.kind)].role == LayerRole::kBlock;
  });
}

Flops ModelSpec::training_flops_per_sequence(std::int64_t sequence) const {
  std::vector<Flops> forward(kinds.size());
  for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
    const Domain& domain = kinds[kind].domain;
    for (const Operation& operation : kinds[kind].operations) {
      forward[kind] += forward_flops(operation, domain.sequences(1), domain.length(sequence));
    }
  }
  Flops sum;
  for (const LayerInstance& layer : order) sum += forward[static_cast<std::size_t>(layer.kind)];
  return 3.0 * sum;
}

Flops forward_flops(const Operation& operation, std::int64_t batch, std::int64_t sequence) {
  const double b = static_cast<double>(batch);
  const double s = static_cast<double>(sequence);
  if (operation.kind == OperationKind::kGemm) {
    return Flops(2.0 * b * s * static_cast<double>(operation.rows) *
                 static_cast<double>(operation.n) * static_cast<double>(operation.k));
  }
  if (operation.kind == OperationKind::kAttention) {
    const AttentionShape& shape = operation.attention;
    const double full =
        4.0 * b * static_cast<double>(shape.heads) * s * s * static_cast<double>(shape.head_dim);
    return Flops(shape.causal ? full / 2 : full);
  }
  return Flops();
}

std::int64_t elements(const TensorSpec& tensor, std::int64_t batch, std::int64_t sequence) {
  const std::int64_t by_token =
      checked_multiply(tensor.per_token, checked_multiply(batch, sequence));
  const std::int64_t by_position = checked_multiply(tensor.per_position, sequence);
  const std::int64_t by_sequence = checked_multiply(tensor.per_sequence, batch);
  return checked_add(checked_add(by_token, by_position), checked_add(by_sequence, tensor.fixed));
}

ModelSpec with_images(ModelSpec model, std::int64_t images) {
  FORESHARD_CHECK(images >= 1, "with_images needs an image");
  for (LayerSpec& layer : model.kinds) {
    if (layer.domain.of_images) layer.domain.images = images;
    for (TensorSpec& tensor : layer.tensors) {
      if (tensor.per_image > 0) tensor.per_sequence = checked_multiply(tensor.per_image, images);
    }
  }
  return model;
}

std::int32_t chain_joined_at(const ModelSpec& model, std::int32_t layer) {
  std::vector<std::int32_t> open;  // embeddings whose chain has not been joined
  for (std::int32_t l = 1; l <= layer; ++l) {
    const auto kind = static_cast<std::size_t>(model.order[static_cast<std::size_t>(l)].kind);
    const LayerSpec& spec = model.kinds[kind];
    if (spec.role == LayerRole::kEmbedding) open.push_back(l);
    if (spec.joins < 0) continue;
    FORESHARD_CHECK(!open.empty(), "a layer joins what does not wait");
    if (l == layer) return open.back();
    open.pop_back();
  }
  return -1;
}

std::int64_t input_bytes(const ModelSpec& model, std::int64_t batch, std::int64_t sequence) {
  std::int64_t bytes = 0;
  for (const LayerInstance& layer : model.order) {
    const LayerSpec& spec = model.kinds[static_cast<std::size_t>(layer.kind)];
    if (spec.role != LayerRole::kEmbedding) continue;
    const TensorSpec& tensor = spec.tensors.front();
    const std::int64_t count =
        elements(tensor, spec.domain.sequences(batch), spec.domain.length(sequence));
    const std::int64_t size = tensor.type == ElementType::kInt64  ? 8
                              : tensor.type == ElementType::kByte ? 1
                                                                  : 4;  // as data loaders make them
    bytes = checked_add(bytes, checked_multiply(count, size));
  }
  return bytes;
}

std::int64_t label_bytes(const ModelSpec& model, std::int64_t batch, std::int64_t sequence) {
  constexpr std::int64_t kInt64 = 8;
  Domain domain;
  if (!model.order.empty()) {
    domain = model.kinds[static_cast<std::size_t>(model.order.back().kind)].domain;
  }
  return checked_multiply(checked_multiply(domain.sequences(batch), domain.length(sequence)),
                          kInt64);
}

}  // namespace foreshard
