// The keys of a model as YAML that are a member each, once for what reads them, what writes them
// and which keys may be there (sim/base/fields.h). A member that is as usual is not written.
#pragma once

#include <string>

#include "models/yaml/model_yaml_layer.h"
#include "sim/base/fields.h"

namespace foreshard {

void fields(auto& io, Domain& d) {
  io.optional(d.positions > 0, "positions", d.positions, 0, model_limits::kDomain);
  io.optional(d.of_images, "of_images", d.of_images);
}

// `key`: the name where no other is said.
void tensor_fields(auto& io, TensorSpec& t, const std::string& key) {
  using namespace model_limits;
  const auto below = [](bool is_less) { return is_less ? -kElements : 0; };
  io.optional(t.per_token != 0, "per_token", t.per_token, 0, kPerToken);
  io.optional(t.per_position != 0, "per_position", t.per_position, 0, kPerToken);
  io.optional(t.by_pairs, "by_pairs", t.by_pairs);
  io.optional(
      t.per_image == 0 && t.per_sequence != 0, "per_sequence", t.per_sequence, below(t.per_token > 0), kElements);
  io.optional(t.by_samples, "by_samples", t.by_samples);
  io.optional(t.per_image != 0, "per_image", t.per_image, 0, kPerToken);
  io.optional(t.fixed != 0, "fixed", t.fixed, below(t.per_token > 0 || t.per_position > 0), kElements);
  io.optional(t.split != 1, "split", t.split, 1, 1 << 24);
  io.optional(t.type != ElementType::kCompute, "type", t.type, kTypeWords);
  io.optional(t.name != key, "name", t.name);
}

// `part`: the module's name.
void parameter_fields(auto& io, ParameterSpec& p, std::string& part, const std::string& key) {
  io("shape", p.shape, Such{"a list of extents, for example [4096, 4096]"}, 1, model_limits::kExtent);
  io.optional(p.is_norm, "norm", p.is_norm);
  io.optional(p.tied, "tied", p.tied);
  io.optional(!p.trainable, "trainable", p.trainable);
  io.optional(p.unused, "unused", p.unused);
  io.optional(p.stored_as_computed, "stored_as_computed", p.stored_as_computed);
  io.optional(p.unpacked > 0, "unpacked", p.unpacked, 0, model_limits::kParameter);
  io.optional(!part.empty(), "part", part);
  io.optional(p.name != key, "name", p.name);
}

inline constexpr std::int64_t kMostHeads = 1 << 20;  // or features of one

template <typename Io>
void fields(Io& io, AttentionShape& s) {
  io("heads", s.heads, Such{"a number of heads, for example 32"}, 1, kMostHeads);
  if constexpr (Io::kReads) s.kv_heads = s.heads;
  io.optional(true, "kv_heads", s.kv_heads, 1, kMostHeads);
  io("head_dim", s.head_dim, Such{"features of a head, for example 128"}, 1, kMostHeads);
  io.optional(!s.causal, "causal", s.causal);
  io.optional(s.value_dim > 0, "value_dim", s.value_dim, 0, kMostHeads);
  io.optional(s.documents != 1, "documents", s.documents, 1, kMostHeads);
  io.optional(s.dropout, "dropout", s.dropout);
  io.optional(s.softcap, "softcap", s.softcap);
  io.optional(s.broadcasts, "broadcasts", s.broadcasts);
  io.optional(s.window > 0, "window", s.window, 0, std::int64_t{1} << 40);
  io.require(s.kv_heads > 0 && s.heads % s.kv_heads == 0, "kv_heads",
      fmt::format("{} key/value heads do not divide {} heads", s.kv_heads, s.heads),
      fmt::format("a divisor of {}", s.heads));
}

void fields(auto& io, ScanShape& s) {
  io("heads", s.heads, Such{"a number of heads, for example 128"}, 1, kMostHeads);
  io("head_dim", s.head_dim, Such{"features of a head, for example 64"}, 1, kMostHeads);
  io("state", s.state, Such{"features of a state, for example 128"}, 1, kMostHeads);
  io.optional(true, "groups", s.groups, 1, kMostHeads);
  io.optional(true, "chunk", s.chunk, 1, kMostHeads);
  io.require(s.heads % s.groups == 0, "groups", fmt::format("{} groups do not divide {} heads", s.groups, s.heads),
      fmt::format("a divisor of {}", s.heads));
}

// What with_defaults() gives an operation is `usual`.
void operation_fields(auto& io, Operation& op, const Operation& usual) {
  io.optional(op.n != usual.n, "n", op.n, 1, model_limits::kWidth);
  io.optional(op.k != usual.k, "k", op.k, 1, model_limits::kWidth);
  io.optional(op.rows != 1, "rows", op.rows, 1, 1 << 24);
  io.optional(op.split != 1, "split", op.split, 1, 1 << 24);
  io.optional(op.groups != 1, "groups", op.groups, 1, 1 << 16);
  io.optional(op.attention != AttentionShape{}, "attention", op.attention);
  io.optional(op.scan.heads > 0, "scan", op.scan);
  io.optional(op.gradient != usual.gradient, "gradient", op.gradient, kGradientWords);
  io.optional(op.one_by_one, "one_by_one", op.one_by_one);
  io.optional(op.packed, "packed", op.packed);
  io.optional(op.host_reads, "host_reads", op.host_reads);
  io.optional(op.view, "view", op.view);
  io.optional(op.sums_last, "sums_last", op.sums_last);
  io.optional(op.in_place, "in_place", op.in_place);
  io.optional(op.transposed_weight, "transposed_weight", op.transposed_weight);
  io.optional(op.kept_by_selective != usual.kept_by_selective, "kept_by_selective", op.kept_by_selective);
  // Statistics of a norm, or the first input, of all ranks that have samples of their own.
  bool is_synchronized = op.gathers.dim == MeshDim::kBatch, is_reduced = op.collective.dim == MeshDim::kBatch;
  io.optional(is_synchronized, "synchronized", is_synchronized);
  io.optional(is_reduced, "all_reduce", is_reduced);
  io.require(!is_synchronized || (op.kind == OperationKind::kNorm && op.n > 0), "synchronized",
      "the operation has no statistics of columns", "a norm with n");
  io.require(!is_reduced || !op.inputs.empty(), "all_reduce", "the operation reads nothing", "an input");
  const auto over = [](CollectiveKind kind) {
    return LayerCollective{.kind = kind, .dim = MeshDim::kBatch, .waits = true};
  };
  if (is_synchronized) {
    op.gathers = over(CollectiveKind::kAllGather);
    op.reduces = over(CollectiveKind::kAllReduce);
  }
  if (is_reduced) op.collective = over(CollectiveKind::kAllReduce);
}

}
