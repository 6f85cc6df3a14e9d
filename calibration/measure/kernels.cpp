// Every rank runs the layers of the model, or its part of them over mesh.tp, alone (its peers are
// echoes), a few blocks of them, and notes how long each kernel took: between the stamps that the
// operations make. Medians over all occurrences are the rows. Kernels of the optimizer and of
// accumulation come from the spans of their rows, host work from the gaps between rows.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>
#include <thread>

#include "calibration/local_profile.h"
#include "calibration/measure/measure.h"
#include "exec/engine/engine.h"
#include "sim/graph/axes/rank_part.h"
#include "sim/graph/training_step.h"
#include "sim/spec/checks/plan_check.h"

namespace foreshard {
namespace {

constexpr std::int64_t kBlocks = 4;  // enough that a block's tensors leave the caches

double seconds_of(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return as_double(now.tv_sec) + 1e-9 * as_double(now.tv_nsec);
}

class Collector final : public StepObserver {
 public:
  // By the thread's time on its core where ranks share cores: fewer of them than in a step hold
  // against other processes while they take turns.
  explicit Collector(const Turns& turns) : clock_(turns.of_core > 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC) {}
  void begin(std::span<const Kernel> kernels) override {
    kernels_ = kernels;
    stamps_.clear();
    last_ = seconds_of(clock_);
  }
  void mark() override {
    const double now = seconds_of(clock_);
    stamps_.push_back(now - last_);
    last_ = now;
  }
  void end() override {
    mark();
    times.add_step(kernels_, stamps_);
  }
  KernelTimes times;

 private:
  std::span<const Kernel> kernels_;
  std::vector<double> stamps_;
  clockid_t clock_;
  double last_ = 0;
};

Plan plan_of(const MeasuredJob& job, DType dtype) {
  Plan plan;
  plan.runtime = {RuntimeKind::kNative, "1"};
  plan.host = HostKind::kComputes;
  plan.param_dtype = dtype;
  plan.reduction_order = ReductionOrder::kMicrobatch;
  plan.batch = {job.sequence, job.micro_batch, 2};
  plan.mesh.tp = job.tp;
  if (job.model.tied_embeddings) plan.units = {1, UnitPlacement::kRoot, UnitPlacement::kRoot};
  return plan;
}

// Host time per compute row and per row handed to a stream.
struct HostGaps {
  std::vector<double> row, collective;
  void add(const EventGraph& graph, const MeasuredStep& step) {
    for (std::size_t i = 0; i + 1 < graph.rows.size(); ++i) {
      const bool computes = graph.rows[i].stream == Stream::kCompute;
      const Time from = computes ? step.spans[i].end : step.spans[i].issue;
      (computes ? row : collective).push_back((step.spans[i + 1].issue - from).seconds());
    }
  }
};

}

Turns turns_of(int ranks, int threads, int cores) {
  const int busy = std::min(threads, cores);
  return {std::min(ranks, cores / busy), std::max(1.0, 1.0 * ranks * busy / cores)};
}

std::vector<MeasuredJob> over_tp(const MeasuredJob& job, DType dtype, int ranks) {
  std::vector<MeasuredJob> parts = {job};
  for (const int tp : measured_groups(ranks)) {
    MeasuredJob part = job;
    part.tp = tp;
    const Cluster cluster = local_machine(nominal_local_profile({}), tp).cluster;
    if (!find_problem(plan_of(part, dtype), part.model, cluster)) parts.push_back(part);
  }
  return parts;
}

void measure_kernels(
    const MeasuredJob& job, const MeasureRequest& request, Bench& bench, const World& world, Json& rows) {
  const int ranks = world.size();
  const Turns turns =
      turns_of(ranks, at::get_num_threads(), std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
  const ModelSpec model = few_blocks(job.model, kBlocks);
  const Plan plan = plan_of(job, request.dtype);
  const EventGraph graph = build_training_step(model, plan);
  const auto alone = paced_world(static_cast<int>(job.tp));
  Engine engine(model, plan, graph, *alone, {});
  engine.initialise();
  Collector collector(turns);
  engine.observe(&collector);
  std::vector<MicroBatch> batches(at(plan.batch.accumulation));
  for (MicroBatch& batch : batches) {
    batch = random_batch(job);
    batch.loss_scale = 0.5;
  }
  HostGaps gaps;
  MeasuredStep step;
  std::int64_t number = 0;
  bool keeps = false;  // the first steps touch memory for the first time
  const auto once = [&] {
    if (world.rank() >= turns.at_once) return;
    engine.step(++number, batches, &step);
    if (!keeps) {
      collector.times.forget();
      keeps = number >= 2;
      return;
    }
    add_row_kernels(graph, step, collector.times);
    gaps.add(graph, step);
  };
  bench.run(fmt::format("layers/{}/{}x{}/{}", model.name, job.sequence, job.micro_batch, job.tp), once);
  const auto shared = [&](std::vector<double> seconds) {
    for (double& s : seconds) s *= turns.of_core;
    return seconds;
  };
  MeasuredJob part = job;
  if (cuts_layers(plan)) part.model = part_of_rank(job.model, plan);
  for (const auto& [key, samples] : collector.times.samples()) {
    if (samples.kernel.function == Function::kArange) continue;
    rows.push_back(kernel_row({samples.kernel, shared(samples.seconds)}, ranks, request.dtype, part));
  }
  add_host_row(rows, "row", ranks, shared(std::move(gaps.row)));
  add_host_row(rows, "collective", ranks, shared(std::move(gaps.collective)));
}

}
