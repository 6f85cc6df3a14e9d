// A knob that is asked for and not there is missing capability; the list of knobs of a runtime is
// in the order of the plan's keys. Values that PyTorch takes and then fails on contradict each
// other.
//
// Sources: what recordings of twelve versions of PyTorch refused and how (tests/recordings,
// sim/spec/fsdp2_version.cpp); an empty list of modules to prefetch means the default prefetch.
#include "sim/spec/checks/plan_runtime_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <span>
#include <utility>

#include "sim/base/spelling.h"
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

Problem problem_of_fsdp2(const Plan& plan, const Fsdp2Version& has) {
  const Units& units = plan.units;
  const bool lists = has.module_lists;
  const Knob knobs[] = {
      {!lists && units.layers_per_unit > 1 && units.blocks == UnitPlacement::kOwn,
       "units.layers_per_unit",
       "makes a unit of one module, not of a list; lists came with PyTorch 2.5",
       "units.layers_per_unit: 1"},
      {!lists && units.embedding == UnitPlacement::kWithHead, "units.embedding",
       "makes a unit of one module, not of a list; lists came with PyTorch 2.5",
       "units.embedding: root and units.head: root"},
      {!lists && units.head == UnitPlacement::kWithNorm, "units.head",
       "makes a unit of one module, not of a list; lists came with PyTorch 2.5", "units.head: own"},
      {!has.later_knobs && units.shard_dim != 0, "units.shard_dim",
       "shards dimension 0; shard_placement_fn came with PyTorch 2.6", "units.shard_dim: 0"},
      {!has.later_knobs && !unshards_everywhere(plan), "unshard_in_backward",
       "gathers every unit in backward; set_unshard_in_backward came with PyTorch 2.6",
       "unshard_in_backward: true"},
      {plan.prefetch.forward == 0, "prefetch.forward",
       "cannot switch forward prefetch off: the host runs ahead, and an empty list of modules "
       "means "
       "the default",
       "prefetch.forward: implicit"},
      {!lists && plan.prefetch.forward > 0, "prefetch.forward",
       "has no lists of modules to prefetch; set_modules_to_forward_prefetch came with PyTorch 2.5",
       "prefetch.forward: implicit"},
      {plan.prefetch.backward == 0, "prefetch.backward",
       "cannot switch backward prefetch off: an empty list of modules means the default",
       "prefetch.backward: 1"},
      {!lists && plan.prefetch.backward > 1, "prefetch.backward",
       "has no lists of modules to prefetch; set_modules_to_backward_prefetch came with PyTorch "
       "2.5",
       "prefetch.backward: 1"},
      {!lists && plan.prefetch.backward_lists, "prefetch.backward_lists",
       "has no lists of modules to prefetch; set_modules_to_backward_prefetch came with PyTorch "
       "2.5",
       "prefetch.backward_lists: false"},
      {!has.later_knobs && plan.prefetch.async_unshard, "prefetch.async_unshard",
       "copies in on a stream of its own; _set_unshard_async_op came with PyTorch 2.6",
       "prefetch.async_unshard: false"},
      {!has.ignored_parameters && plan.ignored != Ignored::kNone, "ignored",
       "shards every parameter; ignored_params came with PyTorch 2.7", "ignored: none"},
      {!has.communication_knobs && plan.reduce_scatter_buffers > 1, "buffers.reduce_scatter",
       "keeps one reduce-scatter input; more came with PyTorch 2.13 "
       "(set_reduce_scatter_max_input_buffers)",
       "buffers.reduce_scatter: 1"},
      {!has.communication_knobs && plan.communicators == Communicators::kSeparate, "communicators",
       "reduces on the communicator that gathers; a separate one came with PyTorch 2.13 "
       "(set_separate_reduce_scatter_group)",
       "communicators: shared"},
      {!has.reduction_knobs && plan.gradient_divide_factor.has_value(), "reduction.divide_factor",
       "divides by the number of ranks; set_gradient_divide_factor came with PyTorch 2.8",
       "reduction.divide_factor: none"},
      {!has.reduction_knobs && plan.force_sum_reduction, "reduction.force_sum",
       "averages where it can; set_force_sum_reduction_for_comms came with PyTorch 2.8",
       "reduction.force_sum: false"},
      {plan.reduction_order != ReductionOrder::kLibrary, "reduction_order",
       "sums as its communication library does; micro-batch order is the engine's",
       "reduction_order: library"},
      // Not PyTorch's limit: nested units are those of a block that is one.
      {units.experts == UnitPlacement::kOwn && units.blocks == UnitPlacement::kRoot,
       "units.experts", "is modelled with units inside of blocks that are units",
       "units.experts: block"},
  };
  return first_missing(knobs, "fsdp2@" + plan.runtime.version);
}

Problem problem_of_native(const Plan& plan) {
  static constexpr const char* kUnits =
      "makes units of the embedding, of blocks and of the head, with the norm or without";
  const Units& units = plan.units;
  const AccumulationDetails details;
  const Knob knobs[] = {
      {units.embedding == UnitPlacement::kWithHead, "units.embedding", kUnits,
       "units.embedding: root and units.head: root"},
      {units.blocks != UnitPlacement::kOwn, "units.blocks", kUnits, "units.blocks: own"},
      {units.experts == UnitPlacement::kOwn, "units.experts", kUnits, "units.experts: block"},
      {units.shard_dim != 0, "units.shard_dim", "shards one flat buffer per unit",
       "units.shard_dim: 0"},
      {!unshards_everywhere(plan), "unshard_in_backward", "gathers what backward reads",
       "unshard_in_backward: true"},
      {plan.prefetch.backward_lists, "prefetch.backward_lists", "prefetches by number of units",
       "prefetch.backward_lists: false"},
      {plan.prefetch.async_unshard, "prefetch.async_unshard", "gathers in place, without a copy",
       "prefetch.async_unshard: false"},
      {plan.recompute_wraps != CheckpointWraps::kModule, "recompute_wraps",
       "recomputes inside of units", "recompute_wraps: module"},
      {plan.output_dtype.has_value(), "dtype.output", "leaves the outputs as they are",
       "dtype.output: none"},
      {plan.accumulation_details.all_reduce != details.all_reduce, "accumulation.all_reduce",
       "reduces over shards and replicas together", "accumulation.all_reduce: each"},
      {plan.accumulation_details.reshard_after_backward != details.reshard_after_backward,
       "accumulation.reshard_after_backward", "reshards as reshard_after_forward says",
       "accumulation.reshard_after_backward: each"},
      {plan.accumulation_details.is_last_backward != details.is_last_backward,
       "accumulation.is_last_backward", "ends every backward alike",
       "accumulation.is_last_backward: each"},
      {plan.lora.rank > 0, "lora.rank", "trains every parameter", "lora.rank: 0"},
      {plan.batch.documents > 1, "batch.documents", "attends within whole sequences",
       "batch.documents: 1"},
      {plan.frozen.any(), "frozen", "trains every parameter", "frozen: none"},
      {plan.ignored != Ignored::kNone, "ignored", "shards every parameter", "ignored: none"},
      {plan.offload != Offload::kNone && plan.host == HostKind::kComputes, "offload",
       "keeps shards where it computes: CPU ranks have one memory", "offload: none"},
      {plan.offload == Offload::kCpuUnpinned, "offload", "pins what it keeps on the host",
       "offload: cpu"},
      {plan.gradient_divide_factor.has_value(), "reduction.divide_factor",
       "divides by the number of ranks", "reduction.divide_factor: none"},
      {plan.force_sum_reduction, "reduction.force_sum", "sums in an order of its own",
       "reduction.force_sum: false"},
      {plan.evaluation.in_step, "evaluation.in_step", "evaluates between steps",
       "evaluation.in_step: false"},
      {plan.allocator != AllocatorSettings{}, "allocator", "lays its buffers out once",
       "allocator: default"},
      {plan.rank != 0, "rank", "shards evenly: every rank is as rank 0", "rank: 0"},
  };
  return first_missing(knobs, "native@" + plan.runtime.version);
}

// fully_shard of 2.11 raises
//   NotImplementedError: FSDP does not support uneven sharding on dim 1
// where a matrix does not divide, and
//   IndexError: list index out of range
// in the copy-out of a gather inside a smaller group.
Problem problem_of_shard_dim(const Plan& plan, const ModelSpec& model) {
  if (plan.units.shard_dim <= 0 &&
      !cuts_another_dimension(model, plan.units.shard_dim, plan.mesh.shard)) {
    return std::nullopt;
  }
  const auto dimension = static_cast<std::size_t>(plan.units.shard_dim);
  for (const LayerInstance& layer : model.order) {
    for (const ParameterSpec& parameter :
         model.kinds[static_cast<std::size_t>(layer.kind)].parameters) {
      if (plan.units.shard_dim <= 0 || parameter.tied || parameter.shape.size() <= dimension)
        continue;
      if (parameter.shape[dimension] % plan.mesh.shard == 0) continue;
      return contradiction(
          "units.shard_dim",
          fmt::format("fully_shard does not shard unevenly on dimension {}: {} of {} is [{}], and "
                      "mesh.shard is {}",
                      dimension, parameter.name, layer.name, fmt::join(parameter.shape, ", "),
                      plan.mesh.shard),
          "0, or a mesh.shard that divides it");
    }
  }
  const auto is_group = [](const Reshard& reshard) {
    return reshard.kind == Reshard::Kind::kGroup;
  };
  const auto& reshard = plan.reshard_after_forward;
  const bool has_group =
      is_group(reshard.value) || std::any_of(reshard.ranges.begin(), reshard.ranges.end(),
                                             [&](const auto& r) { return is_group(r.value); });
  if (!has_group) return std::nullopt;
  return contradiction("reshard_after_forward",
                       "fully_shard fails on groups of ranks with parameters sharded along "
                       "dimension 1 (IndexError in the copy-out), as units.shard_dim 1 and experts "
                       "fewer than the shards are",
                       "always or never");
}

Problem problem_of_inner(const Plan& plan) {
  if (plan.mesh.inner == MeshInner::kShard || plan.runtime.kind == RuntimeKind::kFsdp2) {
    return std::nullopt;
  }
  return missing_capability("mesh.inner",
                            fmt::format("{}@{} shards among consecutive ranks; fully_shard takes "
                                        "any mesh of ranks",
                                        to_string(plan.runtime.kind), plan.runtime.version),
                            "mesh.inner: shard");
}

// The engine executes the decoders of models/families.h: one chain of layers on words.
Problem problem_of_native_model(const ModelSpec& model) {
  const auto other = [](const LayerSpec& layer) {
    const bool images = layer.domain != Domain{} || layer.joins >= 0 || layer.tower;
    return images || layer.role == LayerRole::kInner ||
           std::any_of(layer.operations.begin(), layer.operations.end(), [](const Operation& op) {
             return op.kind == OperationKind::kAttention && !op.attention.causal;
           });
  };
  const bool reads_images =
      model.fixed_sequence > 0 || std::any_of(model.kinds.begin(), model.kinds.end(), other);
  if (!reads_images) return std::nullopt;
  return missing_capability("model",
                            fmt::format("the engine runs decoders of words; {} ({}) has layers "
                                        "that it does not execute",
                                        model.name, model.family),
                            "runtime: fsdp2");
}

// The engine attends to all positions before; up to a window's length that is the same.
Problem problem_of_windows(const Plan& plan, const ModelSpec& model) {
  for (const LayerSpec& layer : model.kinds) {
    for (const Operation& op : layer.operations) {
      const std::int64_t window = op.attention.window;
      if (window == 0 || window >= plan.batch.sequence) continue;
      return missing_capability(
          "batch.sequence",
          fmt::format("the engine attends to all positions before, {} of {} within a window of {}",
                      layer.name, model.name, window),
          fmt::format("batch.sequence: {}, or runtime: fsdp2", window));
    }
  }
  return std::nullopt;
}

// What the engine has no kernels for (exec/compute/operations.h): the first such operation.
Problem problem_of_engine_operations(const ModelSpec& model) {
  using enum Function;
  constexpr std::array kMissing = {kScale, kSoftmax, kSigmoid, kTanh,       kDropout,
                                   kTopK,  kSort,    kGather,  kScatterAdd, kDequantize};
  for (const LayerSpec& layer : model.kinds) {
    for (const Operation& op : layer.operations) {
      const AttentionShape& shape = op.attention;
      const bool attends = op.kind == OperationKind::kAttention &&
                           (!shape.causal || shape.values() != shape.head_dim);
      const bool missing =
          std::find(kMissing.begin(), kMissing.end(), op.function) != kMissing.end() || op.view ||
          op.groups > 1 || op.rows > 1;
      if (!missing && !attends) continue;
      return missing_capability("runtime",
                                fmt::format("the engine has no {} as {} of {} needs it ({})",
                                            op.view ? "views of a tensor" : to_string(op.function),
                                            layer.name, model.name, op.name),
                                "runtime: fsdp2");
    }
  }
  return std::nullopt;
}

}  // namespace

Problem first_missing(std::span<const Knob> knobs, const std::string& runtime) {
  for (const Knob& knob : knobs) {
    if (!knob.is_asked) continue;
    return missing_capability(knob.key, fmt::format("{} {}", runtime, knob.what_is_wrong),
                              knob.nearest);
  }
  return std::nullopt;
}

bool reshards_to_groups(const Plan& plan) {
  const auto is_group = [](const Reshard& reshard) {
    return reshard.kind == Reshard::Kind::kGroup;
  };
  const RangedPolicy<Reshard>& policy = plan.reshard_after_forward;
  return is_group(policy.value) || std::any_of(policy.ranges.begin(), policy.ranges.end(),
                                               [&](const auto& r) { return is_group(r.value); });
}

bool unshards_everywhere(const Plan& plan) {
  const RangedPolicy<bool>& policy = plan.unshard_in_backward;
  return policy.value && std::all_of(policy.ranges.begin(), policy.ranges.end(),
                                     [](const auto& range) { return range.value; });
}

bool cuts_another_dimension(const ModelSpec& model, std::int64_t wanted, std::int64_t shards) {
  return std::any_of(model.kinds.begin(), model.kinds.end(), [&](const LayerSpec& layer) {
    return std::any_of(layer.parameters.begin(), layer.parameters.end(),
                       [&](const auto& p) { return shard_dim_of(p, wanted, shards) > 0; });
  });
}

PlanProblem contradiction(std::string key, std::string what_is_wrong, std::string expected,
                          std::string did_you_mean) {
  return {ExitCode::kInvalidInput, std::move(key), std::move(what_is_wrong), std::move(expected),
          std::move(did_you_mean)};
}

PlanProblem missing_capability(std::string key, std::string what_is_wrong, std::string nearest) {
  return {ExitCode::kMissingCapability, std::move(key), std::move(what_is_wrong), "",
          std::move(nearest)};
}

std::optional<PlanProblem> problem_of_runtime(const Plan& plan) {
  const std::string& version = plan.runtime.version;
  const auto unknown = [&](const std::string& nearest) {
    return missing_capability("runtime",
                              fmt::format("version {} of {} is not modelled", quote(version),
                                          to_string(plan.runtime.kind)),
                              nearest);
  };
  if (Problem problem = problem_of_inner(plan)) return problem;
  if (plan.runtime.kind == RuntimeKind::kNative) {
    if (version != newest_version(RuntimeKind::kNative)) return unknown("native@1");
    return problem_of_native(plan);
  }
  if (plan.runtime.kind != RuntimeKind::kFsdp2) {
    const char* newest = newest_version(plan.runtime.kind);
    // FullyShardedDataParallel has issued the same since 2.4: recordings with 2.4.1, 2.5.1, 2.6.0,
    // 2.8.0, 2.11.0, 2.12.1, 2.13.0 and 2.15.0 are equal row by row.
    const bool is_same_fsdp1 =
        plan.runtime.kind == RuntimeKind::kFsdp1 && fsdp2_minor(version).has_value();
    if (version != newest && !is_same_fsdp1) {
      return unknown(fmt::format("{}@{}", to_string(plan.runtime.kind), newest));
    }
    return problem_of_library(plan);
  }
  const std::optional<std::int32_t> minor = fsdp2_minor(version);
  if (!minor) return unknown(nearest_fsdp2(version));
  return problem_of_fsdp2(plan, fsdp2_version(*minor));
}

std::optional<PlanProblem> problem_of_running(const Plan& plan, const ModelSpec& model) {
  if (plan.runtime.kind == RuntimeKind::kNative) {
    if (Problem problem = problem_of_native_model(model)) return problem;
    if (Problem problem = problem_of_windows(plan, model)) return problem;
    return problem_of_engine_operations(model);
  }
  if (plan.runtime.kind != RuntimeKind::kFsdp2) return problem_of_running_library(plan, model);
  if (Problem problem = problem_of_shard_dim(plan, model)) return problem;
  // clip_grad_norm_ scales all gradients in one call, which plain and distributed tensors cannot
  // share: "aten.mul_.Tensor got mixed torch.Tensor and DTensor".
  if (plan.ignored != Ignored::kNone && plan.optimizer.clip_norm) {
    return contradiction("optimizer.clip_norm",
                         "clip_grad_norm_ fails on ignored parameters beside sharded ones (mixed "
                         "torch.Tensor and DTensor)",
                         "none, or ignored: none");
  }
  return std::nullopt;
}

}  // namespace foreshard
