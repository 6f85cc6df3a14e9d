// An axis lists the base's value first. Which knobs a runtime has is the plan check's to say:
// places whose plans it refuses are none; a knob that another runtime would ignore is left out
// here.
#include "sim/search/knobs.h"

#include <algorithm>

#include "sim/base/lookup.h"
#include "sim/spec/checks/plan_check.h"

namespace foreshard {
namespace {

// DDP's buckets are 25 MiB; Megatron-Core and NVIDIA's recipes go up to the hundreds. Elements of
// DeepSpeed's buckets: its own defaults, and a tenth and ten times as many for the prefetch of
// ZeRO-3 (0.9 x hidden^2 is what Hugging Face's "auto" makes of it, which lies between).
const double kLargeBucketMb = 100;
const std::vector<std::int64_t> kBucketSizes = {500'000'000, 200'000'000};
const std::vector<std::int64_t> kPrefetchSizes = {50'000'000, 500'000'000};

template <typename T, typename Set>
KnobAxis axis_of(std::string key, T own, std::vector<T> values, Set set) {
  std::erase(values, own);
  values.insert(values.begin(), own);
  KnobAxis axis{std::move(key), {}, {}};
  for (const T value : values) {
    axis.values.push_back([set, value](Plan& plan) { set(plan, value); });
  }
  return axis;
}

// Whether the key says anything under the runtime.
bool is_read(std::string_view key, RuntimeKind kind) {
  if (key == "zero.stage3_prefetch_bucket_size") return kind == RuntimeKind::kZero3;
  if (key == "zero.allgather_bucket_size") return is_zero(kind) && kind != RuntimeKind::kZero3;
  if (key.starts_with("zero.")) return is_zero(kind);
  if (key.starts_with("ddp.")) return kind == RuntimeKind::kDdp;
  return kind == RuntimeKind::kFsdp2 || kind == RuntimeKind::kNative;
}

// Parameters that Units::kExpertsDim may cut along another dimension.
std::vector<ParameterSpec> stacks_of_experts(const ModelSpec& model) {
  std::vector<ParameterSpec> stacks;
  for (const LayerSpec& layer : model.kinds) {
    for (const ParameterSpec& parameter : layer.parameters) {
      const bool is_new =
          std::ranges::none_of(stacks, [&](const auto& known) { return known.shape == parameter.shape; });
      if (parameter.shape.size() == 3 && is_new) stacks.push_back(parameter);
    }
  }
  return stacks;
}

}

std::vector<std::string> free_knob_keys() {
  return {"units.shard_dim",         "buffers.reduce_scatter",     "ddp.bucket_cap_mb",
          "zero.reduce_bucket_size", "zero.allgather_bucket_size", "zero.stage3_prefetch_bucket_size"};
}

std::vector<std::string> knob_keys() {
  return {"mesh.inner", "units.layers_per_unit",  "communicators", "optimizer.implementation",
          "offload",    "accumulation.all_reduce"};
}

std::vector<std::string> requested_knob_keys() { return {"dtype.reduce", "accumulation.mode", "placement"}; }

std::optional<KnobAxis> knob_axis(std::string_view key, const Plan& base) {
  const auto accumulates = [](const Plan& p) { return p.batch.accumulation > 1; };
  if (key == "mesh.inner") {
    KnobAxis axis = axis_of(std::string(key), base.mesh.inner, {MeshInner::kShard, MeshInner::kReplicate},
                            [](Plan& p, MeshInner v) { p.mesh.inner = v; });
    axis.matters = [](const Plan& p) { return p.mesh.shard > 1 && p.mesh.replicate > 1; };
    return axis;
  }
  if (key == "placement") {
    return axis_of(std::string(key), base.placement,
                   {RankPlacement::kListed, RankPlacement::kByLeaf, RankPlacement::kByPod, RankPlacement::kByRail},
                   [](Plan& p, RankPlacement v) { p.placement = v; });
  }
  if (key == "units.layers_per_unit") {
    return axis_of<std::int64_t>(std::string(key), base.units.layers_per_unit, {1, 2, 4},
                                 [](Plan& p, std::int64_t v) { p.units.layers_per_unit = v; });
  }
  if (key == "units.shard_dim") {
    return axis_of<std::int64_t>(std::string(key), base.units.shard_dim, {0, Units::kExpertsDim},
                                 [](Plan& p, std::int64_t v) { p.units.shard_dim = v; });
  }
  if (key == "ddp.bucket_cap_mb") {
    return axis_of<std::optional<double>>(std::string(key), base.ddp.bucket_cap_mb, {std::nullopt, kLargeBucketMb},
                                          [](Plan& p, auto v) { p.ddp.bucket_cap_mb = v; });
  }
  if (key == "zero.reduce_bucket_size") {
    return axis_of(std::string(key), base.zero.reduce_bucket_size, kBucketSizes,
                   [](Plan& p, std::int64_t v) { p.zero.reduce_bucket_size = v; });
  }
  if (key == "zero.allgather_bucket_size") {
    return axis_of(std::string(key), base.zero.allgather_bucket_size, kBucketSizes,
                   [](Plan& p, std::int64_t v) { p.zero.allgather_bucket_size = v; });
  }
  if (key == "zero.stage3_prefetch_bucket_size") {
    return axis_of(std::string(key), base.zero.stage3_prefetch_bucket_size, kPrefetchSizes,
                   [](Plan& p, std::int64_t v) { p.zero.stage3_prefetch_bucket_size = v; });
  }
  if (key == "buffers.reduce_scatter") {
    return axis_of<std::int64_t>(std::string(key), base.reduce_scatter_buffers, {1, 2},
                                 [](Plan& p, std::int64_t v) { p.reduce_scatter_buffers = v; });
  }
  if (key == "communicators") {
    return axis_of(std::string(key), base.communicators, {Communicators::kShared, Communicators::kSeparate},
                   [](Plan& p, Communicators v) { p.communicators = v; });
  }
  if (key == "optimizer.implementation") {
    using Implementation = Optimizer::Implementation;
    return axis_of(std::string(key), base.optimizer.implementation, {Implementation::kForeach, Implementation::kFused},
                   [](Plan& p, Implementation v) { p.optimizer.implementation = v; });
  }
  if (key == "offload") {
    return axis_of(std::string(key), base.offload, {Offload::kNone, Offload::kCpu},
                   [](Plan& p, Offload v) { p.offload = v; });
  }
  if (key == "accumulation.all_reduce") {
    KnobAxis axis = axis_of(std::string(key), base.accumulation_details.all_reduce, {When::kEach, When::kLast},
                            [](Plan& p, When v) { p.accumulation_details.all_reduce = v; });
    axis.matters = [=](const Plan& p) { return accumulates(p) && p.mesh.replicate > 1; };
    return axis;
  }
  if (key == "dtype.reduce") {
    return axis_of(std::string(key), base.reduce_dtype, {DType::kFp32, DType::kBf16},
                   [](Plan& p, DType v) { p.reduce_dtype = v; });
  }
  if (key == "accumulation.mode") {
    KnobAxis axis =
        axis_of(std::string(key), base.accumulation, {AccumulationMode::kReduceEach, AccumulationMode::kKeepUnsharded},
                [](Plan& p, AccumulationMode v) { p.accumulation = v; });
    axis.matters = accumulates;
    return axis;
  }
  return std::nullopt;
}

SearchSpace with_free_knobs(SearchSpace space, const ModelSpec& model, const std::vector<std::string>& fixed) {
  const auto is_fixed = [&](std::string_view key) { return contains(fixed, key); };
  for (const std::string& key : free_knob_keys()) {
    if (is_fixed(key) || !is_read(key, space.base.runtime.kind)) continue;
    KnobAxis axis = *knob_axis(key, space.base);
    if (key != "units.shard_dim") {
      space.finish.push_back(std::move(axis));
      continue;
    }
    std::vector<ParameterSpec> stacks = stacks_of_experts(model);
    if (stacks.empty() || space.base.units.shard_dim != 0) continue;
    axis.matters = [stacks = std::move(stacks)](const Plan& p) {
      return std::ranges::any_of(stacks, [&](const ParameterSpec& parameter) {
        return shard_dim_of(parameter, Units::kExpertsDim, p.mesh) > 0;
      });
    };
    space.knobs.push_back(std::move(axis));
  }
  const bool has_cache = space.base.host == HostKind::kFeedsDevice;
  if (!is_fixed("allocator") && has_cache && !space.base.allocator.expandable_segments) {
    AllocatorSettings expandable = space.base.allocator;
    expandable.expandable_segments = true;
    space.allocators = {space.base.allocator, expandable};
  }
  return space;
}

}
