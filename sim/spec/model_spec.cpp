// Sums over layers and operations. Counts come from files, so every product and sum of integers is
// checked; FLOPs are doubles and cannot overflow.
#include "sim/spec/model_spec.h"

#include <algorithm>

#include "sim/base/error.h"

namespace foreshard {

std::int64_t ParameterSpec::numel() const {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count = checked_multiply(count, size);
  return count;
}

std::int64_t LayerSpec::numel() const {
  std::int64_t count = 0;
  for (const ParameterSpec& parameter : parameters)
    if (!parameter.tied) count = checked_add(count, parameter.count());
  return count;
}

bool LayerSpec::has_trainable() const { return std::ranges::any_of(parameters, &ParameterSpec::trainable); }

namespace {

// Sum over all layers of what `count` says of each kind: a model has few kinds and many layers.
std::int64_t sum_over_layers(const ModelSpec& model, auto count) {
  std::vector<std::int64_t> instances(model.kinds.size(), 0);
  for (const LayerInstance& layer : model.order)
    if (layer.same_as < 0) ++instances[at(layer.kind)];
  std::int64_t sum = 0;
  for (std::size_t kind = 0; kind < model.kinds.size(); ++kind)
    sum = checked_add(sum, checked_multiply(instances[kind], count(model.kinds[kind])));
  return sum;
}

bool is_grouped(const Operation& operation) { return operation.groups > 1; }

// The share of a parameter that a token meets.
std::int64_t active_numel(const LayerSpec& layer, std::size_t parameter) {
  const ParameterSpec& spec = layer.parameters[parameter];
  if (spec.tied) return 0;
  for (const Operation& op : layer.operations) {
    const auto& list = op.parameters;
    const auto here = std::ranges::find(list, static_cast<std::int16_t>(parameter));
    if (is_grouped(op) && here != list.end()) return spec.count() / op.groups * op.rows;
  }
  return spec.count();
}

}

std::int64_t ModelSpec::parameters() const {
  return sum_over_layers(
      *this, [](const LayerSpec& layer) { return layer.numel(); });
}

std::int64_t ModelSpec::trainable_parameters() const {
  return sum_over_layers(
      *this,
      [](const LayerSpec& layer) {
        std::int64_t count = 0;
        for (const ParameterSpec& p : layer.parameters)
          if (p.trainable && !p.tied) count = checked_add(count, p.count());
        return count;
      });
}

std::int64_t ModelSpec::active_parameters() const {
  return sum_over_layers(
      *this,
      [](const LayerSpec& layer) {
        std::int64_t count = 0;
        for (std::size_t p = 0; p < layer.parameters.size(); ++p) count = checked_add(count, active_numel(layer, p));
        return count;
      });
}

std::int64_t ModelSpec::block_count() const {
  return std::ranges::count_if(
      order, [this](const LayerInstance& layer) { return kinds[at(layer.kind)].role == LayerRole::kBlock; });
}

Flops ModelSpec::training_flops_per_sequence(std::int64_t sequence) const {
  std::vector<Flops> of_kind(kinds.size());
  for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
    const Domain& domain = kinds[kind].domain;
    const std::vector<ParameterSpec>& parameters = kinds[kind].parameters;
    for (const Operation& operation : kinds[kind].operations) {
      const auto is_frozen = [&](std::int16_t p) { return !parameters[at(p)].trainable; };
      const bool inputs_only =
          operation.kind == OperationKind::kGemm && std::ranges::all_of(operation.parameters, is_frozen);
      of_kind[kind] +=
          (inputs_only ? 2.0 : 3.0) * forward_flops(operation, domain.sequences(1), domain.length(sequence));
    }
  }
  return sum_of<Flops>(order, [&](const LayerInstance& layer) { return of_kind[at(layer.kind)]; });
}

namespace {

// Of the pairs of positions that attention without a window has, a causal one's half of the square
// or a full one's all of it.
double share_in_window(double positions, double window) {
  if (window <= 0 || window >= positions) return 1;
  const double outside = 1 - window / positions;
  return 1 - outside * outside;
}

}

Flops forward_flops(const Operation& operation, std::int64_t batch, std::int64_t sequence) {
  const double b = as_double(batch);
  const bool is_product = operation.kind == OperationKind::kGemm;
  const double s = as_double(sequence) / (is_product ? 1.0 : as_double(operation.split));
  if (is_product) {
    return Flops(2.0 * b * s * as_double(operation.rows) / as_double(operation.split) * as_double(operation.n) *
                 as_double(operation.k));
  }
  if (operation.kind == OperationKind::kAttention) {
    const AttentionShape& shape = operation.attention;
    if (operation.function == Function::kMatrixProduct)
      return Flops(2.0 * b * as_double(shape.heads) * s * s * as_double(shape.head_dim));
    const double documents = as_double(shape.documents);
    const double pairs = s * as_double(shape.query_ranks) * (s * as_double(shape.key_ranks) / documents);
    const double full = 2.0 * b * as_double(shape.heads) * pairs * as_double(shape.head_dim + shape.values());
    return Flops((shape.causal ? full / 2 : full) * share_in_window(s / documents, as_double(shape.window)));
  }
  if (operation.function == Function::kDeltaRule) {
    // For each position of a head, keys of k, values of v, in chunks of c: k k^T and q k^T (2 c k
    // each), both sides of the inverse (2 c (k + v)), what pairs add (2 c v); the state read by
    // keys and queries and written (2 k v each). (arXiv 2412.06464, section 3.3)
    const ScanShape& rule = operation.scan;
    const double k = as_double(rule.state), v = as_double(rule.head_dim), c = as_double(rule.chunk);
    return Flops(b * s * as_double(rule.heads) * (c * (6 * k + 4 * v) + 6 * k * v));
  }
  if (operation.kind == OperationKind::kScan) {  // Megatron-LM's training.py, mamba_layer_flops
    const ScanShape& scan = operation.scan;
    return Flops(7.0 * b * s * as_double(scan.inner()) * as_double(scan.state));
  }
  return Flops();
}

std::int64_t elements(const TensorSpec& tensor, std::int64_t batch, std::int64_t sequence) {
  const std::int64_t positions = tensor.by_pairs ? checked_multiply(sequence, sequence) : sequence;
  const std::int64_t samples = tensor.by_samples ? checked_multiply(batch, batch) : batch;
  const std::int64_t by_token = checked_multiply(tensor.per_token, checked_multiply(samples, positions));
  const std::int64_t by_position = checked_multiply(tensor.per_position, positions);
  const std::int64_t by_sequence = checked_multiply(tensor.per_sequence, samples);
  const std::int64_t all = checked_add(checked_add(by_token, by_position), checked_add(by_sequence, tensor.fixed));
  return std::max<std::int64_t>(0, all) / tensor.split;  // (of less than a kernel's width: none)
}

ModelSpec with_images(ModelSpec model, std::int64_t images) {
  FORESHARD_CHECK(images >= 1, "with_images needs an image");
  for (LayerSpec& layer : model.kinds) {
    if (layer.domain.of_images) layer.domain.images = images;
    for (TensorSpec& tensor : layer.tensors)
      if (tensor.per_image > 0) tensor.per_sequence = checked_multiply(tensor.per_image, images);
  }
  return model;
}

std::int32_t chain_joined_at(const ModelSpec& model, std::int32_t layer) {
  std::vector<std::int32_t> open;  // embeddings whose chain has not been joined
  for (std::int32_t l = 1; l <= layer; ++l) {
    const auto kind = at(model.order[at(l)].kind);
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
    const LayerSpec& spec = model.kinds[at(layer.kind)];
    if (spec.role != LayerRole::kEmbedding) continue;
    const TensorSpec& tensor = spec.tensors.front();
    const std::int64_t count = elements(tensor, spec.domain.sequences(batch), spec.domain.length(sequence));
    const std::int64_t size = tensor.type == ElementType::kInt64  ? 8
                              : tensor.type == ElementType::kBf16 ? 2
                              : tensor.type == ElementType::kByte ? 1
                                                                  : 4;  // as data loaders make them
    bytes = checked_add(bytes, checked_multiply(count, size));
  }
  return bytes;
}

std::int64_t label_bytes(const ModelSpec& model, std::int64_t batch, std::int64_t sequence) {
  constexpr std::int64_t kInt64 = 8;
  Domain domain;
  if (!model.order.empty()) domain = model.kinds[at(model.order.back().kind)].domain;
  return checked_multiply(checked_multiply(domain.sequences(batch), domain.length(sequence)), kInt64);
}

}
