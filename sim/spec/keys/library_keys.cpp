// The keys that only one family of runtimes has, under the library's own names.
#include "sim/base/parse.h"
#include "sim/spec/keys/key_rows.h"

namespace foreshard {
namespace {

using BackwardPrefetch = Fsdp1Options::BackwardPrefetch;
using MixedPrecision = DdpOptions::MixedPrecision;

// Whose the keys of a group are that stand here.
constexpr RuntimeSet runtimes_of_group(std::string_view path) {
  if (path.starts_with("ddp.")) return runtimes_of(RuntimeKind::kDdp);
  if (path.starts_with("megatron.")) return runtimes_of(RuntimeKind::kMegatron);
  if (path.starts_with("zero.")) return runtimes_of(RuntimeKind::kZero1, RuntimeKind::kZero2, RuntimeKind::kZero3);
  if (path == "torch") {
    return runtimes_of(RuntimeKind::kZero1, RuntimeKind::kZero2, RuntimeKind::kZero3) |
           runtimes_of(RuntimeKind::kMegatron);
  }
  return path == "units.adapters_alone" ? runtimes_of(RuntimeKind::kFsdp1, RuntimeKind::kFsdp2)
                                        : runtimes_of(RuntimeKind::kFsdp1);
}

constexpr std::array kPreOrPost = {"pre", "post"};
constexpr std::array kMixedPrecisions = {"autocast", "parameters"};
constexpr PlanKeyType kBucketOrNone = or_number<kNone>({.kind = PlanKeyType::Kind::kNumber});

void read_bucket(const PlanKey&, const ConfigNode& n, PlanDocument& d) {
  const bool none = n.is_scalar() && (n.text() == "0" || n.text() == "0.0");  // no buckets
  d.plan.ddp.bucket_cap_mb = none ? 0.0 : read_optional_positive(n);
}

constexpr PlanKeyType kTorchVersion = other(R"({"type": "string", "pattern": "^2\\.[0-9]+$", "examples": ["2.15"]})");

std::string read_torch(const ConfigNode& n) {
  std::string text(n.text());
  const auto numbers = parse_version(text);
  if (!numbers || numbers->first != 2) throw n.error(quote(text) + " is no version of PyTorch 2", "2.11, 2.15");
  return text;
}

using Module = MegatronOptions::Module;
constexpr auto& kModules = kUpTo<Module::kSharedExperts>;
constexpr PlanKeyType kModuleList = other(R"({"type": "array", "items": {"enum":
  ["core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts"]}})");

std::vector<Module> read_modules(const ConfigNode& node) {
  if (!node.is_sequence()) throw node.error("this is no list", "modules of Megatron-Core, for example [moe_act]");
  return list_of<Module>(node.elements(), [&](const ConfigNode& item) { return read_word(item, kModules); });
}

Json written_modules(const std::vector<Module>& modules) {
  return json_list(
      modules, [&](const Module module) -> Json { return to_string(module); });
}

constexpr auto kLibraryKeys = [] {
  auto keys = std::to_array<PlanKey>({
      FORESHARD_KEY("fsdp1.backward_prefetch", words<kPreOrPost>(),
          d.plan.fsdp1.backward_prefetch =
              n.as_choice({"pre", "post"}) == 0 ? BackwardPrefetch::kPre : BackwardPrefetch::kPost,
          Json(p.fsdp1.backward_prefetch == BackwardPrefetch::kPre ? "pre" : "post")),
      FORESHARD_FLAG(fsdp1.limit_all_gathers),
      FORESHARD_FLAG(fsdp1.use_orig_params),
      FORESHARD_FLAG(fsdp1.keep_low_precision_grads),
      FORESHARD_FLAG(fsdp1.hybrid_shard),
      FORESHARD_FLAG(fsdp1.gradients_in_place, .quiet = true),
      FORESHARD_COUNT(units.min_parameters, 0, plan_limits::kParameters, .quiet = true),
      FORESHARD_FLAG(units.adapters_alone, .quiet = true),
      {.path = "ddp.bucket_cap_mb",
          .type = kBucketOrNone,
          .read = read_bucket,
          .value = [](const Plan& p) { return written(p.ddp.bucket_cap_mb); }},
      FORESHARD_FLAG(ddp.static_graph),
      FORESHARD_FLAG(ddp.find_unused_parameters),
      FORESHARD_FLAG(ddp.gradient_as_bucket_view),
      FORESHARD_FLAG(ddp.broadcast_buffers),
      FORESHARD_FLAG(ddp.zero_redundancy_optimizer),
      FORESHARD_FLAG(ddp.norms_fp32),
      FORESHARD_FLAG(ddp.blocks_narrow, .quiet = true),
      FORESHARD_KEY("ddp.mixed_precision", words<kMixedPrecisions>(),
          d.plan.ddp.mixed_precision =
              n.as_choice({"autocast", "parameters"}) == 0 ? MixedPrecision::kAutocast : MixedPrecision::kParameters,
          Json(p.ddp.mixed_precision == MixedPrecision::kAutocast ? "autocast" : "parameters")),
      FORESHARD_KEY("torch", kTorchVersion, d.plan.runtime.torch = read_torch(n), p.runtime.torch, .quiet = true),
      FORESHARD_KEY("zero.overlap_comm", kFlag, d.plan.zero.overlap_comm = n.as_bool(),
          Json(p.zero.overlap_comm.value_or(p.runtime.kind == RuntimeKind::kZero3))),
      FORESHARD_FLAG(zero.contiguous_gradients),
      FORESHARD_FLAG(zero.reduce_scatter),
      FORESHARD_FLAG(zero.round_robin_gradients),
      FORESHARD_FLAG(zero.use_multi_rank_bucket_allreduce),
      FORESHARD_FLAG(zero.partition_in_groups),
      FORESHARD_COUNT(zero.reduce_bucket_size, 0, ZeroOptions::kUnlimited),
      FORESHARD_COUNT(zero.allgather_bucket_size, 0, ZeroOptions::kUnlimited),
      FORESHARD_COUNT(zero.stage3_prefetch_bucket_size, 0, ZeroOptions::kUnlimited),
      FORESHARD_COUNT(zero.stage3_max_live_parameters, 0, ZeroOptions::kUnlimited),
      FORESHARD_COUNT(zero.stage3_max_reuse_distance, 0, ZeroOptions::kUnlimited),
      FORESHARD_COUNT(zero.stage3_param_persistence_threshold, 0, ZeroOptions::kUnlimited),
      FORESHARD_COUNT(zero.stage3_model_persistence_threshold, 0, ZeroOptions::kUnlimited),
      FORESHARD_COUNT(zero.sub_group_size, 0, ZeroOptions::kUnlimited),
      FORESHARD_FLAG(zero.stage3_use_all_reduce_for_fetch_params),
      FORESHARD_FLAG(zero.leaf_blocks),
      FORESHARD_COUNT(zero.zero_hpz_partition_size, 0, ZeroOptions::kUnlimited),
      FORESHARD_FLAG(zero.zero_quantized_weights),
      FORESHARD_FLAG(zero.zero_quantized_gradients),
      FORESHARD_WORD(zero.offload_optimizer, kUpTo<ZeroOffload::kNvme>),
      FORESHARD_WORD(zero.offload_param, kUpTo<ZeroOffload::kNvme>),
      FORESHARD_FLAG(zero.pin_memory),
      FORESHARD_FLAG(zero.fp32_gradient_accumulation),
      FORESHARD_FLAG(zero.bf16_optimizer),
      FORESHARD_FLAG(megatron.distributed_optimizer),
      FORESHARD_FLAG(megatron.overlap_grad_reduce),
      FORESHARD_FLAG(megatron.overlap_param_gather),
      FORESHARD_COUNT(megatron.bucket_size, 0, ZeroOptions::kUnlimited),
      FORESHARD_WORD(megatron.gradients, kUpTo<MegatronOptions::Gradients::kBucketed>),
      FORESHARD_COUNT(megatron.make_vocab_size_divisible_by, 1, 1 << 20),
      FORESHARD_FLAG(megatron.overlap_expert_parallel),
      FORESHARD_FLAG(megatron.fp8_transposes),
      FORESHARD_WORD(megatron.cuda_graphs, kUpTo<MegatronOptions::CudaGraphs::kRouters>),
      FORESHARD_KEY("megatron.recompute_modules", kModuleList, d.plan.megatron.recompute_modules = read_modules(n),
          written_modules(p.megatron.recompute_modules), .quiet = true),
  });
  for (PlanKey& key : keys) key.runtimes = runtimes_of_group(key.path);
  return keys;
}();

}

std::span<const PlanKey> library_keys() { return kLibraryKeys; }

}
