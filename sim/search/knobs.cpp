// An axis lists the base's value first. Which knobs a runtime has is the plan check's to say: places whose plans it
// refuses are none; a knob that another runtime would ignore is left out here.
#include "sim/search/knobs.h"

#include <algorithm>

#include "sim/base/lookup.h"
#include "sim/spec/checks/plan_check.h"

namespace foreshard {
namespace {

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
  return {"units.shard_dim", "buffers.reduce_scatter", "ddp.bucket_cap_mb", "zero.reduce_bucket_size",
      "zero.allgather_bucket_size", "zero.stage3_prefetch_bucket_size"};
}

std::vector<std::string> knob_keys() {
  return {"mesh.inner", "units.layers_per_unit", "communicators", "optimizer.implementation", "offload",
      "accumulation.all_reduce"};
}

std::vector<std::string> requested_knob_keys() { return {"dtype.reduce", "accumulation.mode", "placement"}; }

std::optional<KnobAxis> knob_axis(std::string_view key, const Plan& base) {
  using Implementation = Optimizer::Implementation;
  KnobAxis axis{std::string(key), {}, {}};
  const auto vary = [&](std::string_view name, auto of, auto... others) {
    if (key != name) return;
    const auto own = of(base);
    std::vector<std::remove_const_t<decltype(own)>> values = {own};
    for (const decltype(own) other : {decltype(own)(others)...})
      if (other != own) values.push_back(other);
    for (const auto value : values) axis.values.push_back([of, value](Plan& plan) { of(plan) = value; });
  };
  vary(
      "mesh.inner", [](auto& p) -> auto& { return p.mesh.inner; }, MeshInner::kShard, MeshInner::kReplicate);
  vary(
      "placement", [](auto& p) -> auto& { return p.placement; }, RankPlacement::kListed, RankPlacement::kByLeaf,
      RankPlacement::kByPod, RankPlacement::kByRail);
  vary(
      "units.layers_per_unit", [](auto& p) -> auto& { return p.units.layers_per_unit; }, 1, 2, 4);
  vary(
      "units.shard_dim", [](auto& p) -> auto& { return p.units.shard_dim; }, 0, Units::kExpertsDim);
  // DDP's buckets are 25 MiB; Megatron-Core and NVIDIA's recipes go up to the hundreds. Elements of
  // DeepSpeed's buckets: its own defaults, and a tenth and ten times as many for the prefetch of
  // ZeRO-3 (0.9 x hidden^2 is what Hugging Face's "auto" makes of it, which lies between).
  vary(
      "ddp.bucket_cap_mb", [](auto& p) -> auto& { return p.ddp.bucket_cap_mb; }, std::nullopt, 100.0);
  vary(
      "zero.reduce_bucket_size", [](auto& p) -> auto& { return p.zero.reduce_bucket_size; }, 500'000'000, 200'000'000);
  vary(
      "zero.allgather_bucket_size", [](auto& p) -> auto& { return p.zero.allgather_bucket_size; }, 500'000'000,
      200'000'000);
  vary(
      "zero.stage3_prefetch_bucket_size", [](auto& p) -> auto& { return p.zero.stage3_prefetch_bucket_size; },
      50'000'000, 500'000'000);
  vary(
      "buffers.reduce_scatter", [](auto& p) -> auto& { return p.reduce_scatter_buffers; }, 1, 2);
  vary(
      "communicators", [](auto& p) -> auto& { return p.communicators; }, Communicators::kShared,
      Communicators::kSeparate);
  vary(
      "optimizer.implementation", [](auto& p) -> auto& { return p.optimizer.implementation; }, Implementation::kForeach,
      Implementation::kFused);
  vary(
      "offload", [](auto& p) -> auto& { return p.offload; }, Offload::kNone, Offload::kCpu);
  vary(
      "accumulation.all_reduce", [](auto& p) -> auto& { return p.accumulation_details.all_reduce; }, When::kEach,
      When::kLast);
  vary(
      "dtype.reduce", [](auto& p) -> auto& { return p.reduce_dtype; }, DType::kFp32, DType::kBf16);
  vary(
      "accumulation.mode", [](auto& p) -> auto& { return p.accumulation; }, AccumulationMode::kReduceEach,
      AccumulationMode::kKeepUnsharded);
  if (axis.values.empty()) return std::nullopt;
  const bool of_replicas = key == "mesh.inner" || key == "accumulation.all_reduce";
  if (of_replicas || key == "accumulation.mode") {
    axis.matters = [of_replicas, of_mesh = key == "mesh.inner"](const Plan& p) {
      return (of_mesh ? p.mesh.shard > 1 : p.batch.accumulation > 1) && (!of_replicas || p.mesh.replicate > 1);
    };
  }
  return axis;
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
      return std::ranges::any_of(stacks,
          [&](const ParameterSpec& parameter) { return shard_dim_of(parameter, Units::kExpertsDim, p.mesh) > 0; });
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
