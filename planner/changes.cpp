#include "planner/changes.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "planner/search_space.h"
#include "reports/view/plan_words.h"
#include "sim/base/lookup.h"
#include "sim/spec/plan_values.h"

namespace foreshard {
namespace {

// torchtune's CEWithChunkedOutputLoss and torchao's take so many parts.
constexpr const char* kChunkedLoss = "loss=chunked-8";

bool is_whole(const Loss& loss) { return loss.kind == Loss::Kind::kEager || loss.kind == Loss::Kind::kEagerCompute; }

// PyTorch's kernels and its caching allocator.
bool is_pytorch_on_gpus(const Job& job) {
  return job.resolved.plan.runtime.kind != RuntimeKind::kNative && !job.cluster.host_computes;
}

// One value, where the plan may take it.
MemoryKnob switched(const char* key, bool may, const std::string& value, bool is_free = false) {
  MemoryKnob knob{key, {}, is_free};
  if (may) knob.values.push_back({value});
  return knob;
}

MemoryKnob expandable_segments(const Job& job) {
  AllocatorSettings expandable = job.resolved.plan.allocator;
  const bool may = !job.cluster.host_computes && !expandable.expandable_segments;
  expandable.expandable_segments = true;
  return switched("allocator", may, "allocator=" + written(expandable).get<std::string>(), true);
}

MemoryKnob chunked_loss(const Job& job) {
  return switched("loss", is_pytorch_on_gpus(job) && is_whole(job.resolved.plan.loss), kChunkedLoss, true);
}

MemoryKnob shard_further(const Job& job) {
  const Mesh& mesh = job.resolved.plan.mesh;
  MemoryKnob knob{"mesh.shard", {}, false};
  for (std::int64_t replicate = mesh.replicate - 1; replicate >= 1; --replicate) {
    if (mesh.data_parallel() % replicate != 0) continue;
    knob.values.push_back(
        {fmt::format("mesh.shard={}", mesh.data_parallel() / replicate), fmt::format("mesh.replicate={}", replicate)});
  }
  return knob;
}

// The sequences of a step stay: what a micro-batch loses, accumulation gains.
MemoryKnob shrink_micro_batch(const Job& job) {
  const Batch& batch = job.resolved.plan.batch;
  MemoryKnob knob{"batch.micro_batch", {}, false};
  for (std::int64_t size = batch.micro_batch / 2; size >= 1; --size) {
    if (batch.micro_batch % size != 0) continue;
    knob.values.push_back({fmt::format("batch.micro_batch={}", size),
        fmt::format("batch.accumulation={}", batch.accumulation * (batch.micro_batch / size))});
  }
  return knob;
}

MemoryKnob recompute_more(const Job& job) {
  const RangedPolicy<Recompute>& own = job.resolved.plan.recompute;
  MemoryKnob knob{"recompute", {}, false};
  for (const Recompute more : {Recompute::kSelective, Recompute::kFull}) {
    if (own == RangedPolicy<Recompute>{Recompute::kFull, {}}) break;
    if (own != RangedPolicy<Recompute>{more, {}}) knob.values.push_back({fmt::format("recompute={}", to_string(more))});
  }
  return knob;
}

MemoryKnob compile_blocks(const Job& job) {
  const bool may = is_pytorch_on_gpus(job) && job.resolved.plan.compile == Compile::kNone;
  return switched("compile", may, "compile=blocks");
}

MemoryKnob offload(const Job& job) {
  const bool may = job.resolved.plan.offload == Offload::kNone && !job.cluster.host_computes;
  return switched("offload", may, "offload=cpu");
}

// Inside a node's fast links; the ranks that share a sequence make its micro-batches one after the other.
MemoryKnob tensor_parallel(const Job& job) {
  const Plan& plan = job.resolved.plan;
  MemoryKnob knob{"mesh.tp", {}, false};
  for (std::int64_t tp = 2 * plan.mesh.tp; tp <= job.cluster.node.gpus; tp *= 2) {
    const std::int64_t more = tp / plan.mesh.tp;
    if (plan.mesh.shard % more != 0) break;
    Assignments value = {fmt::format("mesh.tp={}", tp), fmt::format("mesh.shard={}", plan.mesh.shard / more),
        fmt::format("batch.accumulation={}", plan.batch.accumulation * more)};
    if (changed_job(job, value)) knob.values.push_back(std::move(value));
  }
  return knob;
}

}

std::optional<Job> changed_job(const Job& job, const Assignments& assignments) {
  JobOptions other = job.options;
  other.assignments.push_back(assignments);
  try {
    return load_job_beside(job, other);
  } catch (const Error& error) {
    if (error.exit_code() == ExitCode::kInternal) throw;
    return std::nullopt;
  }
}

Assignments assignments_to(const Job& job, const Plan& plan) {
  // A variant's plan may have what its options do not say (JobVariants: models of one micro-batch).
  const std::optional<Job> asked = changed_job(job, {});
  Assignments assignments;
  for (const PlanDifference& d : plan_differences(asked ? asked->resolved.plan : job.resolved.plan, plan))
    assignments.push_back(d.key + "=" + d.b);
  return assignments;
}

std::vector<Job> free_variants(const Job& job) {
  std::vector<Job> variants;
  const Plan& plan = job.resolved.plan;
  std::vector<Assignments> all;
  if (!is_fixed(job, "loss")) all = chunked_loss(job).values;
  if (plan.runtime.kind == RuntimeKind::kNative && !is_fixed(job, "recompute_keeps"))
    all.push_back({"recompute_keeps=dots"});
  for (const Assignments& assignments : all)
    if (auto other = changed_job(job, assignments)) variants.push_back(std::move(*other));
  return variants;
}

std::vector<Assignments> costly_assignments(const Job& job) {
  std::vector<Assignments> list;
  const auto add = [&](const MemoryKnob& knob) {
    if (is_fixed(job, knob.key)) return;
    append(list, knob.values);
  };
  add(compile_blocks(job));
  const bool has_fp8 = job.cluster.gpu.peak_fp8.value() > 0;
  if (has_fp8 && !list.empty() && !is_fixed(job, "float8") && job.resolved.plan.float8 == Float8::kNone) {
    // torchao's recipe is meant for compiled code: the casts are kernels of their own else.
    Assignments both = list.front();
    both.push_back("float8=tensorwise");
    list.push_back(std::move(both));
  }
  // The engine runs the flash backend unless it is told; it rounds otherwise than cuDNN's kernel,
  // which PyTorch chooses by itself.
  const Plan& plan = job.resolved.plan;
  if (plan.runtime.kind == RuntimeKind::kNative && plan.attention == AttentionKernel::kFlash &&
      !is_fixed(job, "attention") && cost_model(job).calibration().sdpa_preferred == "cudnn")
    list.push_back({"attention=cudnn"});
  add(offload(job));
  return list;
}

std::vector<MemoryKnob> memory_knobs(const Job& job) {
  const Plan& plan = job.resolved.plan;
  const bool has_experts = job.model.active_parameters() < job.model.parameters();
  const bool has_fp32_states = plan.optimizer.kind == Optimizer::Kind::kAdamW && plan.optimizer.state == DType::kFp32;
  const bool reduces_wide = plan.reduce_dtype == DType::kFp32 && plan.param_dtype == DType::kBf16;
  std::vector<MemoryKnob> knobs = {expandable_segments(job), chunked_loss(job),
      switched("units.shard_dim", has_experts && plan.units.shard_dim == 0, "units.shard_dim=experts", true),
      switched("reshard_after_forward", plan.reshard_after_forward != RangedPolicy<Reshard>{},
          "reshard_after_forward=always"),
      shard_further(job), shrink_micro_batch(job), recompute_more(job), compile_blocks(job),
      switched("optimizer.state", has_fp32_states, "optimizer.state=bf16"), offload(job),
      switched("dtype.reduce", reduces_wide, "dtype.reduce=bf16"), tensor_parallel(job)};
  std::erase_if(knobs, [](const MemoryKnob& knob) { return knob.values.empty(); });
  return knobs;
}

}
