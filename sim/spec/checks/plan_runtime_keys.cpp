// Keys that only one family of runtimes has, under the library's own names.
#include <array>
#include <nlohmann/json.hpp>

#include "sim/spec/checks/plan_check.h"
#include "sim/spec/plan_keys.h"
#include "sim/spec/plan_values.h"

namespace foreshard {
namespace {

using Node = const ConfigNode&;
using Document = PlanDocument&;
using BackwardPrefetch = Fsdp1Options::BackwardPrefetch;
using MixedPrecision = DdpOptions::MixedPrecision;

constexpr std::array kOffloads = {ZeroOffload::kNone, ZeroOffload::kCpu, ZeroOffload::kNvme};

bool of_fsdp1(RuntimeKind kind) { return kind == RuntimeKind::kFsdp1; }
bool of_ddp(RuntimeKind kind) { return kind == RuntimeKind::kDdp; }
bool of_zero(RuntimeKind kind) { return is_zero(kind); }

// A flag or a count that is a plain member of the options.
template <auto options, auto member>
void read_flag(Node node, Document document) {
  document.plan.*options.*member = node.as_bool();
}
template <auto options, auto member>
void read_count(Node node, Document document) {
  document.plan.*options.*member = node.as_int(0, ZeroOptions::kUnlimited);
}
template <auto options, auto member>
Json write_member(const Plan& plan) {
  return Json(plan.*options.*member);
}
template <auto member>
void read_offload(Node node, Document document) {
  document.plan.zero.*member = read_word(node, kOffloads);
}
template <auto member>
Json write_offload(const Plan& plan) {
  return Json(to_string(plan.zero.*member));
}

#define FORESHARD_FLAG(options, member, belongs)                                         \
  {                                                                                      \
#options "." #member, read_flag < &Plan::options, &decltype(Plan::options)::member>, \
        write_member < &Plan::options, &decltype(Plan::options)::member>, belongs        \
  }
#define FORESHARD_COUNT(options, member, belongs)                                         \
  {                                                                                       \
#options "." #member, read_count < &Plan::options, &decltype(Plan::options)::member>, \
        write_member < &Plan::options, &decltype(Plan::options)::member>, belongs         \
  }

constexpr PlanKey kKeys[] = {
    {"fsdp1.backward_prefetch",
     [](Node n, Document d) {
       d.plan.fsdp1.backward_prefetch =
           n.as_choice({"pre", "post"}) == 0 ? BackwardPrefetch::kPre : BackwardPrefetch::kPost;
     },
     [](const Plan& p) {
       return Json(p.fsdp1.backward_prefetch == BackwardPrefetch::kPre ? "pre" : "post");
     },
     of_fsdp1},
    FORESHARD_FLAG(fsdp1, limit_all_gathers, of_fsdp1),
    FORESHARD_FLAG(fsdp1, use_orig_params, of_fsdp1),
    FORESHARD_FLAG(fsdp1, keep_low_precision_grads, of_fsdp1),
    FORESHARD_FLAG(fsdp1, hybrid_shard, of_fsdp1),
    {"fsdp1.gradients_in_place", read_flag<&Plan::fsdp1, &Fsdp1Options::gradients_in_place>,
     [](const Plan& p) { return p.fsdp1.gradients_in_place ? Json(true) : Json(); }, of_fsdp1},
    {"ddp.bucket_cap_mb",
     [](Node n, Document d) {
       const bool none = n.is_scalar() && n.text() == "0";  // no buckets
       d.plan.ddp.bucket_cap_mb = none ? 0.0 : read_optional_positive(n);
     },
     [](const Plan& p) { return written(p.ddp.bucket_cap_mb); }, of_ddp},
    FORESHARD_FLAG(ddp, static_graph, of_ddp),
    FORESHARD_FLAG(ddp, find_unused_parameters, of_ddp),
    FORESHARD_FLAG(ddp, gradient_as_bucket_view, of_ddp),
    FORESHARD_FLAG(ddp, broadcast_buffers, of_ddp),
    FORESHARD_FLAG(ddp, zero_redundancy_optimizer, of_ddp),
    FORESHARD_FLAG(ddp, norms_fp32, of_ddp),
    {"ddp.mixed_precision",
     [](Node n, Document d) {
       d.plan.ddp.mixed_precision = n.as_choice({"autocast", "parameters"}) == 0
                                        ? MixedPrecision::kAutocast
                                        : MixedPrecision::kParameters;
     },
     [](const Plan& p) {
       return Json(p.ddp.mixed_precision == MixedPrecision::kAutocast ? "autocast" : "parameters");
     },
     of_ddp},
    {"zero.overlap_comm", [](Node n, Document d) { d.plan.zero.overlap_comm = n.as_bool(); },
     [](const Plan& p) {
       return Json(p.zero.overlap_comm.value_or(p.runtime.kind == RuntimeKind::kZero3));
     },
     of_zero},
    FORESHARD_FLAG(zero, contiguous_gradients, of_zero),
    FORESHARD_FLAG(zero, reduce_scatter, of_zero),
    FORESHARD_FLAG(zero, round_robin_gradients, of_zero),
    FORESHARD_FLAG(zero, use_multi_rank_bucket_allreduce, of_zero),
    FORESHARD_FLAG(zero, partition_in_groups, of_zero),
    FORESHARD_FLAG(zero, gradient_buffer, of_zero),
    FORESHARD_COUNT(zero, reduce_bucket_size, of_zero),
    FORESHARD_COUNT(zero, allgather_bucket_size, of_zero),
    FORESHARD_COUNT(zero, stage3_prefetch_bucket_size, of_zero),
    FORESHARD_COUNT(zero, stage3_max_live_parameters, of_zero),
    FORESHARD_COUNT(zero, stage3_max_reuse_distance, of_zero),
    FORESHARD_COUNT(zero, stage3_param_persistence_threshold, of_zero),
    FORESHARD_COUNT(zero, stage3_model_persistence_threshold, of_zero),
    FORESHARD_COUNT(zero, sub_group_size, of_zero),
    FORESHARD_FLAG(zero, stage3_use_all_reduce_for_fetch_params, of_zero),
    FORESHARD_FLAG(zero, leaf_blocks, of_zero),
    FORESHARD_COUNT(zero, zero_hpz_partition_size, of_zero),
    FORESHARD_FLAG(zero, zero_quantized_weights, of_zero),
    FORESHARD_FLAG(zero, zero_quantized_gradients, of_zero),
    {"zero.offload_optimizer", read_offload<&ZeroOptions::offload_optimizer>,
     write_offload<&ZeroOptions::offload_optimizer>, of_zero},
    {"zero.offload_param", read_offload<&ZeroOptions::offload_param>,
     write_offload<&ZeroOptions::offload_param>, of_zero},
    FORESHARD_FLAG(zero, pin_memory, of_zero),
    FORESHARD_FLAG(zero, fp32_gradient_accumulation, of_zero),
};

#undef FORESHARD_FLAG
#undef FORESHARD_COUNT

}  // namespace

std::span<const PlanKey> runtime_option_keys() { return kKeys; }

}  // namespace foreshard
