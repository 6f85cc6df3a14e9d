// The keys that say how a step is computed: kernels, element types, accumulation, what is trained,
// the optimizer, buffers, the host.
#include <limits>

#include "sim/spec/keys/key_rows.h"

namespace foreshard {
namespace {

constexpr std::array kFullest = {"fullest"};
constexpr std::array kDTypeOrNone = {"bf16", "fp16", "fp32", "none"};

constexpr PlanKeyType kPositiveOrNone = or_number<kNone>({.kind = PlanKeyType::Kind::kNumber, .above_least = true});
constexpr PlanKeyType kDecay{.kind = PlanKeyType::Kind::kNumber, .most_number = 1, .below_most = true};
constexpr PlanKeyType kRecomputePolicy = other(R"({"oneOf": [{"$ref": "#/definitions/recompute"},
    {"type": "string", "pattern": "^every-0*[1-9][0-9]{0,6}$"},
    {"type": "array", "minItems": 1, "items": {"type": "object", "additionalProperties": false,
     "required": ["layers", "value"], "properties": {"layers": {"$ref": "#/definitions/numbers"},
     "value": {"$ref": "#/definitions/recompute"}}}}],
    "examples": ["none", "full", "every-2", [{"layers": "0-3", "value": "full"}]]})");
constexpr PlanKeyType kLossName = other(R"({"type": "string",
    "pattern": "^(eager|eager-compute|compiled|fused|fused-linear|liger|tiled-linear|smoothed|log-probabilities|chunked-(head-)?0*([2-9]|[1-9][0-9]+))$"})");
constexpr PlanKeyType kFrozenLayers = other(R"({"oneOf": [{"const": "none"},
    {"type": "array", "minItems": 1, "items": {"oneOf": [
     {"enum": ["embedding", "norm", "head", "tower"]},
     {"type": "integer", "minimum": 0, "maximum": 9999999},
     {"type": "string", "pattern": "^[0-9]{1,7}(-[0-9]{1,7})?$"}]}}],
    "examples": ["none", ["embedding", "0-15"]]})");
constexpr PlanKeyType kLoraTargets = other(R"({"oneOf": [{"const": "all-linear"},
    {"type": "array", "minItems": 1, "uniqueItems": true,
     "items": {"type": "string", "pattern": "^(?!all-linear$).+"}}],
    "examples": ["all-linear", ["q_proj", "v_proj"]]})");
constexpr PlanKeyType kSavedModules = other(R"({"oneOf": [{"const": "none"},
    {"type": "array", "minItems": 1, "uniqueItems": true,
     "items": {"enum": ["embedding", "head"]}}],
    "examples": ["none", ["embedding", "head"]]})");
constexpr PlanKeyType kAllocatorSettings = other(R"({"type": "string", "minLength": 1,
    "examples": ["expandable_segments:True",
                 "max_split_size_mb:512,garbage_collection_threshold:0.8"]})");

void read_reduce_dtype(const PlanKey&, const ConfigNode& n, PlanDocument& d) {
  const std::optional<DType> dtype = read_optional_dtype(n);
  d.reduce_dtype_is_none = !dtype;
  if (dtype) d.plan.reduce_dtype = *dtype;
}

constexpr PlanKey kComputeKeys[] = {
    {.path = "recompute",
        .type = kRecomputePolicy,
        .read = [](const PlanKey&, const ConfigNode& n, PlanDocument& d) { read_recompute_policy(n, d); },
        .value = [](const Plan& p) { return written(p.recompute); }},
    FORESHARD_WORD(compile, kUpTo<Compile::kModel>),
    FORESHARD_WORD(attention, kUpTo<AttentionKernel::kFlashAllHeads>),
    FORESHARD_WORD(kernels.norm, kUpTo<ModuleKernels::Norm::kEagerFp32>),
    FORESHARD_WORD(kernels.rope, kUpTo<ModuleKernels::Rope::kFused>),
    FORESHARD_WORD(kernels.residual, kUpTo<ModuleKernels::Residual::kFp32>),
    FORESHARD_WORD(kernels.activation, kUpTo<ModuleKernels::Activation::kLiger>),
    FORESHARD_FLAG(kernels.unpads),
    FORESHARD_COUNT(kernels.train_metrics, 0, plan_limits::kMetrics),
    FORESHARD_FLAG(kernels.scan, .quiet = true),
    FORESHARD_FLAG(kernels.keeps_cache, .quiet = true),
    FORESHARD_FLAG(kernels.strided_bias, .quiet = true),
    FORESHARD_FLAG(kernels.torch_mixers, .quiet = true),
    FORESHARD_FLAG(
        kernels.given_mask, .quiet = true, .told = [](const Plan& p) { return p.compile == Compile::kModel; }),
    FORESHARD_FLAG(kernels.rope_tables, .quiet = true),
    FORESHARD_KEY("loss", kLossName, d.plan.loss = read_loss(n), written(p.loss)),
    FORESHARD_WORD(logits, kUpTo<Logits::kKept>),
    FORESHARD_WORD(reference, kUpTo<Reference::kUnits>, .quiet = true),
    FORESHARD_FLAG(loss_in_forward, .quiet = true),
    FORESHARD_WORD(float8, kUpTo<Float8::kNvfp4>),
    FORESHARD_COUNT(float8_wide_blocks, 0, plan_limits::kSteps, .quiet = true),
    FORESHARD_FLAG(float8_all_gather),
    FORESHARD_WORD(experts, kUpTo<ExpertKernels::kTransformers4>),
    FORESHARD_WORD(recompute_keeps, kUpTo<SelectivePolicy::kModules>, .quiet = true),
    FORESHARD_WORD(recompute_wraps, kUpTo<CheckpointWraps::kUnit>),
    FORESHARD_FLAG(recompute_early_stop),
    FORESHARD_FLAG(recompute_reentrant),
    FORESHARD_WORD_AT("dtype.param", param_dtype, kUpTo<DType::kFp32>),
    FORESHARD_KEY(
        "dtype.autocast", words<kDTypeOrNone>(), d.plan.autocast = read_optional_dtype(n), written(p.autocast)),
    {.path = "dtype.reduce",
        .type = words<kDTypeOrNone>(),
        .read = read_reduce_dtype,
        .value = [](const Plan& p) { return Json(word_of(p.reduce_dtype)); }},
    FORESHARD_WORD_AT("dtype.master", master_dtype, kUpTo<DType::kFp32>),
    FORESHARD_KEY(
        "dtype.output", words<kDTypeOrNone>(), d.plan.output_dtype = read_optional_dtype(n), written(p.output_dtype)),
    FORESHARD_KEY("dtype.reference", words<kDTypeOrNone>(), d.plan.reference_dtype = read_optional_dtype(n),
        written(p.reference_dtype), .quiet = true),
    FORESHARD_WORD_AT("accumulation.mode", accumulation, kUpTo<AccumulationMode::kKeepUnsharded>),
    FORESHARD_WORD_AT("accumulation.all_reduce", accumulation_details.all_reduce, kUpTo<When::kLast>),
    FORESHARD_WORD_AT(
        "accumulation.reshard_after_backward", accumulation_details.reshard_after_backward, kUpTo<When::kLast>),
    FORESHARD_WORD_AT("accumulation.is_last_backward", accumulation_details.is_last_backward, kUpTo<When::kLast>),
    FORESHARD_KEY("frozen", kFrozenLayers, d.plan.frozen = read_frozen(n), written(p.frozen)),
    FORESHARD_COUNT(lora.rank, 0, plan_limits::kRank),
    FORESHARD_KEY(
        "lora.targets", kLoraTargets, d.plan.lora.targets = read_lora_targets(n), written_lora_targets(p.lora.targets)),
    FORESHARD_NUMBER(lora.dropout, number(0, 0.999)),
    FORESHARD_WORD(lora.base, kUpTo<Lora::Base::kNf4Master>),
    FORESHARD_FLAG(lora.double_quant, .quiet = true),
    FORESHARD_FLAG(lora.autocast_adapter_dtype, .quiet = true),
    FORESHARD_FLAG(lora.input_require_grads, .quiet = true),
    FORESHARD_FLAG(lora.fused, .quiet = true),
    FORESHARD_KEY(
        "lora.modules_to_save", kSavedModules, read_saved_modules(n, d.plan.lora), written_saved_modules(p.lora),
        .quiet = true, .told = [](const Plan& p) { return p.lora.rank > 0; }),
    FORESHARD_WORD(ignored, kUpTo<Ignored::kPacked>),
    FORESHARD_WORD(optimizer.kind, kUpTo<Optimizer::Kind::kMuon>),
    FORESHARD_WORD(optimizer.implementation, kUpTo<Optimizer::Implementation::kLoop>),
    FORESHARD_WORD(optimizer.groups, kUpTo<Optimizer::Groups::kDecay>, .quiet = true),
    FORESHARD_WORD(optimizer.state, kUpTo<DType::kFp32>),
    FORESHARD_KEY("optimizer.clip_norm", kPositiveOrNone, d.plan.optimizer.clip_norm = read_optional_positive(n),
        written(p.optimizer.clip_norm)),
    FORESHARD_FLAG(optimizer.in_backward, .quiet = true),
    FORESHARD_WORD(optimizer.zero_grad, kUpTo<Optimizer::ZeroGrad::kAfterForward>, .quiet = true),
    FORESHARD_COUNT(optimizer.temporaries, 0, 64, .quiet = true),
    FORESHARD_COUNT(optimizer.passes, 0, 1 << 20, .quiet = true),
    FORESHARD_COUNT(optimizer.operations, 0, 1 << 20, .quiet = true),
    FORESHARD_NUMBER(optimizer.learning_rate, number(0, 1e3)),
    FORESHARD_KEY("optimizer.beta1", kDecay, d.plan.optimizer.beta1 = read_decay(n), Json(p.optimizer.beta1)),
    FORESHARD_KEY("optimizer.beta2", kDecay, d.plan.optimizer.beta2 = read_decay(n), Json(p.optimizer.beta2)),
    FORESHARD_KEY("optimizer.epsilon", number(std::numeric_limits<float>::min(), 1),
        d.plan.optimizer.epsilon = read_epsilon(n), Json(p.optimizer.epsilon)),
    FORESHARD_NUMBER(optimizer.weight_decay, number(0, 1e3)),
    FORESHARD_COUNT(optimizer.warmup_steps, 0, plan_limits::kSteps),
    FORESHARD_KEY("optimizer.decay_steps", or_number<kNone>(count(1, plan_limits::kSteps)),
        d.plan.optimizer.decay_steps = read_optional_steps(n), written(p.optimizer.decay_steps)),
    FORESHARD_NUMBER(optimizer.min_learning_rate, number(0, 1e3)),
    FORESHARD_WORD(offload, kUpTo<Offload::kCpuUnpinned>),
    FORESHARD_COUNT_AT("buffers.reduce_scatter", reduce_scatter_buffers, 1, plan_limits::kBuffers),
    FORESHARD_WORD(communicators, kUpTo<Communicators::kSeparate>),
    FORESHARD_WORD(collectives.kernels, kUpTo<CollectiveKernels::kCopyEngine>),
    FORESHARD_COUNT(collectives.max_ctas, 0, plan_limits::kCtas),
    FORESHARD_KEY("reduction.divide_factor", kPositiveOrNone, d.plan.gradient_divide_factor = read_optional_positive(n),
        written(p.gradient_divide_factor)),
    FORESHARD_FLAG_AT("reduction.force_sum", force_sum_reduction),
    FORESHARD_KEY("allocator", kAllocatorSettings, d.plan.allocator = read_allocator(n), written(p.allocator)),
    FORESHARD_FLAG(empties_cache, .quiet = true),
    FORESHARD_WORD(built_on, kUpTo<BuiltOn::kDevice>, .quiet = true),
    // fsdp1.*, ddp.*, zero.* stand here (library_keys.cpp).
    FORESHARD_WORD(host_sync, kUpTo<HostSync::kStep>),
    FORESHARD_WORD(reduction_order, kUpTo<ReductionOrder::kMicrobatch8>),
    FORESHARD_KEY("evaluation.every", or_number<kNone>(count(1, plan_limits::kSteps)),
        d.plan.evaluation.every = read_optional_steps(n), written(p.evaluation.every)),
    FORESHARD_COUNT(evaluation.sequences, 1, plan_limits::kMicroBatch),
    FORESHARD_NUMBER(evaluation.held_back, number(0, 0.9)),
    FORESHARD_FLAG(evaluation.in_step),
    FORESHARD_COUNT(seed, 0, plan_limits::kSeed),
    FORESHARD_KEY("rank", or_number<kFullest>(count(0, plan_limits::kMesh - 1)), d.plan.named_rank = read_rank(n),
        p.named_rank ? Json(*p.named_rank) : Json(kFullest[0])),
};

}

std::span<const PlanKey> compute_keys() { return kComputeKeys; }

}
