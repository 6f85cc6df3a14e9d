// Columns become assignments of a plan's keys, in the words that a user would write.
#include "interop/frameworks/training_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "sim/base/lookup.h"
#include "sim/spec/checks/plan_check.h"
#include "sim/spec/fsdp2_version.h"
#include "sim/spec/gpu_generation.h"
#include "sim/spec/preset.h"

namespace foreshard {
namespace {

// A code that fuses by hand, in fp8, is Megatron-Core's: its FSDP gathers into flat buffers, ahead, in place.
bool is_megatron(const TrainingRow& row) {
  return is_fused_by_hand(row) && row.has("fp8") && row.word("fp8") != "none";
}

// Of one without preset that partitions the optimizer alone.
bool has_distributed_optimizer(const TrainingRow& row) {
  const std::string_view norm = row.word("norm_impl");
  const std::string_view offload = row.word("offload");
  return find_stack(likely_stack(row)) == nullptr && (offload.empty() || offload == "none") &&
         row.word("optimizer_impl") == "adamw_fused" && (norm == "rms_fused" || norm == "layer_norm_low_precision");
}

bool is_nanotron(const TrainingRow& row) { return row.word("stack") == "nanotron"; }

// Over axes an optimizer that is partitioned alone is what Megatron-Core's is.
bool is_megatron_core(const TrainingRow& row) {
  return row.word("runtime") == "zero1" && (has_axes(row) || has_distributed_optimizer(row) || is_nanotron(row));
}

// DDP has no offload. An optimizer on the host beside it (torchao's CPUOffloadOptimizer on one GPU)
// takes gradients down and brings parameters up, which is what ZeRO-2's does.
std::string_view told_runtime(const TrainingRow& row) {
  const std::string_view runtime = row.word("runtime"), offload = row.word("offload");
  if (is_megatron_core(row)) return "megatron";
  return runtime == "ddp" && (offload == "optimizer" || offload == "params") ? "zero2" : runtime;
}

// PyTorch's version as far as a runtime has it: older ones are forecast as the oldest.
std::string runtime_of(const TrainingRow& row) {
  const std::string_view runtime = told_runtime(row);
  // FSDP1 gathers in place, as these do.
  if (runtime == "xla_fsdp" || (runtime == "fsdp2" && is_megatron(row) && !has_axes(row))) return "fsdp1";
  const std::optional<TorchVersion> torch = torch_version(row);
  if (runtime == "megatron") {  // PyTorch 2.3 is of the month in which its layers became others'
    const bool is_local = is_nanotron(row) || (torch && *torch < TorchVersion{2, 3} && !find_stack(likely_stack(row)) &&
                                                  (!row.has("fp8") || row.word("fp8") == "none"));
    return is_local ? fmt::format("megatron@{}", kLocalMegatron) : "megatron";
  }
  if (runtime.starts_with("zero") || runtime == "ddp") return std::string(runtime);
  if (!torch) return std::string(runtime);
  const int oldest = has_axes(row) ? kOldestFsdp2WithAxes : kOldestFsdp2;
  const int minor = torch->major < 2 ? kOldestFsdp2 : std::clamp(torch->minor, oldest, kNewestFsdp2);
  return fmt::format("{}@2.{}", runtime, minor);
}

class Assignments {
 public:
  explicit Assignments(const TrainingRow& row) : row_(row) {}

  void add(std::string assignment) { list_.push_back(std::move(assignment)); }
  // What the word in `column` says: of `key`, or all of it.
  void map(std::string_view column, std::string_view key = "") {
    for (const auto& [name, value] : plan_keys(row_, column))
      if (key.empty() || key == name) add(fmt::format("{}={}", name, value));
  }
  std::vector<std::string> list() && { return std::move(list_); }

 private:
  const TrainingRow& row_;
  std::vector<std::string> list_;
};

bool is_ddp(const TrainingRow& row) { return told_runtime(row) == "ddp"; }
bool is_fsdp(const TrainingRow& row) { return contains(row.word("runtime"), "fsdp"); }

// Stored and gathered in fp32 and trained on these GPUs: under autocast to bf16. So is DDP, which
// gathers nothing, unless its parameters are said to be in bf16.
bool is_under_autocast(const TrainingRow& row) {
  const bool is_low = row.word("gather_dtype") == "bf16" || row.word("master_dtype") == "bf16";
  return row.word("gather_dtype") == "fp32" || (is_ddp(row) && !is_low);
}

// What is likely where neither a stack nor a column says: autocast's fp32 norms and stream over
// fp32 weights; the flash attention of the time; Llama's norm of several kernels, which PyTorch 2.9
// fused (2025-10); recomputation of whole modules before PyTorch 2.1.
void add_era(const TrainingRow& row, Assignments& plan) {
  if (row.word("runtime") == "xla_fsdp") return plan.add("stack=maxtext");
  if (is_before_fa2(row)) plan.add("attention=fa1");
  const std::optional<TorchVersion> torch = torch_version(row);
  if (torch && *torch < TorchVersion{2, 1}) plan.add("recompute_early_stop=false");
  if (is_under_autocast(row)) {
    plan.add("kernels.norm=fp32");
    plan.add("kernels.residual=fp32");
  }
  const std::string_view arch = row.word("arch");
  const bool is_gpt = arch == "mpt" || arch == "gpt";
  if (!is_gpt && row.word("commit_date") < "2025-10") plan.add("kernels.norm=eager");
}

// scaled_dot_product_attention's flash backend is FlashAttention-1 until PyTorch 2.2 (release notes
// of 2.2). Where it was left to PyTorch, 2.5 put cuDNN first from Hopper on; 2.5.1 took that back.
std::string_view sdpa_kernel(const TrainingRow& row, const Cluster& cluster) {
  const std::optional<TorchVersion> torch = torch_version(row);
  if (torch && *torch < TorchVersion{2, 2}) return "fa1";
  const bool is_free = row.word("attention_kernel") == "sdpa";
  const bool has_cudnn = generation_of(cluster.gpu).is_hopper_or_later();
  return is_free && torch == TorchVersion{2, 5} && has_cudnn ? "cudnn" : "flash";
}

void add_kernels(const TrainingRow& row, const Cluster& cluster, Assignments& plan) {
  plan.map("attention_kernel");
  if (const std::string_view said = row.word("attention_kernel"); said == "sdpa" || said == "sdpa_flash")
    plan.add(fmt::format("attention={}", sdpa_kernel(row, cluster)));
  plan.map("norm_impl");
  if (row.word("norm_impl") == "rms_fused" && likely_stack(row) != "internevo") plan.add("kernels.norm=compute");
  plan.map("rope_impl");
  plan.map("residual_dtype");
  plan.map("loss_impl");
  // Over axes the loss is PyTorch's; a fused one's kernels are a compiled one's.
  const bool is_fused = row.word("loss_impl") == "fused" || likely_stack(row) == "internevo";
  if (has_axes(row) && is_fused) plan.add("loss=compiled");
  if (row.has("train_metrics")) plan.add(fmt::format("kernels.train_metrics={}", row.count("train_metrics")));
  if (row.has("labelled")) plan.add(fmt::format("batch.labelled={}", row.count("labelled")));
  plan.map("compile");
  plan.map("experts");
  if (is_fused_by_hand(row)) plan.add("compile=blocks");  // the same kernels
  if (row.word("compile") == "loss_only" && !row.has("loss_impl")) plan.add("loss=compiled");
  plan.map("fp8");
  const std::string_view fp8 = row.word("fp8");
  const bool is_tensorwise = fp8 == "tensorwise" || fp8 == "unspecified";
  const bool by_hand = is_fused_by_hand(row);
  const bool is_engine = by_hand || told_runtime(row) == "megatron";
  if (is_tensorwise && is_engine) plan.add("float8=current");  // TransformerEngine's, not torchao's
  // Other runtimes and scalings gather in the compute dtype.
  const bool can_gather = told_runtime(row) == "megatron" ? is_tensorwise || fp8 == "delayed"
                                                          : row.word("runtime") == "fsdp2" && is_tensorwise && !by_hand;
  if (can_gather && row.count("fp8_all_gather") == 1) plan.add("float8_all_gather=true");
}

// DDP's autocast is its own key, and DeepSpeed converts the model: dtype.param is what both compute
// in. DeepSpeed's partitions are fp32.
void add_dtypes(const TrainingRow& row, Assignments& plan) {
  if (is_fsdp(row)) plan.map("gather_dtype");
  else plan.add("dtype={param: bf16, autocast: none}");
  plan.map("reduction_dtype");
  const bool is_low = told_runtime(row) == "zero3" && row.word("optimizer_state") == "bf16";
  if (is_fsdp(row) || is_ddp(row) || is_low) plan.map("master_dtype");
  plan.map("optimizer_impl");
  if (row.word("optimizer_impl") == "muon_fused" && told_runtime(row) == "ddp") plan.add("optimizer.kind=muon");
  plan.map("optimizer_state");
  plan.map("adapters");
}

void add_groups(const TrainingRow& row, std::string_view runtime, Assignments& plan) {
  const std::int64_t gpus = row.count("n_gpus"), shard = row.count("shard_group", gpus);
  const bool in_groups = runtime == "zero1" && shard < gpus;
  if (runtime == "ddp") {
    plan.add(fmt::format("mesh={{shard: 1, replicate: {}}}", gpus));
    if (gpus == 1) plan.add("ddp.gradient_as_bucket_view=true");  // nothing is wrapped: no buckets
  } else if (row.has("shard_group") && (in_groups || !runtime.starts_with("zero"))) {
    if (in_groups) plan.add("zero.partition_in_groups=true");
    plan.add(fmt::format("mesh={{shard: {}, replicate: {}}}", shard,
        row.count("replicate_group", gpus / std::max<std::int64_t>(1, shard))));
  }
}

void add_axes(const TrainingRow& row, Assignments& plan) {
  for (const char* axis : {"tp", "cp", "ep", "etp", "pp"})
    if (row.count(axis, 1) > 1) plan.add(fmt::format("mesh.{}={}", axis, row.count(axis)));
  plan.map("cp_exchange");
  if (row.word("dispatcher") == "deepep") plan.add("expert_parallel.dispatcher=deepep");
  if (row.has("sequence_parallel"))
    plan.add(fmt::format("tensor_parallel.sequence={}", row.word("sequence_parallel") != "no"));
  if (row.word("sequence_parallel") == "kept") plan.add("tensor_parallel.keeps_gathered=true");
  if (const auto zipf = row.number("expert_zipf")) plan.add(fmt::format("expert_parallel.zipf={}", *zipf));
  if (row.count("async_tp") == 1) plan.add("tensor_parallel.async=true");
  plan.map("logits");
}

void add_megatron(const TrainingRow& row, Assignments& plan) {
  if (row.word("overlap") == "no") plan.add("megatron={overlap_grad_reduce: false, overlap_param_gather: false}");
  if (row.word("expert_overlap") == "yes" && row.count("ep", 1) > 1) plan.add("megatron.overlap_expert_parallel=true");
  plan.map("distributed_optimizer");
  plan.map("cuda_graphs");
  // Where queries, keys and values are one product, it has one adapter.
  if (row.word("adapters").ends_with("_attention") && is_fused_by_hand(row))
    plan.add("lora.targets=[qkv_proj, o_proj]");
}

// `is_flat`: FSDP1's flat parameters are of one module each, and so were FSDP2's units until PyTorch 2.5 (not
// torchtitan's, under axes). A table that is head as well is in one unit with it: there, the root's.
void add_units(const TrainingRow& row, bool is_flat, bool told_as_fsdp1, Assignments& plan) {
  const std::optional<TorchVersion> torch = torch_version(row);
  const bool is_single = is_flat || (!has_axes(row) && torch && *torch < TorchVersion{2, 5});
  const bool is_tied = row.count("tied_embeddings") == 1;
  // A loss with the head's product in it calls no head, which then is no unit by itself.
  const bool is_called = !row.word("loss_impl").ends_with("_linear");
  const bool is_root = row.word("embedding_unit") != "own" || (is_single && (is_tied || !is_called));
  if (is_root) plan.add("units={embedding: root, head: root}");
  else if (is_tied) plan.add("units={embedding: with_head, head: with_norm}");
  else plan.add(fmt::format("units={{embedding: own, head: {}}}", is_single ? "own" : "with_norm"));
  const std::string_view reshard = row.word("reshard");
  if (reshard == "always_except_last") {
    // The unit that holds the head; tied, it is the first, for the embedding is in it.
    const std::int64_t last = is_root ? row.count("n_layers") : is_tied ? 0 : row.count("n_layers") + 1;
    plan.add(fmt::format("reshard_after_forward=[{{units: all, value: always}}, {{units: {}, value: never}}]", last));
  } else if (!reshard.empty()) {
    // What is told as FSDP1 has no smaller groups: gathered again from all.
    const bool is_group = reshard.find_first_not_of("0123456789") == std::string_view::npos;
    plan.add(fmt::format("reshard_after_forward={}", is_group && told_as_fsdp1 ? "always" : reshard));
  }
}

void add_fsdp1(const TrainingRow& row, Assignments& plan) {
  if (row.has("adapters")) plan.add("fsdp1.use_orig_params=true");  // which lie beside frozen ones
  plan.map("prefetch_kind");
  if (row.count("forward_prefetch") == 1) plan.add("prefetch.forward=1");
  if (row.has("limit_all_gathers"))
    plan.add(fmt::format("fsdp1.limit_all_gathers={}", row.count("limit_all_gathers") == 1 ? "true" : "false"));
}

void add_sharding(const TrainingRow& row, Assignments& plan) {
  const std::string_view runtime = told_runtime(row);
  add_groups(row, runtime, plan);
  if (has_axes(row)) add_axes(row, plan);
  plan.map("accumulation");
  if (runtime != "xla_fsdp") plan.add("host_sync=step");  // loss.item()
  if (runtime == "megatron") return add_megatron(row, plan);
  const bool is_zero = runtime.starts_with("zero");
  if (runtime == "ddp" || is_zero) {
    plan.map("offload", is_zero ? "zero.offload_optimizer" : "offload");
    if (runtime == "zero3") plan.map("offload", "zero.offload_param");
    return;
  }
  const bool is_flat = runtime != "fsdp2" || (is_megatron(row) && !has_axes(row));
  add_units(row, is_flat, is_flat && runtime != "fsdp1", plan);
  plan.map("offload", "offload");
  if (runtime == "fsdp2") {
    if (!is_flat) return;
    plan.add("prefetch.forward=1");
    plan.add("fsdp1={limit_all_gathers: false, use_orig_params: true, gradients_in_place: true}");
    return;
  }
  // Dynamo supports FSDP1 only so.
  const std::string_view compiled = row.word("compile");
  if (compiled == "block" || compiled == "full" || is_fused_by_hand(row)) plan.add("fsdp1.use_orig_params=true");
  if (runtime == "fsdp1") add_fsdp1(row, plan);
}

void add_recompute(const TrainingRow& row, Assignments& plan) {
  const std::string_view said = row.word("recompute");
  if (said.starts_with("every_")) {
    plan.add(fmt::format("recompute=every-{}", said.substr(6)));
    return;
  }
  plan.map("recompute");
  std::string modules(row.word("recompute_modules"));
  if (modules.empty() || told_runtime(row) != "megatron") return;
  std::ranges::replace(modules, ' ', ',');
  plan.add("recompute=selective");
  plan.add(fmt::format("megatron.recompute_modules=[{}]", modules));
}

// What a preset's code did until some day.
void add_dated_habits(const TrainingRow& row, Assignments& plan) {
  // The model returned fp32 logits and the loop kept them until pytorch/torchtitan#391.
  if (row.word("stack") == "torchtitan_2024" && row.word("loss_impl") == "eager_fp32" &&
      row.word("commit_date") < "2024-06-12")
    plan.add("logits=held");
  // Until transformers 5 (2025-12) checkpoints were reentrant.
  if (row.word("stack") == "hf_trainer" && row.word("commit_date") < "2025-12") plan.add("recompute_reentrant=true");
  // Switched off by pytorch/torchtitan#1580.
  if (row.word("stack") == "torchtitan_2025" && row.word("commit_date") < "2025-08-18")
    plan.add("recompute_early_stop=true");
  // PyTorch fused its norm in 2.9; from then on torchtitan put cuDNN's attention first
  // (models/attention.py, sdpa_kernel(set_priority=True)).
  const std::optional<TorchVersion> torch = torch_version(row);
  if (row.word("stack") == "torchtitan_2025" && torch && *torch >= TorchVersion{2, 9}) {
    if (!row.has("norm_impl")) plan.add("kernels.norm=compute");
    if (!row.has("attention_kernel")) plan.add("attention=cudnn");
  }
}

}

// What does not divide is taken off the ends. Two layers: the embedding and the loss count as one
// each (account_for_embedding_in_pipeline_split and account_for_loss_in_pipeline_split, which
// recipes set for Llama-3.1-405B's 126 and Qwen3-235B's 94 layers); else the last stage lacks as
// many as it can (for DeepSeek-V3's 61 its recipe's layout is "Et*4|(t*4|)*14tmL" on 16 stages and
// "Et|(tt|)*30mL" on 32; m, a block of multi-token prediction, comes on top).
std::vector<std::string> pipeline_assignments(const TrainingRow& row, const ModelSpec& model) {
  const std::int64_t chunks = row.count("vp", 1), stages = row.count("pp", 1) * chunks;
  const std::int64_t predictions = std::ranges::count_if(
      model.order, [&](const auto& layer) { return contains(model.kinds[at(layer.kind)].name, " prediction"); });
  const std::int64_t blocks = model.block_count() - predictions;
  const std::int64_t missing = (stages - blocks % stages) % stages;
  const std::int64_t share = (blocks + missing) / stages;
  std::int64_t first = missing == 2 ? 1 : std::max<std::int64_t>(0, missing - share);
  std::int64_t last = row.count("last_stage_less", missing - first - predictions);
  // What the last has more of two, the first has less.
  if (last < 0 && stages == 2) first -= std::exchange(last, 0);
  std::vector<std::string> list = {fmt::format("pipeline.first_stage_less_layers={}", first),
      fmt::format("pipeline.last_stage_less_layers={}", last)};
  if (chunks > 1) {
    list.push_back("pipeline.schedule=Interleaved1F1B");
    list.push_back(fmt::format("pipeline.stages_per_rank={}", chunks));
  }
  return list;
}

bool has_axes(const TrainingRow& row) {
  return row.count("tp", 1) * row.count("cp", 1) * row.count("ep", 1) * row.count("pp", 1) > 1;
}

// A code without preset that has kernels of its own for norm, rotary embedding and loss (or for the
// products, as fp8 with delayed scaling is TransformerEngine's) is of Megatron-Core's or Liger's
// kind: SwiGLU, casts and residual sums are fused as well, and the products of queries, keys and
// values, and of gate and up, are one each (megatron/core/transformer: linear_qkv, linear_fc1).
bool is_fused_by_hand(const TrainingRow& row) {
  const std::string_view compiled = row.word("compile");
  const bool is_eager = compiled.empty() || compiled == "none" || compiled == "loss_only";
  const bool is_engine = row.word("loss_impl") == "fused" || row.word("fp8") == "delayed";
  return find_stack(row.word("stack")) == nullptr && is_eager && is_engine && row.word("norm_impl") == "rms_fused" &&
         row.word("rope_impl") == "fused";
}

// FlashAttention-2 came out on 2023-07-17 (Dao-AILab/flash-attention, v2.0.0).
bool is_before_fa2(const TrainingRow& row) {
  const std::string_view date = row.word("commit_date");
  if (!date.empty()) return date < "2023-07-17";
  const std::optional<TorchVersion> torch = torch_version(row);
  return torch && torch->major < 2;
}

std::vector<std::string> plan_assignments(const TrainingRow& row, const Cluster& cluster) {
  Assignments plan(row);
  plan.add("runtime=" + runtime_of(row));
  if (const std::string stack = likely_stack(row); find_stack(stack) != nullptr)
    plan.add(fmt::format("stack={}", stack));
  else add_era(row, plan);
  add_kernels(row, cluster, plan);
  add_dtypes(row, plan);
  add_sharding(row, plan);
  add_recompute(row, plan);
  add_dated_habits(row, plan);
  return std::move(plan).list();
}

}
