// Whether a version is modelled and has what is asked of it (capabilities.txt), then what fails once a model is there:
// values that PyTorch takes and fails on, layers that the engine does not execute.
#include "sim/spec/checks/plan_runtime_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "sim/base/lookup.h"
#include "sim/base/spelling.h"
#include "sim/spec/checks/capabilities.h"
#include "sim/spec/fsdp2_version.h"

namespace foreshard {
namespace {

using Problem = std::optional<PlanProblem>;

// "2.3", "1.13" -> 2.4; "2.99", "3.0" -> 2.15; "2.11rc1" -> 2.11.
std::string nearest_fsdp2(const std::string& version) {
  std::int32_t major = 0;
  std::int32_t minor = 0;
  const char* const end = version.data() + version.size();
  const auto [dot, failure] = std::from_chars(version.data(), end, major);
  if (failure == std::errc() && dot != end) std::from_chars(dot + 1, end, minor);
  const bool is_older = failure == std::errc() && major < 2;
  const std::int32_t wanted = is_older ? 0 : (major == 2 ? minor : kNewestFsdp2);
  return fmt::format("fsdp2@2.{}", std::clamp(wanted, kOldestFsdp2, kNewestFsdp2));
}

// fully_shard of 2.11 raises
//   NotImplementedError: FSDP does not support uneven sharding on dim 1
// where a matrix does not divide, and
//   IndexError: list index out of range
// in the copy-out of a gather inside a smaller group.
Problem problem_of_shard_dim(const Plan& plan, const ModelSpec& model) {
  if (plan.units.shard_dim <= 0 && !cuts_another_dimension(model, plan.units.shard_dim, plan.mesh)) return std::nullopt;
  const auto dimension = at(plan.units.shard_dim);
  for (const LayerInstance& layer : model.order) {
    for (const ParameterSpec& parameter : model.kinds[at(layer.kind)].parameters) {
      if (plan.units.shard_dim <= 0 || parameter.tied || parameter.shape.size() <= dimension) continue;
      if (parameter.shape[dimension] % plan.mesh.shard == 0) continue;
      return contradiction("units.shard_dim",
          fmt::format("fully_shard does not shard unevenly on dimension {}: {} of {} is [{}], and mesh.shard is {}",
              dimension, parameter.name, layer.name, fmt::join(parameter.shape, ", "), plan.mesh.shard),
          "0, or a mesh.shard that divides it");
    }
  }
  const auto is_group = [](const Reshard& reshard) { return reshard.kind == Reshard::Kind::kGroup; };
  const auto& reshard = plan.reshard_after_forward;
  const bool has_group =
      is_group(reshard.value) || std::ranges::any_of(reshard.ranges, [&](const auto& r) { return is_group(r.value); });
  if (!has_group) return std::nullopt;
  return contradiction("reshard_after_forward",
      "fully_shard fails on groups of ranks with parameters sharded along dimension 1 (IndexError in the copy-out), as "
      "units.shard_dim 1 and experts fewer than the shards are",
      "always or never");
}

// The engine executes the decoders of models/families.h: one chain of layers on words.
Problem problem_of_native_model(const ModelSpec& model) {
  const auto other = [](const LayerSpec& layer) {
    const bool images = layer.domain != Domain{} || layer.joins >= 0 || layer.tower;
    return images || layer.role == LayerRole::kInner || std::ranges::any_of(layer.operations, [](const Operation& op) {
      return op.kind == OperationKind::kAttention && !op.attention.causal;
    });
  };
  const bool reads_images = model.fixed_sequence > 0 || std::ranges::any_of(model.kinds, other);
  if (!reads_images) return std::nullopt;
  return missing_capability("model",
      fmt::format(
          "the engine runs decoders of words; {} ({}) has layers that it does not execute", model.name, model.family),
      "runtime: fsdp2");
}

// The engine attends to all positions before; up to a window's length that is the same.
Problem problem_of_windows(const Plan& plan, const ModelSpec& model) {
  for (const LayerSpec& layer : model.kinds) {
    for (const Operation& op : layer.operations) {
      const std::int64_t window = op.attention.window;
      if (window == 0 || window >= plan.batch.sequence) continue;
      return missing_capability("batch.sequence",
          fmt::format("the engine attends to all positions before, {} of {} within a window of {}", layer.name,
              model.name, window),
          fmt::format("batch.sequence: {}, or runtime: fsdp2", window));
    }
  }
  return std::nullopt;
}

// What the engine has no kernels for (exec/compute/operations.h): the first such operation.
Problem problem_of_engine_operations(const ModelSpec& model) {
  using enum Function;
  constexpr std::array kMissing = {
      kScale, kSoftmax, kSigmoid, kTanh, kDropout, kTopK, kSort, kGather, kScatterAdd, kDequantize};
  for (const LayerSpec& layer : model.kinds) {
    for (const Operation& op : layer.operations) {
      const AttentionShape& shape = op.attention;
      const bool attends = op.kind == OperationKind::kAttention && (!shape.causal || shape.values() != shape.head_dim);
      const bool missing = contains(kMissing, op.function) || op.view || op.groups > 1 || op.rows > 1;
      if (!missing && !attends) continue;
      return missing_capability("runtime",
          fmt::format("the engine has no {} as {} of {} needs it ({})",
              op.view ? "views of a tensor" : to_string(op.function), layer.name, model.name, op.name),
          "runtime: fsdp2");
    }
  }
  return std::nullopt;
}

}

bool cuts_another_dimension(const ModelSpec& model, std::int64_t wanted, const Mesh& mesh) {
  return std::ranges::any_of(
      model.kinds,
      [&](const LayerSpec& layer) {
        return std::ranges::any_of(
            layer.parameters, [&](const auto& p) { return shard_dim_of(p, wanted, mesh) > 0; });
      });
}

PlanProblem contradiction(std::string key, std::string what_is_wrong, std::string expected, std::string did_you_mean) {
  return {
      ExitCode::kInvalidInput, std::move(key), std::move(what_is_wrong), std::move(expected), std::move(did_you_mean)};
}

PlanProblem missing_capability(std::string key, std::string what_is_wrong, std::string nearest) {
  return {ExitCode::kMissingCapability, std::move(key), std::move(what_is_wrong), "", std::move(nearest)};
}

std::optional<PlanProblem> problem_of_runtime(const Plan& plan) {
  const auto& [kind, version, torch] = plan.runtime;
  const std::string name = fmt::format("{}@{}", to_string(kind), version);
  const bool is_fsdp2 = kind == RuntimeKind::kFsdp2;
  // FullyShardedDataParallel has issued the same since 2.4: recordings with 2.4.1, 2.5.1, 2.6.0,
  // 2.8.0, 2.11.0, 2.12.1, 2.13.0 and 2.15.0 are equal row by row; captures of DDP are, too.
  const bool has_minors = is_fsdp2 || kind == RuntimeKind::kFsdp1 || kind == RuntimeKind::kDdp;
  const std::string newest = newest_version(kind);
  const bool is_local = kind == RuntimeKind::kMegatron && version == kLocalMegatron;
  const bool is_known = is_local || version == newest;
  if (has_minors ? !fsdp2_minor(version) && (is_fsdp2 || version != newest) : !is_known) {
    return missing_capability("runtime",
        fmt::format("version {} of {} is not modelled", quote(version), to_string(kind)),
        is_fsdp2 ? nearest_fsdp2(version) : fmt::format("{}@{}", to_string(kind), newest));
  }
  if (Problem problem = problem_of_runtime_axes(plan)) return problem;
  if (Problem problem = problem_of_capability(plan, Capability::Of::kRuntime, name)) return problem;
  return problem_of_divisions(plan);
}

std::optional<PlanProblem> problem_of_running(const Plan& plan, const ModelSpec& model) {
  if (plan.runtime.kind == RuntimeKind::kNative) {
    if (Problem problem = problem_of_native_model(model)) return problem;
    if (Problem problem = problem_of_windows(plan, model)) return problem;
    return problem_of_engine_operations(model);
  }
  if (plan.runtime.kind != RuntimeKind::kFsdp2) return problem_of_running_library(plan, model);
  return problem_of_shard_dim(plan, model);
}

}
