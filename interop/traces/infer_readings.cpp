// The groups first, for the cluster's size follows from them; then key by key.
#include "interop/traces/infer_readings.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "calibration/gpu_names.h"
#include "calibration/machines.h"
#include "sim/base/error.h"
#include "sim/base/lookup.h"
#include "sim/base/unit_strings.h"
#include "sim/spec/fsdp2_version.h"

namespace foreshard {
namespace {

std::optional<DType> dtype_of(const std::string& traced) {
  if (traced == "BFloat16" || traced == "c10::BFloat16") return DType::kBf16;
  if (traced == "Half" || traced == "c10::Half") return DType::kFp16;
  if (traced == "Float" || traced == "float") return DType::kFp32;
  return std::nullopt;
}

class StepReading {
 public:
  explicit StepReading(const StepOfTrace& step) : step_(step), trace_(step.trace()), facts_(step.trace().facts) {}

  JobReadings read() {
    read_ranks();
    read_cluster();
    read_version();
    read_dtypes();
    read_batch();
    read_optimizer();
    read_kernels();
    return std::move(readings_);
  }

 private:
  void say(const std::string& key, std::string how) { readings_.how.emplace(key, std::move(how)); }
  void ask(std::string key, std::string flag, std::string why) {
    readings_.asked.push_back({std::move(key), std::move(flag), std::move(why)});
  }

  void read_ranks() {
    world_ = trace_.world;
    const char* whence = "distributedInfo";
    for (const TracedGroup& group : facts_.groups)
      if (world_ < 1 || group.size > world_) world_ = std::max(world_, group.size);
    std::int64_t shard = step_.group_of(EventKind::kAllGather, false);
    const std::int64_t replicate = step_.group_of(EventKind::kAllReduce, true);
    const bool reduces = std::ranges::any_of(
        step_.runs(), [](const TraceRun& r) { return r.kind == EventKind::kAllReduce && r.unit >= 0; });
    if (world_ < 1) {
      world_ = std::max<std::int64_t>(shard, 1) * std::max<std::int64_t>(replicate, 1);
      whence = "the groups of its collectives";
    }
    std::string how;
    if (shard > 0) {
      how = fmt::format("all_gathers are of groups of {}", plural(shard, "rank"));
    } else if (!reduces && world_ > 0) {
      shard = world_;
      how = "one group: no all_reduce of gradients";
    } else if (reduces && replicate > 0 && world_ % replicate == 0) {
      shard = world_ / replicate;
      how = fmt::format("{} in {} groups of replicas", plural(world_, "rank"), shard);
    } else {
      ask("mesh.shard", "--set mesh.shard=N", "the trace does not tell the groups of collectives");
      shard = std::max<std::int64_t>(world_, 1);
    }
    plan_.mesh.shard = shard;
    plan_.mesh.replicate = replicate > 0 ? replicate : 1;
    if (reduces && replicate == 0) plan_.mesh.replicate = std::max<std::int64_t>(world_ / shard, 1);
    for (const TraceRun& run : step_.runs()) {
      if (run.kind != EventKind::kAllGather || step_.in_backward(run)) continue;
      if (plan_.mesh.replicate > 1 && step_.message(run).stride > 1) {
        plan_.mesh.inner = MeshInner::kReplicate;
        say("mesh.inner", fmt::format("ranks of a shard group are {} apart", step_.message(run).stride));
      }
      break;
    }
    say("mesh.shard", how);
    say("mesh.replicate", plan_.mesh.replicate > 1
                              ? fmt::format("all_reduces of gradients are of groups of {}", plan_.mesh.replicate)
                              : "no all_reduce of gradients");
    if (plan_.mesh.world() != world_) {
      throw Error(ExitCode::kMissingCapability,
          "{}: the job has {} ranks ({}), its shard groups {} x replicas {} are {}: tensor, context or pipeline "
          "parallel groups are not inferred; describe one stage with --plan FILE",
          trace_.file, world_, whence, shard, plan_.mesh.replicate, plan_.mesh.world());
    }
  }

  void read_cluster() {
    if (!trace_.of_gpu && trace_.device.empty()) {
      plan_.cluster = "local";
      say("cluster", "no GPU: the ranks compute on the host");
      return;
    }
    const std::vector<Machine> machines = list_machines();
    const Machine* machine = match_gpu(trace_.device, machines);
    if (machine == nullptr) {
      ask("cluster", "--cluster 64xh100",
          trace_.device.empty() ? "the trace does not name its GPU"
                                : fmt::format("GPU '{}' with {} is not in the catalogue (foreshard machines)",
                                      trace_.device, format_bytes(facts_.device_memory)));
      return;
    }
    const std::string& key = machine->aliases.empty() ? machine->key : machine->aliases.front();
    plan_.cluster = fmt::format("{}x{}", world_, key);
    say("cluster", fmt::format("{} of {}", plural(world_, "rank"), trace_.device));
  }

  // "2.11.0+cu130", from the file beside the trace.
  void read_version() {
    for (const auto& [name, version] : trace_.versions) {
      const std::size_t dot = version.find('.');
      if (name != "torch" || dot == std::string::npos) continue;
      const std::string minor = version.substr(0, version.find('.', dot + 1));
      if (!fsdp2_minor(minor)) continue;
      plan_.runtime.version = minor;
      return say("runtime", "PyTorch " + version);
    }
  }

  void read_dtypes() {
    const auto of = [&](EventKind kind, const char* key, DType& into, const char* what) {
      for (const TraceRun& run : step_.runs()) {
        if (run.kind != kind || run.unit < 0) continue;
        const auto dtype = dtype_of(step_.message(run).dtype);
        if (!dtype) continue;
        into = *dtype;
        say(key, fmt::format("{} are in {}", what, step_.message(run).dtype));
        return;
      }
    };
    if (plan_.cluster == "local") plan_.param_dtype = plan_.reduce_dtype = DType::kFp32;
    of(EventKind::kAllGather, "dtype.param", plan_.param_dtype, "all_gathers");
    of(EventKind::kReduceScatter, "dtype.reduce", plan_.reduce_dtype, "reduce_scatters");
    if (const auto master = dtype_of(facts_.master_dtype)) {
      plan_.master_dtype = *master;
      say("dtype.master", "kernels of the optimizer");
    }
  }

  void read_batch() {
    plan_.batch.accumulation = step_.microbatches();
    say("batch.accumulation",
        fmt::format("{} before the optimizer",
            step_.microbatches() == 1 ? "one backward" : plural(step_.microbatches(), "backward")));
    if (facts_.sequence > 0) {
      plan_.batch.sequence = facts_.sequence;
      plan_.batch.micro_batch = facts_.micro_batch;
      const std::string how = fmt::format("the embedding reads [{}, {}] tokens", facts_.micro_batch, facts_.sequence);
      say("batch.sequence", how);
      say("batch.micro_batch", how);
      return;
    }
    const char* why =
        facts_.has_shapes ? "no embedding with shapes is in the trace" : "the trace has no shapes (record_shapes=True)";
    ask("batch.sequence", "--sequence N", why);
    ask("batch.micro_batch", "--micro-batch N", why);
  }

  void read_optimizer() {
    const bool clips =
        std::ranges::any_of(step_.runs(), [](const TraceRun& run) { return run.kind == EventKind::kGradNorm; });
    if (!clips) plan_.optimizer.clip_norm.reset();
    say("optimizer.clip_norm",
        clips ? "norms of gradients before the optimizer" : "no norm of gradients before the optimizer");
    if (facts_.optimizer.empty()) return;
    if (facts_.optimizer == "SGD") plan_.optimizer.kind = Optimizer::Kind::kSgd;
    say("optimizer.kind", facts_.optimizer);
    using Implementation = Optimizer::Implementation;
    plan_.optimizer.implementation = facts_.optimizer_step == "fused"     ? Implementation::kFused
                                     : facts_.optimizer_step == "foreach" ? Implementation::kForeach
                                                                          : Implementation::kLoop;
    if (facts_.optimizer_step != "loop")
      say("optimizer.implementation", fmt::format("{} operators", facts_.optimizer_step));
  }

  void read_kernels() {
    if (facts_.compiled) {
      plan_.compile = Compile::kBlocks;
      say("compile", "kernels of Inductor");
    }
    static constexpr std::pair<const char*, AttentionKernel> kKernels[] = {
        {"_flash_attention", AttentionKernel::kFlash}, {"_cudnn_attention", AttentionKernel::kCudnn},
        {"_efficient_attention", AttentionKernel::kEfficient}, {"_attention_math", AttentionKernel::kMath},
        {"flash_attn_3", AttentionKernel::kFa3}, {"flash_attn", AttentionKernel::kFa2}};
    for (const auto& [name, kernel] : kKernels) {
      if (!contains(facts_.attention, name)) continue;
      if (plan_.cluster == "local") return;  // it has one of its own
      plan_.attention = kernel;
      return say("attention", facts_.attention);
    }
  }

  const StepOfTrace& step_;
  const FsdpTrace& trace_;
  const TraceFacts& facts_;
  JobReadings readings_;
  Plan& plan_ = readings_.plan;
  std::int64_t world_ = 0;
};

}

StepOfTrace::StepOfTrace(const FsdpTrace& trace) : trace_(trace) {
  for (const TraceRun& run : runs()) backward_from_.try_emplace(run.microbatch, Time());
  for (const TraceRun& run : runs()) {
    const bool turns =
        run.kind == EventKind::kLoss || run.kind == EventKind::kBackward || run.kind == EventKind::kRecompute;
    Time& from = backward_from_.at(run.microbatch);
    if (turns && from == Time()) from = run.issue;
  }
}

bool StepOfTrace::in_backward(const TraceRun& run) const {
  const Time from = backward_from_.at(run.microbatch);
  return from != Time() && run.issue >= from;
}

const TracedMessage& StepOfTrace::message(const TraceRun& run) const { return trace_.messages[run.message]; }

std::int64_t StepOfTrace::group_of(EventKind kind, bool backward) const {
  for (const TraceRun& run : runs())
    if (run.kind == kind && run.unit >= 0 && in_backward(run) == backward && message(run).group_size > 0)
      return message(run).group_size;
  return 0;
}

JobReadings read_job(const StepOfTrace& step) { return StepReading(step).read(); }

std::string plural(std::int64_t count, const char* what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

}
