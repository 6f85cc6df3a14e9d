// The keys that say how a step is computed: kernels, element types, accumulation, what is trained,
// the optimizer, buffers, the host.
#include <limits>

#include "sim/spec/keys/key_rows.h"

namespace foreshard {
namespace {

constexpr std::array kDTypeOrNone = {"bf16", "fp16", "fp32", "none"};

constexpr PlanKeyType kPositiveOrNone =
    or_number<kNone>({.kind = PlanKeyType::Kind::kNumber, .above_least = true});
constexpr PlanKeyType kDecay{
    .kind = PlanKeyType::Kind::kNumber, .most_number = 1, .below_most = true};
constexpr PlanKeyType kRecomputePolicy = other(R"({"oneOf": [{"$ref": "#/definitions/recompute"},
    {"type": "string", "pattern": "^every-0*[1-9][0-9]{0,6}$"},
    {"type": "array", "minItems": 1, "items": {"type": "object", "additionalProperties": false,
     "required": ["layers", "value"], "properties": {"layers": {"$ref": "#/definitions/numbers"},
     "value": {"$ref": "#/definitions/recompute"}}}}],
    "examples": ["none", "full", "every-2", [{"layers": "0-3", "value": "full"}]]})");
constexpr PlanKeyType kLossName = other(R"({"type": "string",
    "pattern": "^(eager|eager-compute|compiled|fused|fused-linear|tiled-linear|chunked-0*([2-9]|[1-9][0-9]+))$"})");
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
     .read = [](const PlanKey&, const ConfigNode& n,
                PlanDocument& d) { read_recompute_policy(n, d); },
     .value = [](const Plan& p) { return written(p.recompute); },
     .says = "Activation checkpointing: none, full, selective (keeps attention and every second "
             "matrix product), every-K (blocks 0, K, 2K ... fully), or per range of blocks."},
    FORESHARD_WORD(compile, kUpTo<Compile::kModel>,
                   "torch.compile: of each block by itself, or of the whole model."),
    FORESHARD_WORD(
        attention, kUpTo<AttentionKernel::kFlashAllHeads>,
        "Kernel of attention: a backend of scaled_dot_product_attention (flash-all-heads: flash "
        "behind keys and values that the code repeats for every head), one that the training "
        "code calls itself, or the model's own products and softmax (eager: transformers' "
        "attn_implementation). What a fused kernel does not take (fp32 with fewer key heads than "
        "query heads, heads that are broadcast, a mask) runs as PyTorch dispatches it."),
    FORESHARD_WORD(kernels.norm, kUpTo<ModuleKernels::Norm::kEagerFp32>,
                   "Norms: one kernel in the compute dtype, one kernel on fp32, or (RMSNorm) a "
                   "kernel for each operation on an fp32 copy, cast back before the weight or "
                   "(eager-fp32) behind it."),
    FORESHARD_WORD(kernels.rope, kUpTo<ModuleKernels::Rope::kFused>,
                   "Rotary embedding: complex numbers in fp32, a rotated half with two products, "
                   "or one kernel."),
    FORESHARD_WORD(kernels.residual, kUpTo<ModuleKernels::Residual::kFp32>,
                   "Element type of the stream between blocks: dtype.param (with autocast: its "
                   "dtype), or fp32."),
    FORESHARD_WORD(kernels.activation, kUpTo<ModuleKernels::Activation::kEager>,
                   "Activation functions: one kernel, or as transformers writes them (eager: "
                   "gelu_new is several operations)."),
    FORESHARD_FLAG(kernels.unpads,
                   "Tokens are packed before attention and padded behind it (flash-attn's "
                   "unpad_input and pad_input)."),
    FORESHARD_COUNT(
        kernels.train_metrics, 0, plan_limits::kMetrics,
        "Further passes of cross entropy over the logits, without gradient, in each micro-batch."),
    FORESHARD_FLAG(kernels.scan,
                   "Blocks are one loop over stacked tensors (jax.lax.scan): what backward needs "
                   "is copied into the stack and out of it.",
                   .quiet = true),
    FORESHARD_FLAG(kernels.keeps_cache,
                   "Keys and values of every block are kept until the model's outputs go "
                   "(transformers' use_cache left on in training).",
                   .quiet = true),
    FORESHARD_FLAG(kernels.strided_bias,
                   "The bias of positions (T5) lies heads innermost, which no fused kernel takes "
                   "(transformers 5.15 to 5.19).",
                   .quiet = true),
    FORESHARD_FLAG(kernels.given_mask,
                   "Attention is given a mask of pairs although no batch is padded (transformers' "
                   "model that torch.compile traces as a whole).",
                   .quiet = true),
    FORESHARD_KEY(
        "loss", kLossName, d.plan.loss = read_loss(n), written(p.loss),
        "Cross entropy. eager: over fp32 logits, an operation at a time; eager-compute: over the "
        "logits as they are. compiled: one kernel forward, one backward. fused: the gradient takes "
        "the logits' place. fused-linear: the head's product is part of it, a tile of tokens at a "
        "time, and no logits are kept (Liger). tiled-linear: tiles of tokens and words, made again "
        "in backward, which adds the gradients up in fp32 (TRL). chunked-N: eager over N parts of "
        "the sequence."),
    FORESHARD_WORD(logits, kUpTo<Logits::kHeld>,
                   "held: the training loop keeps what the model returned while backward runs: "
                   "fp32 logits, or with loss_in_forward those of the head."),
    FORESHARD_WORD(reference, kUpTo<Reference::kUnits>,
                   "A frozen second model of this shape, whose forward runs behind each forward "
                   "(DPO's reference, a teacher): whole on every rank, one unit of fully_shard "
                   "(TRL), or units as the trained one; base: none is held, the trained one "
                   "runs, its adapters off.",
                   .quiet = true),
    FORESHARD_FLAG(loss_in_forward,
                   "The model computes its loss itself, as transformers' models that are given "
                   "labels: before the root's post-forward hook, not behind it.",
                   .quiet = true),
    FORESHARD_WORD(float8, kUpTo<Float8::kNvfp4>,
                   "Linear layers of the blocks in fp8, by scaling recipe, or in four bits."),
    FORESHARD_COUNT(float8_wide_blocks, 0, plan_limits::kSteps,
                    "Blocks at the end that stay in the compute dtype (Megatron-Core's "
                    "num_layers_at_end_in_bf16).",
                    .quiet = true),
    FORESHARD_FLAG(float8_all_gather,
                   "Their weights are gathered in fp8, with scales computed behind the optimizer's "
                   "step (torchao's enable_fsdp_float8_all_gather and "
                   "precompute_float8_dynamic_scale_for_fsdp). Tensorwise, fsdp2."),
    FORESHARD_WORD(experts, kUpTo<ExpertKernels::kTransformers>,
                   "How the products of experts are launched: one grouped product for all, or one "
                   "after the other, for which the host waits for the rows of each, or one for all "
                   "with what transformers' grouped_mm launches around it."),
    FORESHARD_WORD(recompute_keeps, kUpTo<SelectivePolicy::kDotsExceptMlp>,
                   "What selective recompute keeps: attention and every second matrix product "
                   "(torchtitan), or attention and every one whose result backward needs (dots, "
                   "native), or the products around attention but not attention itself "
                   "(MaxText's save_dot_except_mlp).",
                   .quiet = true),
    FORESHARD_WORD(recompute_wraps, kUpTo<CheckpointWraps::kUnit>,
                   "What activation checkpointing wraps: the module inside its unit, or the unit "
                   "with its hooks (fsdp2 only)."),
    FORESHARD_FLAG(recompute_early_stop,
                   "Recomputation ends when all that backward reads is there "
                   "(torch.utils.checkpoint.set_checkpoint_early_stop). False: the whole module "
                   "runs again, as before PyTorch 2.1."),
    FORESHARD_FLAG(recompute_reentrant,
                   "Full recomputation by torch.utils.checkpoint(use_reentrant=True), whose "
                   "backward runs the whole block again, then a backward of its own, and keeps the "
                   "block's output and that one's gradient to its end."),
    FORESHARD_WORD_AT("dtype.param", param_dtype, kUpTo<DType::kFp32>,
                      "Of gathered parameters and, without autocast, of compute."),
    FORESHARD_KEY("dtype.autocast", words<kDTypeOrNone>(), d.plan.autocast = read_optional_dtype(n),
                  written(p.autocast),
                  "Products and attention compute in it while parameters stay in dtype.param "
                  "(torch.autocast; fsdp2, fsdp1)."),
    {.path = "dtype.reduce",
     .type = words<kDTypeOrNone>(),
     .read = read_reduce_dtype,
     .value = [](const Plan& p) { return Json(word_of(p.reduce_dtype)); },
     .says = "Of the gradient reduction. none: not given to PyTorch, which takes dtype.param, from "
             "2.15 on dtype.master."},
    FORESHARD_WORD_AT("dtype.master", master_dtype, kUpTo<DType::kFp32>,
                      "Of the stored, sharded parameters that the optimizer updates."),
    FORESHARD_KEY("dtype.output", words<kDTypeOrNone>(),
                  d.plan.output_dtype = read_optional_dtype(n), written(p.output_dtype),
                  "The outputs of the model are cast to it (fsdp2; fsdp1: fp32, as Accelerate does "
                  "under autocast); none: they stay."),
    FORESHARD_WORD_AT(
        "accumulation.mode", accumulation, kUpTo<AccumulationMode::kKeepUnsharded>,
        "reduce_each: every micro-batch reduces; keep_unsharded: gradients stay whole "
        "until the last one."),
    FORESHARD_WORD_AT("accumulation.all_reduce", accumulation_details.all_reduce,
                      kUpTo<When::kLast>,
                      "With replicas: all-reduce in each micro-batch or only in the last "
                      "(set_requires_all_reduce; fsdp2 only)."),
    FORESHARD_WORD_AT("accumulation.reshard_after_backward",
                      accumulation_details.reshard_after_backward, kUpTo<When::kLast>,
                      "Parameters freed after each backward or only after the last "
                      "(set_reshard_after_backward; fsdp2 only)."),
    FORESHARD_WORD_AT("accumulation.is_last_backward", accumulation_details.is_last_backward,
                      kUpTo<When::kLast>,
                      "Each backward waits for its reductions and forgets the order of forward, or "
                      "only the last (set_is_last_backward; fsdp2 only)."),
    FORESHARD_KEY("frozen", kFrozenLayers, d.plan.frozen = read_frozen(n), written(p.frozen),
                  "What is not trained (fsdp2 only): none, or a list of embedding, norm (the final "
                  "one), head, tower (the vision tower) and numbers of blocks."),
    FORESHARD_COUNT(lora.rank, 0, plan_limits::kRank,
                    "Of the adapters; 0: none, everything is trained."),
    FORESHARD_KEY("lora.targets", kLoraTargets, d.plan.lora.targets = read_lora_targets(n),
                  written_lora_targets(p.lora.targets),
                  "Linear modules that get an adapter: all-linear (all but the head) or a list of "
                  "names, which match as suffixes."),
    FORESHARD_NUMBER(lora.dropout, number(0, 0.999),
                     "Of the adapters' input: 0, or a probability, which keeps a mask."),
    FORESHARD_WORD(lora.base, kUpTo<Lora::Base::kNf4>,
                   "What frozen parameters are stored in: dtype.master, dtype.param, or (linear "
                   "layers but the head) 4-bit blocks, dequantized before each product."),
    FORESHARD_KEY("lora.modules_to_save", kSavedModules, read_saved_modules(n, d.plan.lora),
                  written_saved_modules(p.lora),
                  "Modules of which a copy is trained whole beside the frozen one (PEFT's word): "
                  "none, or a list of embedding and head.",
                  .quiet = true),
    FORESHARD_WORD(ignored, kUpTo<Ignored::kNorms>,
                   "Parameters that every rank keeps whole (ignored_params): none "
                   "or the weights of norms, which then cannot be clipped."),
    FORESHARD_WORD(
        optimizer.kind, kUpTo<Optimizer::Kind::kPagedAdamW8bit>,
        "adamw keeps two states per parameter, sgd none, sgd-momentum one; adafactor "
        "(transformers') two vectors for a matrix. Of bitsandbytes: adamw-8bit, states of "
        "a byte an element; paged ones, states in managed memory."),
    FORESHARD_WORD(optimizer.implementation, kUpTo<Optimizer::Implementation::kLoop>,
                   "foreach: PyTorch's default on GPUs, one temporary of the size of one state; "
                   "fused: none; loop: one tensor after the other."),
    FORESHARD_WORD(optimizer.groups, kUpTo<Optimizer::Groups::kDecay>,
                   "Groups of parameters: one, or (decay) biases and norms in a second one, as "
                   "transformers' Trainer has it. Each is flat by itself under ZeRO.",
                   .quiet = true),
    FORESHARD_WORD(optimizer.state, kUpTo<DType::kFp32>, "Element type of the states."),
    FORESHARD_KEY("optimizer.clip_norm", kPositiveOrNone,
                  d.plan.optimizer.clip_norm = read_optional_positive(n),
                  written(p.optimizer.clip_norm),
                  "Largest norm of the gradient; none switches clipping off."),
    FORESHARD_NUMBER(optimizer.learning_rate, number(0, 1e3),
                     "Rate after warm-up; changes numbers, not time."),
    FORESHARD_KEY("optimizer.beta1", kDecay, d.plan.optimizer.beta1 = read_decay(n),
                  Json(p.optimizer.beta1), "AdamW's decay of the first moment."),
    FORESHARD_KEY("optimizer.beta2", kDecay, d.plan.optimizer.beta2 = read_decay(n),
                  Json(p.optimizer.beta2), "AdamW's decay of the second moment."),
    FORESHARD_KEY("optimizer.epsilon", number(std::numeric_limits<float>::min(), 1),
                  d.plan.optimizer.epsilon = read_epsilon(n), Json(p.optimizer.epsilon),
                  "AdamW's guard against division by zero."),
    FORESHARD_NUMBER(optimizer.weight_decay, number(0, 1e3),
                     "Decoupled decay of parameters with two or more dimensions."),
    FORESHARD_COUNT(optimizer.warmup_steps, 0, plan_limits::kSteps,
                    "Steps over which the learning rate rises linearly."),
    FORESHARD_KEY(
        "optimizer.decay_steps", or_number<kNone>(count(1, plan_limits::kSteps)),
        d.plan.optimizer.decay_steps = read_optional_steps(n), written(p.optimizer.decay_steps),
        "Steps after warm-up over which the rate falls along half a cosine; none: it stays."),
    FORESHARD_NUMBER(optimizer.min_learning_rate, number(0, 1e3), "Rate after the decay."),
    FORESHARD_WORD(offload, kUpTo<Offload::kCpuUnpinned>,
                   "Shards, gradients and states in host memory (CPUOffloadPolicy; fsdp2 only), "
                   "pinned or not."),
    FORESHARD_COUNT_AT("buffers.reduce_scatter", reduce_scatter_buffers, 1, plan_limits::kBuffers,
                       "Inputs of reduce-scatters alive at once."),
    FORESHARD_WORD(communicators, kUpTo<Communicators::kSeparate>,
                   "Whether reduce-scatters queue behind all-gathers (shared) or not (separate)."),
    FORESHARD_WORD(collectives.kernels, kUpTo<CollectiveKernels::kCopyEngine>,
                   "Inside one NVLink domain: NCCL's choice, kernels on symmetric memory (2.27), "
                   "or all-gathers by copy engines (2.28), which hold no multiprocessor."),
    FORESHARD_COUNT(collectives.max_ctas, 0, plan_limits::kCtas,
                    "NCCL_MAX_CTAS: blocks that a collective may hold; 0: NCCL's choice."),
    FORESHARD_KEY(
        "reduction.divide_factor", kPositiveOrNone,
        d.plan.gradient_divide_factor = read_optional_positive(n),
        written(p.gradient_divide_factor),
        "Gradients are divided by it (set_gradient_divide_factor); none: by the number of ranks."),
    FORESHARD_FLAG_AT("reduction.force_sum", force_sum_reduction,
                      "Collectives add up, divisions are kernels of their own "
                      "(set_force_sum_reduction_for_comms)."),
    FORESHARD_KEY("allocator", kAllocatorSettings, d.plan.allocator = read_allocator(n),
                  written(p.allocator),
                  "PYTORCH_ALLOC_CONF of the ranks: what PyTorch's caching allocator is told."),
    FORESHARD_FLAG(empties_cache,
                   "torch.cuda.empty_cache() between forward and backward of every micro-batch "
                   "(transformers' torch_empty_cache_steps).",
                   .quiet = true),
    FORESHARD_WORD(built_on, kUpTo<BuiltOn::kDevice>,
                   "Where the model was made before it was sharded, which stays in the caching "
                   "allocator as segments: on the host, on the device, or (meta) nowhere.",
                   .quiet = true),
    // fsdp1.*, ddp.*, zero.* stand here (library_keys.cpp).
    FORESHARD_WORD(host_sync, kUpTo<HostSync::kStep>,
                   "step: the host waits for the device once per step, as loss.item() does."),
    FORESHARD_WORD(
        reduction_order, kUpTo<ReductionOrder::kMicrobatch8>,
        "In which order gradients are summed. microbatch: in global micro-batch order, the same "
        "bits for any mesh.shard (the engine's default on CPU ranks); each replica sums its own "
        "share first, and with accumulation.mode keep_unsharded each rank does, so the bits are "
        "those of that number of replicas, or ranks. microbatch_2, _4, _8: the same, with products "
        "and sums over tokens in so many slices that are added in pairs: the same bits for any "
        "mesh.tp that divides it, too (native). library: as the communication library sums."),
    FORESHARD_KEY("evaluation.every", or_number<kNone>(count(1, plan_limits::kSteps)),
                  d.plan.evaluation.every = read_optional_steps(n), written(p.evaluation.every),
                  "Steps between evaluations."),
    FORESHARD_COUNT(evaluation.sequences, 1, plan_limits::kMicroBatch,
                    "Sequences of an evaluation, over all ranks."),
    FORESHARD_NUMBER(evaluation.held_back, number(0, 0.9),
                     "Part of the data that is never trained on."),
    FORESHARD_FLAG(evaluation.in_step,
                   "A forward without gradients before each training step (fsdp2 only)."),
    FORESHARD_COUNT(seed, 0, plan_limits::kSeed,
                    "Of the initial parameters and the order of the data."),
    FORESHARD_COUNT(
        rank, 0, plan_limits::kMesh - 1,
        "Whose memory is told: with uneven shards the last ranks hold less (fsdp2 only)."),
};

}  // namespace

std::span<const PlanKey> compute_keys() { return kComputeKeys; }

}  // namespace foreshard
