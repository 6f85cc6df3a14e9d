#include "interop/export/export_fsdp2_limits.h"

#include <fmt/format.h>

#include <utility>

#include "sim/base/error.h"

namespace foreshard {
namespace {

// The script cuts blocks of an attention and a gated layer of separate projections, behind a norm
// each; torchtitan's plan for Llama.
bool can_be_cut(const ModelDims& dims) {
  const bool is_llama = dims.positions == Positions::kRotary && dims.norm == NormKind::kRms &&
                        dims.residual == Residual::kPreNorm && dims.activation == Activation::kSwiGlu &&
                        dims.qk_norm == HeadNorm::kNone;
  return is_llama && dims.moe.experts == 0 && dims.latent.kv_rank == 0 && !dims.fused_qkv && !dims.fused_gate_up &&
         !dims.tied && !dims.embedding_norm && !dims.embedding_scale && !dims.conv1d && !dims.output_bias &&
         !dims.mlp_bias;
}

struct Refusal {
  bool is_met = false;
  const char* key;
  std::string what, nearest;
};

}

void refuse_script(std::string_view key, const std::string& what, const std::string& nearest) {
  throw Error(
      ExitCode::kMissingCapability, "export --to fsdp2: unsupported: {}: {}; nearest plan: {}", key, what, nearest);
}

void check_script_can(const Plan& plan, const ModelDims& dims) {
  const bool has_axes = !plan.mesh.is_plain(), cuts = plan.mesh.tp > 1, shares = plan.mesh.cp > 1;
  const bool rings = plan.attention == AttentionKernel::kFlash || plan.attention == AttentionKernel::kCudnn;
  const Optimizer& optimizer = plan.optimizer;
  const Refusal refusals[] = {
      {has_axes && plan.compile != Compile::kNone, "compile", "layers with axes are eager here", "compile: none"},
      {has_axes && plan.offload != Offload::kNone, "offload", "gradients of axes are clipped on the GPU here",
          "offload: none"},
      {cuts && !can_be_cut(dims), "mesh.tp",
          "layers are cut as Llama's are (RMS norms, rotary, separate projections, an untied head)",
          "--to torchtitan, or mesh.tp: 1"},
      {cuts && !plan.tensor_parallel.sequence, "tensor_parallel.sequence", "norms are of a part of the positions",
          "tensor_parallel.sequence: true"},
      {cuts && plan.tensor_parallel.async, "tensor_parallel.async", "cut layers are eager here",
          "tensor_parallel.async: false"},
      {shares && plan.context_parallel.rotate == ContextParallel::Rotate::kUlysses, "context_parallel.rotate",
          "PyTorch's context parallel is a ring", "context_parallel.rotate: allgather"},
      {shares && (!rings || dims.positions == Positions::kAlibi), "mesh.cp",
          "the ring is of flash or cuDNN's attention, without a mask", "attention: flash, or mesh.cp: 1"},
      {plan.runtime.kind != RuntimeKind::kFsdp2, "runtime",
          fmt::format("{} is not FSDP2", to_string(plan.runtime.kind)), "runtime: fsdp2"},
      {plan.mesh.pp > 1, "mesh.pp", "its model is in one piece", "mesh.pp: 1, or --to torchtitan"},
      {plan.lora.rank > 0, "lora.rank", "adapters need PEFT", "lora.rank: 0"},
      {plan.float8 != Float8::kNone, "float8", "fp8 needs torchao", "float8: none"},
      {plan.recompute_keeps != SelectivePolicy::kEverySecondMm, "recompute_keeps",
          "the script's policy is torchtitan's", "recompute_keeps: every_second_mm"},
      {plan.batch.labelled > 0, "batch.labelled", "every token has a label", "batch.labelled: 0"},
      {plan.batch.images > 0, "batch.images", "the model reads images", "a model of words"},
      {plan.ignored != Ignored::kNone, "ignored", "nobody would average the gradients of ignored parameters",
          "ignored: none"},
      {plan.frozen.tower, "frozen", "there is no vision tower", "frozen: none"},
      {optimizer.state != plan.master_dtype && optimizer.kind == Optimizer::Kind::kAdamW, "optimizer.state",
          "torch.optim.AdamW keeps its state in the dtype of the parameters",
          fmt::format("optimizer.state: {}", to_string(plan.master_dtype))},
  };
  for (const Refusal& each : refusals)
    if (each.is_met) refuse_script(each.key, each.what, each.nearest);
}

void check_own(const Plan& plan) {
  using enum RuntimeKind;
  bool recomputes_some = false;
  for (const auto& range : plan.recompute.ranges) recomputes_some |= range.value == Recompute::kSelective;
  const bool frees = !plan.unshard_in_backward.value || !plan.unshard_in_backward.ranges.empty();
  const Refusal refusals[] = {
      {plan.runtime.kind != kFsdp2 && plan.runtime.kind != kDdp, "runtime",
          fmt::format("of a program of its own {} is the settings'", to_string(plan.runtime.kind)),
          "--to accelerate, --to deepspeed, or runtime: fsdp2"},
      {!plan.mesh.is_plain() || plan.mesh.pp > 1, "mesh", "how modules of a program are cut is not known",
          "mesh.tp, mesh.cp, mesh.ep, mesh.pp: 1"},
      {plan.recompute.value == Recompute::kSelective || recomputes_some, "recompute",
          "what is kept is a policy over the program's operations", "recompute: full"},
      {frees || plan.units.shard_dim != 0 || plan.gradient_divide_factor || plan.prefetch.async_unshard,
          "unshard_in_backward, units.shard_dim, reduction, prefetch.async_unshard", "are no call of the script's",
          "their defaults"},
      {plan.float8 != Float8::kNone, "float8", "fp8 needs torchao", "float8: none"},
      {plan.lora.rank > 0, "lora.rank", "adapters need PEFT", "lora.rank: 0"},
  };
  for (const Refusal& each : refusals)
    if (each.is_met) refuse_script(each.key, each.what, each.nearest);
}

void check_script_model(const ModelDims& dims) {
  const std::pair<bool, const char*> refusals[] = {
      {!dims.pattern.empty(), "layers of several kinds"},
      {dims.bidirectional || dims.residual == Residual::kPostNorm, "an encoder and its masked-language-model head"},
      {dims.latent.kv_rank > 0, "multi-head latent attention"},
      {dims.token_types > 0, "token types"},
      {dims.activation == Activation::kXielu, "xIELU"},
      {dims.positions == Positions::kSinusoidal, "sinusoidal positions"},
      {dims.moe.corrected, "a router with correction biases"},
      {dims.residual == Residual::kPostBranch, "norms behind the branches alone"},
      {dims.qk_norm == HeadNorm::kWhole || dims.qk_norm == HeadNorm::kUnweighted,
          "norms of q and k that are not of each head"},
      {dims.parts != BlockParts{} || dims.activation == Activation::kReGlu2, "gates and norms inside the branches"},
      {dims.norm == NormKind::kLayerUnweighted || dims.norm == NormKind::kRmsUnweighted, "norms without weights"},
      {dims.qk_norm == HeadNorm::kEach && dims.head_norm != NormKind::kRms, "LayerNorms of each head"},
      {dims.branch_scale || dims.logit_scale, "multipliers of branches or logits"},
      {dims.moe.fused_gate_up, "experts whose gate and up are one tensor"},
      {dims.sinks || dims.moe.bias, "attention sinks and biases of experts"},
      {!dims.unrotated_layers.empty(), "layers without positions"},
      {dims.head_bias, "a head with a bias"},
  };
  for (const auto& [is_met, what] : refusals) {
    if (!is_met) continue;
    throw Error(ExitCode::kMissingCapability,
        "export --to fsdp2: unsupported: {} ({}): {}; the script is written for decoders such as llama, qwen, gpt2, "
        "mpt and mixtral",
        dims.name, dims.family, what);
  }
}

ImportLedger script_ledger(const Plan& plan, const ModelDims& dims) {
  const Loss::Kind loss = plan.loss.kind;
  const ExpertParallel& rows = plan.expert_parallel;
  const struct {
    bool is_met;
    std::string what, why;
  } others[] = {
      {dims.positions == Positions::kAlibi, "attention with ALiBi",
          "scaled_dot_product_attention takes no slopes: an additive mask, whose time and memory differ from the "
          "forecast's"},
      {dims.numerics.rope_scaling.kind == RopeScaling::Kind::kOther, "rope_scaling",
          "only linear and llama3 are written; left out"},
      {dims.logit_softcap, "attention's soft cap", "scaled_dot_product_attention has none; left out"},
      {plan.attention >= AttentionKernel::kFa1 && plan.attention != AttentionKernel::kFlashAllHeads,
          fmt::format("attention: {}", to_string(plan.attention)), "PyTorch's own flash kernel stands in"},
      {plan.kernels.rope == ModuleKernels::Rope::kFused && dims.positions == Positions::kRotary, "kernels.rope: fused",
          "PyTorch has none; several kernels stand in"},
      {plan.kernels.residual == ModuleKernels::Residual::kFp32, "kernels.residual: fp32",
          "the stream between blocks is in dtype.param"},
      {plan.units.head_calls > 1, "units.head_calls", "the head is called once"},
      {plan.kernels.unpads, "kernels.unpads", "no token is padded"},
      {plan.kernels.scan, "kernels.scan", "every block has tensors of its own"},
      {plan.kernels.train_metrics > 0, "kernels.train_metrics", "the script computes no metrics"},
      {loss == Loss::Kind::kFused || plan.loss.has_product(),
          loss == Loss::Kind::kFused         ? "loss: fused"
          : loss == Loss::Kind::kFusedLinear ? "loss: fused-linear"
                                             : "loss: tiled-linear",
          "PyTorch has none; eager cross entropy stands in"},
      {plan.collectives.kernels != CollectiveKernels::kDefault,
          fmt::format("collectives.kernels: {}", to_string(plan.collectives.kernels)),
          "NCCL chooses; NCCL_CTA_POLICY and windows are the launcher's"},
      {plan.step_frame != StepFrame::kPlain, fmt::format("step_frame: {}", to_string(plan.step_frame)),
          "a step counts no tokens and logs nothing"},
  };
  ExportLedger ledger;
  ledger.mapped("model, batch, mesh, units, dtype, optimizer", "constants and calls of the script");
  ledger.mapped("reshard_after_forward, unshard_in_backward, prefetch, recompute, accumulation",
      "fully_shard's arguments and methods, per unit and layer");
  for (const auto& each : others)
    if (each.is_met) ledger.unsupported(each.what, each.why);
  if (plan.evaluation.every) ledger.ignored("evaluation.every", "the script only trains");
  if (!plan.mesh.is_plain()) {
    ledger.unsupported(
        "times in validate --run", "over axes it compares collectives and memory (DIR/rank-0.timed.json)");
  }
  if (!rows.sent.empty() || !rows.counts.empty() || rows.zipf != 0)
    ledger.unsupported("expert_parallel", "routers say where rows go, or --balanced");
  ledger.ignored("rank", "every rank runs the script");
  ledger.ignored("cluster", "the ranks are the launcher's: foreshard export --to launch");
  return ledger.take();
}

}
