// What of a plan the exported script refuses, and what it does otherwise than the plan says.
#include <fmt/format.h>

#include <string>

#include "interop/export/export_fsdp2_parts.h"
#include "sim/base/error.h"

namespace foreshard {

void refuse_script(std::string_view key, const std::string& what, const std::string& nearest) {
  throw Error(
      ExitCode::kMissingCapability,
      fmt::format("export --to fsdp2: unsupported: {}: {}; nearest plan: {}", key, what, nearest));
}

void check_script_can(const Plan& plan, const ModelDims& dims) {
  check_script_axes(plan, dims);
  if (plan.runtime.kind != RuntimeKind::kFsdp2) {
    refuse_script("runtime", fmt::format("{} is not FSDP2", to_string(plan.runtime.kind)),
                  "runtime: fsdp2");
  }
  if (plan.mesh.pp > 1) {
    refuse_script("mesh.pp", "its model is in one piece", "mesh.pp: 1, or --to torchtitan");
  }
  if (plan.lora.rank > 0) refuse_script("lora.rank", "adapters need PEFT", "lora.rank: 0");
  if (plan.float8 != Float8::kNone) refuse_script("float8", "fp8 needs torchao", "float8: none");
  if (plan.recompute_keeps != SelectivePolicy::kEverySecondMm) {
    refuse_script("recompute_keeps", "the script's policy is torchtitan's",
                  "recompute_keeps: every_second_mm");
  }
  if (plan.batch.images > 0) {
    refuse_script("batch.images", "the model reads images", "a model of words");
  }
  if (plan.ignored != Ignored::kNone) {
    refuse_script("ignored", "nobody would average the gradients of ignored parameters",
                  "ignored: none");
  }
  if (plan.frozen.tower) refuse_script("frozen", "there is no vision tower", "frozen: none");
  if (plan.optimizer.state != plan.master_dtype && plan.optimizer.kind == Optimizer::Kind::kAdamW) {
    refuse_script("optimizer.state",
                  "torch.optim.AdamW keeps its state in the dtype of the parameters",
                  fmt::format("optimizer.state: {}", to_string(plan.master_dtype)));
  }
}

ImportLedger script_ledger(const Plan& plan, const ModelDims& dims) {
  ExportLedger ledger;
  ledger.mapped("model, batch, mesh, units, dtype, optimizer", "constants and calls of the script");
  ledger.mapped("reshard_after_forward, unshard_in_backward, prefetch, recompute, accumulation",
                "fully_shard's arguments and methods, per unit and layer");
  if (dims.positions == Positions::kAlibi) {
    ledger.unsupported("attention with ALiBi",
                       "scaled_dot_product_attention takes no slopes: an additive mask, whose time "
                       "and memory differ from the forecast's");
  }
  if (dims.numerics.rope_scaling.kind == RopeScaling::Kind::kOther) {
    ledger.unsupported("rope_scaling", "only linear and llama3 are written; left out");
  }
  if (dims.logit_softcap) {
    ledger.unsupported("attention's soft cap", "scaled_dot_product_attention has none; left out");
  }
  if (plan.attention >= AttentionKernel::kFa1 &&
      plan.attention != AttentionKernel::kFlashAllHeads) {
    ledger.unsupported(fmt::format("attention: {}", to_string(plan.attention)),
                       "PyTorch's own flash kernel stands in");
  }
  if (plan.kernels.rope == ModuleKernels::Rope::kFused && dims.positions == Positions::kRotary) {
    ledger.unsupported("kernels.rope: fused", "PyTorch has none; several kernels stand in");
  }
  if (plan.kernels.residual == ModuleKernels::Residual::kFp32) {
    ledger.unsupported("kernels.residual: fp32", "the stream between blocks is in dtype.param");
  }
  if (plan.kernels.unpads) ledger.unsupported("kernels.unpads", "no token is padded");
  if (plan.kernels.scan) ledger.unsupported("kernels.scan", "every block has tensors of its own");
  if (plan.kernels.train_metrics > 0) {
    ledger.unsupported("kernels.train_metrics", "the script computes no metrics");
  }
  if (plan.loss.kind == Loss::Kind::kFused || plan.loss.has_product()) {
    const char* name = plan.loss.kind == Loss::Kind::kFused         ? "loss: fused"
                       : plan.loss.kind == Loss::Kind::kFusedLinear ? "loss: fused-linear"
                                                                    : "loss: tiled-linear";
    ledger.unsupported(name, "PyTorch has none; eager cross entropy stands in");
  }
  if (plan.collectives.kernels != CollectiveKernels::kDefault) {
    ledger.unsupported(fmt::format("collectives.kernels: {}", to_string(plan.collectives.kernels)),
                       "NCCL chooses; NCCL_CTA_POLICY and windows are the launcher's");
  }
  if (plan.step_frame != StepFrame::kPlain) {
    ledger.unsupported(fmt::format("step_frame: {}", to_string(plan.step_frame)),
                       "a step counts no tokens and logs nothing");
  }
  if (plan.evaluation.every) ledger.ignored("evaluation.every", "the script only trains");
  if (!plan.mesh.is_plain()) {
    ledger.unsupported("times in validate --run",
                       "over axes it compares collectives and memory (DIR/rank-0.timed.json)");
  }
  const ExpertParallel& rows = plan.expert_parallel;
  if (!rows.sent.empty() || !rows.counts.empty() || rows.zipf != 0) {
    ledger.unsupported("expert_parallel", "routers say where rows go, or --balanced");
  }
  ledger.ignored("rank", "every rank runs the script");
  ledger.ignored("cluster", "the ranks are the launcher's: foreshard export --to launch");
  return ledger.take();
}

}  // namespace foreshard
