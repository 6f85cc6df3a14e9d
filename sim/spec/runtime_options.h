// What FSDP1, DDP and DeepSpeed ZeRO are told beyond the keys that all runtimes share; names and
// defaults are the libraries' own (PyTorch 2.11, DeepSpeed 0.19.8).
//
// What the shared keys mean there:
//
//   key                      fsdp1                              ddp              zero1-3
//   mesh {N, 1}              FULL_SHARD / SHARD_GRAD_OP         -                ZeRO over N ranks
//   mesh {S, R}              HYBRID_SHARD / _HYBRID_SHARD_ZERO2 -                MiCS (zero3)
//   mesh {1, N}              NO_SHARD                           DDP over N ranks -
//   reshard_after_forward    always: FULL_, never: _GRAD_OP     -                -
//   prefetch.forward         implicit, or 1: forward_prefetch   -                -
//   prefetch.backward        1, or 0: backward_prefetch=None    -                -
//   units                    the wrapping policy                -                -
//   accumulation.mode        keep_unsharded: no_sync()          keep_unsharded: no_sync(),
//                                                               reduce_each without it
//   dtype.param, .reduce     MixedPrecision                     compute dtype    bf16 / fp16
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "sim/base/letters.h"

namespace foreshard {

// FullyShardedDataParallel.
struct Fsdp1Options {
  // Where a unit's backward gathers the unit that comes next: before its own gradients are computed or after.
  enum class BackwardPrefetch : std::uint8_t { kPre, kPost };
  BackwardPrefetch backward_prefetch = BackwardPrefetch::kPre;
  bool limit_all_gathers = true;
  bool use_orig_params = false;
  bool keep_low_precision_grads = false;
  // HYBRID_SHARD also where the mesh has one shard group (all-reduces inside groups of one rank) or
  // one rank in each (NO_SHARD inside of it: nothing is reduced over the others).
  bool hybrid_shard = false;
  // Products write gradients where they are reduced, in the reduce dtype: codes that shard alike
  // but are not PyTorch's FullyShardedDataParallel (XLA; Megatron-FSDP's gradient buckets).
  bool gradients_in_place = false;
  bool operator==(const Fsdp1Options&) const = default;
};

// DistributedDataParallel.
struct DdpOptions {
  // kAutocast: parameters and gradients in the stored dtype, the forward casts. kParameters:
  // _MixedPrecision, copies of the parameters in the compute dtype.
  enum class MixedPrecision : std::uint8_t { kAutocast, kParameters };
  std::optional<double> bucket_cap_mb;  // left out: 25 with a first bucket of 1
  bool static_graph = false;
  bool find_unused_parameters = false;
  bool gradient_as_bucket_view = false;
  bool broadcast_buffers = true;
  bool zero_redundancy_optimizer = false;  // ZeroRedundancyOptimizer: states sharded over ranks
  MixedPrecision mixed_precision = MixedPrecision::kAutocast;
  bool norms_fp32 = false;     // norm layers stay in fp32 where the model is converted to 16 bits
  bool blocks_narrow = false;  // blocks' matrices are stored in the param dtype, the rest is wide
  bool operator==(const DdpOptions&) const = default;
};

// Where DeepSpeed keeps optimizer states or parameters.
enum class ZeroOffload : std::uint8_t { kNone, kCpu, kNvme };
constexpr const char* to_string(ZeroOffload offload) { return word_at(offload, {"none", "cpu", "nvme"}); }

// "zero_optimization" of a DeepSpeed configuration; sizes are elements. The stage is the runtime's.
struct ZeroOptions {
  static constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max();
  std::optional<bool> overlap_comm;  // left out: stage 3 only
  bool contiguous_gradients = true;
  bool reduce_scatter = true;
  bool round_robin_gradients = false;
  bool use_multi_rank_bucket_allreduce = true;
  // Stage 1 of trainers with a ZeRO of their own (InternEvo's parallel.zero1.size): the optimizer's
  // states are partitioned over mesh.shard and whole in each of mesh.replicate groups; gradients
  // are all-reduced over all ranks. DeepSpeed partitions over all.
  bool partition_in_groups = false;
  std::int64_t reduce_bucket_size = 500'000'000;
  std::int64_t allgather_bucket_size = 500'000'000;
  // Stage 3.
  std::int64_t stage3_prefetch_bucket_size = 50'000'000;
  std::int64_t stage3_max_live_parameters = 1'000'000'000;
  std::int64_t stage3_max_reuse_distance = 1'000'000'000;
  std::int64_t stage3_param_persistence_threshold = 100'000;
  std::int64_t stage3_model_persistence_threshold = kUnlimited;
  std::int64_t sub_group_size = 1'000'000'000;
  bool stage3_use_all_reduce_for_fetch_params = false;
  bool leaf_blocks = false;  // set_z3_leaf_modules: blocks are fetched whole
  // ZeRO++.
  std::int64_t zero_hpz_partition_size = 1;
  bool zero_quantized_weights = false;
  bool zero_quantized_gradients = false;
  // Offload, and of Infinity's files: what the drive of a rank and its queue take.
  ZeroOffload offload_optimizer = ZeroOffload::kNone;
  ZeroOffload offload_param = ZeroOffload::kNone;
  bool pin_memory = false;
  // Beside "zero_optimization".
  bool fp32_gradient_accumulation = false;  // data_types.grad_accum_dtype: fp32
  bool bf16_optimizer = false;              // stage 0 of a pipeline in bf16: states are shared out as in stage 1
  bool operator==(const ZeroOptions&) const = default;
};

// Megatron-Core's DistributedDataParallelConfig. Defaults are those of its recipes for speed
// (Megatron-Bridge), which switch these on.
struct MegatronOptions {
  // use_distributed_optimizer: gradients are scattered, and each rank steps its part; else all of
  // them are summed on every rank, which steps all.
  bool distributed_optimizer = true;
  bool overlap_grad_reduce = true;   // a bucket is reduced beside backward as soon as it is full
  bool overlap_param_gather = true;  // parameters are gathered bucket by bucket beside forward
  // overlap_moe_expert_parallel_comm: the forward of a micro-batch runs in turns with the backward
  // of the one before, so that rows travel beside what the other one computes.
  bool overlap_expert_parallel = false;
  // What CUDA graphs replay. kModules: of each layer what precedes the dispatch of rows (attention
  // and router; all of a dense layer). kIteration: forward and backward of the whole step, for
  // which the host knows no counts of rows. kRouters: of a mixture what decides where rows go
  // (scopes moe_router and moe_preprocess), as a fused router does it in few launches.
  enum class CudaGraphs : std::uint8_t { kNone, kModules, kIteration, kRouters };
  CudaGraphs cuda_graphs = CudaGraphs::kNone;
  // What selective recompute runs again (transformer_config.py, recompute_modules): attention itself, the activation of
  // experts, norms that are no part of a linear layer, the products that widen latents with what follows them to
  // attention, the dense feed-forward, all of a mixture, its shared experts.
  enum class Module : std::uint8_t {
    kCoreAttn,
    kMoeAct,
    kLayernorm,
    kMlaUpProj,
    kMlp,
    kMoe,
    kSharedExperts,
  };
  std::vector<Module> recompute_modules = {Module::kCoreAttn};
  // What is cast to fp8 with scales of tensors lies there in both layouts, as products before Blackwell need it.
  bool fp8_transposes = true;
  // Elements of a bucket; 0: max(40 M, 1 M x ranks that a buffer is sharded over).
  std::int64_t bucket_size = 0;
  // Where gradients go. kFused: products add them to the flat buffer. kApart: they are tensors in
  // dtype.param until backward ends, then added to it; ranks sum all of it at once. kBucketed: DDP's
  // buckets beside them, each added and summed in the last backward when it is full. (nanotron,
  // optim/gradient_accumulator.py; with dtype.reduce = dtype.param there is no flat buffer.)
  enum class Gradients : std::uint8_t { kFused, kApart, kBucketed };
  Gradients gradients = Gradients::kFused;
  std::int64_t make_vocab_size_divisible_by = 128;  // times the ranks of mesh.tp
  bool operator==(const MegatronOptions&) const = default;
};
constexpr const char* to_string(MegatronOptions::CudaGraphs graphs) {
  return word_at(graphs, {"none", "modules", "iteration", "routers"});
}
constexpr const char* to_string(MegatronOptions::Gradients gradients) {
  return word_at(gradients, {"fused", "apart", "bucketed"});
}
constexpr const char* to_string(MegatronOptions::Module module) {
  return word_at(module, {"core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts"});
}

}
