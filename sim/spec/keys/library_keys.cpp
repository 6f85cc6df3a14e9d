// The keys that only one family of runtimes has, under the library's own names.
#include "sim/spec/keys/key_rows.h"

namespace foreshard {
namespace {

using BackwardPrefetch = Fsdp1Options::BackwardPrefetch;
using MixedPrecision = DdpOptions::MixedPrecision;

// Whose the keys of a group are that stand here.
constexpr RuntimeSet runtimes_of_group(std::string_view path) {
  if (path.starts_with("ddp.")) return runtimes_of(RuntimeKind::kDdp);
  if (path.starts_with("megatron.")) return runtimes_of(RuntimeKind::kMegatron);
  if (path.starts_with("zero.")) {
    return runtimes_of(RuntimeKind::kZero1, RuntimeKind::kZero2, RuntimeKind::kZero3);
  }
  return runtimes_of(RuntimeKind::kFsdp1);
}

constexpr std::array kPreOrPost = {"pre", "post"};
constexpr std::array kMixedPrecisions = {"autocast", "parameters"};
constexpr PlanKeyType kBucketOrNone = or_number<kNone>({.kind = PlanKeyType::Kind::kNumber});

void read_bucket(const PlanKey&, const ConfigNode& n, PlanDocument& d) {
  const bool none = n.is_scalar() && n.text() == "0";  // no buckets
  d.plan.ddp.bucket_cap_mb = none ? 0.0 : read_optional_positive(n);
}

using Module = MegatronOptions::Module;
constexpr auto& kModules = kUpTo<Module::kSharedExperts>;
constexpr PlanKeyType kModuleList = other(R"({"type": "array", "items": {"enum":
  ["core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts"]}})");

std::vector<Module> read_modules(const ConfigNode& node) {
  if (!node.is_sequence()) {
    throw node.error("this is no list", "modules of Megatron-Core, for example [moe_act]");
  }
  std::vector<Module> modules;
  for (const ConfigNode& item : node.elements()) modules.push_back(read_word(item, kModules));
  return modules;
}

Json written_modules(const std::vector<Module>& modules) {
  Json words = Json::array();
  for (const Module module : modules) words.push_back(to_string(module));
  return words;
}

constexpr auto kLibraryKeys = [] {
  auto keys = std::to_array<PlanKey>({
      FORESHARD_KEY("fsdp1.backward_prefetch", words<kPreOrPost>(),
                    d.plan.fsdp1.backward_prefetch = n.as_choice({"pre", "post"}) == 0
                                                         ? BackwardPrefetch::kPre
                                                         : BackwardPrefetch::kPost,
                    Json(p.fsdp1.backward_prefetch == BackwardPrefetch::kPre ? "pre" : "post"),
                    "Where a unit's backward gathers the next unit, BACKWARD_PRE or BACKWARD_POST; "
                    "prefetch.backward: 0 gathers none."),
      FORESHARD_FLAG(fsdp1.limit_all_gathers,
                     "The rate limiter: at most two gathers ahead of their frees."),
      FORESHARD_FLAG(fsdp1.use_orig_params,
                     "Parameters keep their names and are aligned to 16 bytes in the flat one."),
      FORESHARD_FLAG(fsdp1.keep_low_precision_grads, "Gradients stay in the reduce dtype."),
      FORESHARD_FLAG(fsdp1.hybrid_shard,
                     "HYBRID_SHARD also where the mesh has one shard group, or one rank in each."),
      FORESHARD_FLAG(fsdp1.gradients_in_place,
                     "Products write gradients where they are reduced, in the reduce dtype (XLA, "
                     "Megatron-FSDP): PyTorch's FSDP1 concatenates, casts and divides them.",
                     .quiet = true),
      FORESHARD_COUNT(units.min_parameters, 0, plan_limits::kParameters,
                      "size_based_auto_wrap_policy: modules with so many parameters that are in no "
                      "unit inside of them are units; 0: units are as the other keys say.",
                      .quiet = true),
      FORESHARD_FLAG(units.adapters_alone,
                     "Each trained module of an adapter is a unit (PEFT's fsdp_auto_wrap_policy, "
                     "which transformers' Trainer takes).",
                     .quiet = true),
      {.path = "ddp.bucket_cap_mb",
       .type = kBucketOrNone,
       .read = read_bucket,
       .value = [](const Plan& p) { return written(p.ddp.bucket_cap_mb); },
       .says = "MiB of a bucket. Left out, it is 25 with a first bucket of 1; on one rank 0: the "
               "model is not wrapped."},
      FORESHARD_FLAG(ddp.static_graph,
                     "The graph never changes: buckets are rebuilt one iteration later."),
      FORESHARD_FLAG(ddp.find_unused_parameters,
                     "Parameters that get no gradient are looked for in every iteration."),
      FORESHARD_FLAG(ddp.gradient_as_bucket_view, "Gradients are views into the buckets."),
      FORESHARD_FLAG(ddp.broadcast_buffers, "Rank 0's buffers are sent at each forward."),
      FORESHARD_FLAG(ddp.zero_redundancy_optimizer,
                     "ZeroRedundancyOptimizer: optimizer states are divided among the ranks."),
      FORESHARD_FLAG(ddp.norms_fp32,
                     "Norm layers stay in fp32 where the model is converted to 16 bits."),
      FORESHARD_KEY(
          "ddp.mixed_precision", words<kMixedPrecisions>(),
          d.plan.ddp.mixed_precision = n.as_choice({"autocast", "parameters"}) == 0
                                           ? MixedPrecision::kAutocast
                                           : MixedPrecision::kParameters,
          Json(p.ddp.mixed_precision == MixedPrecision::kAutocast ? "autocast" : "parameters"),
          "autocast casts in the forward; parameters keeps copies of the parameters in the param "
          "dtype."),
      FORESHARD_KEY("zero.overlap_comm", kFlag, d.plan.zero.overlap_comm = n.as_bool(),
                    Json(p.zero.overlap_comm.value_or(p.runtime.kind == RuntimeKind::kZero3)),
                    "Reductions overlap with backward. Left out: in stage 3 only."),
      FORESHARD_FLAG(zero.contiguous_gradients,
                     "Gradients are copied into a contiguous buffer as they come."),
      FORESHARD_FLAG(zero.reduce_scatter, "Each rank averages the gradients that it owns."),
      FORESHARD_FLAG(zero.round_robin_gradients,
                     "Parameters are dealt out to the ranks in turn (stages 1 and 2)."),
      FORESHARD_FLAG(zero.use_multi_rank_bucket_allreduce,
                     "Buckets of several owners are all-reduced, not reduced to each owner."),
      FORESHARD_FLAG(zero.partition_in_groups,
                     "Stage 1 of trainers with a ZeRO of their own: the optimizer's states are "
                     "partitioned over mesh.shard and whole in each of mesh.replicate groups."),
      FORESHARD_FLAG(
          zero.gradient_buffer,
          "Megatron-Core's distributed optimizer: gradients are parts of one flat buffer "
          "of the whole model in dtype.reduce, which backward adds to; overlap_comm and "
          "reduce_bucket_size are its overlap_grad_reduce and bucket_size."),
      FORESHARD_COUNT(zero.reduce_bucket_size, 0, ZeroOptions::kUnlimited,
                      "Elements reduced at a time."),
      FORESHARD_COUNT(zero.allgather_bucket_size, 0, ZeroOptions::kUnlimited,
                      "Elements gathered at a time; DeepSpeed ignores it where the backend gathers "
                      "into one tensor."),
      FORESHARD_COUNT(zero.stage3_prefetch_bucket_size, 0, ZeroOptions::kUnlimited,
                      "Elements prefetched at each module."),
      FORESHARD_COUNT(zero.stage3_max_live_parameters, 0, ZeroOptions::kUnlimited,
                      "Elements beyond which nothing is prefetched."),
      FORESHARD_COUNT(zero.stage3_max_reuse_distance, 0, ZeroOptions::kUnlimited,
                      "A parameter that is used again within so many elements is not released."),
      FORESHARD_COUNT(zero.stage3_param_persistence_threshold, 0, ZeroOptions::kUnlimited,
                      "Parameters of so many elements or fewer are never partitioned."),
      FORESHARD_COUNT(zero.stage3_model_persistence_threshold, 0, ZeroOptions::kUnlimited,
                      "Elements of such parameters in all."),
      FORESHARD_COUNT(zero.sub_group_size, 0, ZeroOptions::kUnlimited,
                      "Elements that the optimizer steps at a time."),
      FORESHARD_FLAG(zero.stage3_use_all_reduce_for_fetch_params,
                     "Parameters are gathered by an all-reduce."),
      FORESHARD_FLAG(zero.leaf_blocks, "set_z3_leaf_modules: blocks are fetched whole."),
      FORESHARD_COUNT(
          zero.zero_hpz_partition_size, 0, ZeroOptions::kUnlimited,
          "ZeRO++: ranks of the group that keeps a second copy of the shards; 1: none."),
      FORESHARD_FLAG(zero.zero_quantized_weights, "ZeRO++: gathers carry 8-bit weights."),
      FORESHARD_FLAG(zero.zero_quantized_gradients, "ZeRO++: gradients travel in 4 bits."),
      FORESHARD_WORD(zero.offload_optimizer, kUpTo<ZeroOffload::kNvme>,
                     "Where optimizer states live and step."),
      FORESHARD_WORD(zero.offload_param, kUpTo<ZeroOffload::kNvme>,
                     "Where partitions of the parameters live."),
      FORESHARD_FLAG(zero.pin_memory, "Host memory of offload is page-locked."),
      FORESHARD_FLAG(zero.fp32_gradient_accumulation, "data_types.grad_accum_dtype: fp32."),
      FORESHARD_FLAG(megatron.overlap_grad_reduce,
                     "A bucket of gradients is reduced beside backward as soon as it is full; else "
                     "all are when backward is done."),
      FORESHARD_FLAG(
          megatron.overlap_param_gather,
          "Parameters are gathered bucket by bucket beside the next forward; else all are "
          "behind the optimizer."),
      FORESHARD_COUNT(megatron.bucket_size, 0, ZeroOptions::kUnlimited,
                      "Elements of a bucket. 0: the greater of 40 million and a million for each "
                      "rank that gradients are sharded over."),
      FORESHARD_FLAG(megatron.overlap_expert_parallel,
                     "overlap_moe_expert_parallel_comm: rows travel to and from the experts beside "
                     "what another micro-batch computes."),
      FORESHARD_WORD(megatron.cuda_graphs, kUpTo<MegatronOptions::CudaGraphs::kRouters>,
                     "What CUDA graphs replay: modules, what a layer computes before rows go to "
                     "experts; iteration, forward and backward of the whole step; routers, of a "
                     "mixture what decides where rows go (a fused router, too)."),
      FORESHARD_KEY("megatron.recompute_modules", kModuleList,
                    d.plan.megatron.recompute_modules = read_modules(n),
                    written_modules(p.megatron.recompute_modules),
                    "What recompute: selective runs again, in Megatron-Core's words: core_attn, "
                    "moe_act, layernorm, mla_up_proj, mlp, moe, shared_experts.",
                    .quiet = true),
  });
  for (PlanKey& key : keys) key.runtimes = runtimes_of_group(key.path);
  return keys;
}();

}  // namespace

std::span<const PlanKey> library_keys() { return kLibraryKeys; }

}  // namespace foreshard
