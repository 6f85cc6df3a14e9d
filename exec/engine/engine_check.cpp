#include "exec/engine/engine_check.h"

#include <ATen/Functions.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cmath>

#include "exec/comm/rank_threads.h"
#include "exec/device/host_accelerator.h"
#include "exec/engine/engine.h"
#include "exec/engine/schedule.h"
#include "models/families.h"
#include "sim/graph/training_step.h"

namespace foreshard {
namespace {

constexpr int kTrainedSteps = 4;
constexpr int kGraphSteps = 8;  // some of them before a step is recorded

enum class Steps { kIssued, kReplayed };

// "gpt2": LayerNorm and products with biases, GELU, learned positions, and a table that is the head.
ModelSpec small_model(const std::string& family) {
  ModelDims dims = family_dims(family, "self check", {3, 256, 4, 2, 64, 640, 512, 128});
  if (dims.fused_qkv) dims.kv_heads = 4;
  dims.tied = family == "gpt2";
  return build_model(dims, Stack::kNative);
}

Plan plan_of(DType dtype, std::int64_t shard) {
  Plan plan = {
      .runtime = {RuntimeKind::kNative, "1"}, .batch = {64, 1, 2 / shard}, .mesh = {shard, 1}, .param_dtype = dtype};
  plan.optimizer.learning_rate = 1e-3;
  return plan;
}

struct Run {
  std::vector<double> losses;  // of a step, mean over all micro-batches
  std::string hash;
  double host_us_per_row = 0;
  double issue_us = 0;  // of the last step, by the host's clock
  double step_us = 0;   // by the device's
};

// This rank's micro-batches: token t of global sample s is a fixed function of both.
std::vector<MicroBatch> batches_of(const Plan& plan, const ModelSpec& model, int rank, int step) {
  std::vector<MicroBatch> batches(at(plan.batch.accumulation));
  for (std::size_t m = 0; m < batches.size(); ++m) {
    MicroBatch& batch = batches[m];
    batch.sequences = plan.batch.micro_batch;
    batch.sequence = plan.batch.sequence;
    batch.loss_scale = 1.0 / as_double(microbatches_of_step(plan));
    const std::int64_t sample =
        step * microbatches_of_step(plan) + global_microbatch(plan, rank, static_cast<std::int64_t>(m));
    const at::Tensor t = at::arange(batch.count() + 1, at::kLong);
    const at::Tensor ids = t.mul(t).mul(7).add_(t.mul(sample % 13)).add_(sample * 131).remainder(model.vocabulary);
    batch.tokens = ids.narrow(0, 0, batch.count()).clone();
    batch.labels = ids.narrow(0, 1, batch.count()).clone();
  }
  return batches;
}

// Ranks that share a device read each other's memory and wait for each other's events: none gives
// them back, whatever went wrong, before all have come so far.
class CheckMeeting {
 public:
  explicit CheckMeeting(std::barrier<>& all) : all_(all) {}
  ~CheckMeeting() {
    if (!met_) all_.arrive_and_drop();  // it had nothing to give back yet
  }
  void meet() {
    met_ = true;
    all_.arrive_and_wait();
  }

 private:
  std::barrier<>& all_;
  bool met_ = false;
};

Run train(Plan plan, const MakeAccelerator& make, int steps = kTrainedSteps, Steps how = Steps::kIssued,
    const std::string& family = "llama") {
  const ModelSpec model = small_model(family);
  if (model.tied_embeddings) plan.units.embedding = plan.units.head = UnitPlacement::kRoot;
  const EventGraph graph = build_training_step(model, plan);
  const auto ranks = at(plan.mesh.world());
  std::vector<Run> runs(ranks);
  std::vector<std::vector<std::vector<double>>> losses(at(steps), std::vector<std::vector<double>>(ranks));
  std::barrier all(static_cast<std::ptrdiff_t>(ranks));
  for_each_rank(static_cast<int>(ranks), [&](World& world) {
    const auto rank = at(world.rank());
    CheckMeeting meeting(all);
    const std::unique_ptr<Accelerator> device = make();
    const bool replayed = how == Steps::kReplayed;
    Engine engine(model, plan, graph, world, {.debug = !replayed, .device = device.get(), .graph = replayed});
    const struct Last {  // goes before the engine
      CheckMeeting& meeting;
      ~Last() { meeting.meet(); }
    } last{meeting};
    engine.initialise();
    Run& run = runs[rank];
    for (int s = 0; s < steps; ++s) {
      auto batches = batches_of(plan, model, world.rank(), s);
      const auto begin = std::chrono::steady_clock::now();
      engine.issue(s + 1, batches);
      const auto end = std::chrono::steady_clock::now();
      const StepResult result = engine.collect();
      const MeasuredStep& record = result.times;
      losses[at(s)][rank] = result.losses;
      run.issue_us = std::chrono::duration<double>(end - begin).count() * 1e6;
      run.step_us = record.duration.seconds() * 1e6;
      const double issue = (record.spans.back().issue - record.spans.front().issue).seconds();
      run.host_us_per_row = issue / as_double(graph.rows.size()) * 1e6;
    }
    run.hash = engine.parameter_hash();
  });
  Run run = runs.front();
  for (const auto& step : losses) run.losses.push_back(mean_loss(plan, step));
  return run;
}

std::string compare(const Run& got, const Run& wanted, double tolerance) {
  if (wanted.losses.empty()) throw CheckSkipped("the run it is compared with did not end");
  double worst = 0;
  for (std::size_t s = 0; s < wanted.losses.size(); ++s) {
    const double apart = std::abs(got.losses[s] / wanted.losses[s] - 1);
    worst = std::max(worst, std::isnan(apart) ? INFINITY : apart);
  }
  std::string text = fmt::format(
      "losses {:.4f} against {:.4f}: {:.1e} apart", fmt::join(got.losses, ", "), fmt::join(wanted.losses, ", "), worst);
  if (worst > tolerance) throw std::runtime_error(text);
  return text;
}

}

void engine_check(const MakeAccelerator& make, const std::vector<std::string>& skipped, const CheckListener& told) {
  const auto check = [&](const char* name, const std::function<std::string()>& work) {
    if (run_check(name, skipped, work, told) != CheckStatus::kFailed) return;
    try {
      make()->synchronize();
    } catch (const std::exception&) {
      throw DeviceLost(name);
    }
  };
  // TF32 is off by default; sums of split products in bf16 are switched off here.
  at::globalContext().setAllowBF16ReductionCuBLAS(false);
  Run fp32, bf16;
  check("engine_fp32", [&] {
    fp32 = train(plan_of(DType::kFp32, 1), make);
    return compare(fp32, train(plan_of(DType::kFp32, 1), host_accelerator), 1e-4);
  });
  check(
      "engine_bf16",
      [&] {
        bf16 = train(plan_of(DType::kBf16, 1), make);
        return compare(bf16, train(plan_of(DType::kBf16, 1), host_accelerator), 2e-2) +
               fmt::format(", {:.1f} us of host per row", bf16.host_us_per_row);
      });
  check(
      "engine_gpt2",
      [&] {
        const auto run = [&](DType dtype, const MakeAccelerator& where) {
          return train(plan_of(dtype, 1), where, kTrainedSteps, Steps::kIssued, "gpt2");
        };
        return compare(run(DType::kFp32, make), run(DType::kFp32, host_accelerator), 1e-4) + "; bf16 " +
               compare(run(DType::kBf16, make), run(DType::kBf16, host_accelerator), 2e-2);
      });
  check("engine_two_ranks_one_device", [&] { return compare(train(plan_of(DType::kBf16, 2), make), bf16, 2e-2); });
  check("engine_graph", [&] {
    const Run issued = train(plan_of(DType::kFp32, 1), make, kGraphSteps);
    const Run replayed = train(plan_of(DType::kFp32, 1), make, kGraphSteps, Steps::kReplayed);
    return compare(replayed, issued, 1e-4) +
           fmt::format(
               "; the host gave the step to the device in {:.0f} us and {:.0f} us replayed, "
               "it took {:.0f} us and {:.0f} us",
               issued.issue_us, replayed.issue_us, issued.step_us, replayed.step_us);
  });
  check("engine_offload", [&] {
    Plan plan = plan_of(DType::kFp32, 1);
    plan.offload = Offload::kCpu;
    return compare(train(plan, make), fp32, 1e-4);
  });
  check("engine_recompute_prefetch", [&] {
    Plan plan = plan_of(DType::kBf16, 1);
    plan.recompute.value = Recompute::kFull;
    plan.prefetch = {2, 2};
    plan.host_sync = HostSync::kStep;
    return compare(train(plan, make), bf16, 2e-2);
  });
}

}
