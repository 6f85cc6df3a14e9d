// Every rank runs the layers of the model alone (a plan of one rank), a few blocks of them, and
// notes how long each kernel took: between the stamps that the operations make. Medians over all
// occurrences are the rows. Kernels of the optimizer and of accumulation come from the spans of
// their rows, host work from the gaps between rows.
#include "calibration/measure/kernels.h"

#include <ATen/Functions.h>
#include <fmt/format.h>

#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "exec/engine/engine.h"
#include "sim/graph/training_step.h"

namespace foreshard {
namespace {

constexpr std::int64_t kBlocks = 4;  // enough that a block's tensors leave the caches

using Clock = std::chrono::steady_clock;

// What a kernel is, for collecting equal ones.
using Key = std::tuple<int, int, int, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                       std::int64_t, bool>;
Key key_of(const Kernel& k) {
  return {static_cast<int>(k.kind),
          static_cast<int>(k.function),
          static_cast<int>(k.pass),
          k.m,
          k.n,
          k.k,
          k.heads,
          k.kind == KernelKind::kMemory ? k.bytes.count() : 0,
          k.causal};
}

struct Samples {
  Kernel kernel;
  std::vector<double> seconds;
};

class Collector final : public StepObserver {
 public:
  void begin(std::span<const Kernel> kernels) override {
    kernels_ = kernels;
    stamps_.clear();
    stamps_.push_back(Clock::now());
  }
  void mark() override { stamps_.push_back(Clock::now()); }
  void end() override {
    stamps_.push_back(Clock::now());
    if (kernels_.empty()) return;
    if (stamps_.size() == kernels_.size() + 1) {
      for (std::size_t i = 0; i < kernels_.size(); ++i) {
        add(kernels_[i], seconds(stamps_[i], stamps_[i + 1]));
      }
      return;
    }
    // Kernels that an operation does not tell apart count as the one that computes.
    for (const Kernel& kernel : kernels_) {
      if (kernel.kind != KernelKind::kMemory || kernels_.size() == 1) {
        add(kernel, seconds(stamps_.front(), stamps_.back()));
        return;
      }
    }
    add(kernels_.back(), seconds(stamps_.front(), stamps_.back()));
  }
  void add(const Kernel& kernel, double seconds) {
    Samples& samples = samples_[key_of(kernel)];
    samples.kernel = kernel;
    samples.seconds.push_back(seconds);
  }
  void forget() { samples_.clear(); }
  const std::map<Key, Samples>& samples() const { return samples_; }

 private:
  static double seconds(Clock::time_point from, Clock::time_point to) {
    return std::chrono::duration<double>(to - from).count();
  }
  std::span<const Kernel> kernels_;
  std::vector<Clock::time_point> stamps_;
  std::map<Key, Samples> samples_;
};

ModelSpec few_blocks(ModelSpec model) {
  std::int64_t blocks = 0;
  std::erase_if(model.order, [&](const LayerInstance& layer) {
    return model.kinds[static_cast<std::size_t>(layer.kind)].role == LayerRole::kBlock &&
           ++blocks > kBlocks;
  });
  return model;
}

Plan plan_of(const MeasuredJob& job, DType dtype) {
  Plan plan;
  plan.runtime = {RuntimeKind::kNative, "1"};
  plan.host = HostKind::kComputes;
  plan.param_dtype = dtype;
  plan.reduction_order = ReductionOrder::kMicrobatch;
  plan.batch = {job.sequence, job.micro_batch, 2};
  if (job.model.tied_embeddings) plan.units = {1, UnitPlacement::kRoot, UnitPlacement::kRoot};
  return plan;
}

const char* pass_word(Pass pass) { return pass == Pass::kForward ? "forward" : "backward"; }

Json row_of(const Samples& samples, int ranks, DType dtype, const MeasuredJob& job) {
  const Kernel& k = samples.kernel;
  const BenchResult result = summary_of(samples.seconds);
  Json row;
  const auto common = [&](const char* kind) {
    row = {{"kind", kind}, {"ranks", ranks}};
    if (k.kind == KernelKind::kMemory) row["function"] = to_string(k.function);
    row["pass"] = pass_word(k.pass);
    row["dtype"] = to_string(dtype);
  };
  if (k.kind == KernelKind::kGemm) {
    common("gemm");
    row.update({{"m", k.m}, {"n", k.n}, {"k", k.k}});
  } else if (k.kind == KernelKind::kAttention) {
    common("attention");
    std::int64_t kv_heads = k.heads;
    for (const LayerSpec& kind : job.model.kinds) {
      for (const Operation& op : kind.operations) {
        if (op.function == Function::kAttention) kv_heads = op.attention.kv_heads;
      }
    }
    row.update({{"batch", k.m},
                {"sequence", k.n},
                {"heads", k.heads},
                {"kv_heads", kv_heads},
                {"head_dim", k.k},
                {"causal", k.causal}});
  } else {
    common("memory");
    row["bytes"] = k.bytes.count();
  }
  row["seconds"] = result.to_json();
  row["repeats"] = result.repeats;
  return row;
}

// Kernels of rows that are no layer's: the optimizer's pass, accumulation.
void add_row_kernels(const EventGraph& graph, const MeasuredStep& step, Collector& collector) {
  for (std::size_t i = 0; i < graph.rows.size(); ++i) {
    const Work& work = graph.works[graph.rows[i].work];
    const bool is_layer = graph.details[i].layer >= 0;
    if (is_layer || work.kernels_end != work.kernels_begin + 1) continue;
    const Span& span = step.spans[i];
    collector.add(graph.kernels[work.kernels_begin], (span.end - span.arrive).seconds());
  }
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

}  // namespace

void measure_kernels(const MeasuredJob& job, const MeasureRequest& request, Bench& bench, int ranks,
                     Json& rows) {
  const ModelSpec model = few_blocks(job.model);
  const Plan plan = plan_of(job, request.dtype);
  const EventGraph graph = build_training_step(model, plan);
  const auto alone = std::move(thread_worlds(1).front());
  Engine engine(model, plan, graph, *alone, {});
  engine.initialise();
  Collector collector;
  engine.observe(&collector);
  std::vector<MicroBatch> batches(static_cast<std::size_t>(plan.batch.accumulation));
  for (MicroBatch& batch : batches) {
    batch.sequences = job.micro_batch;
    batch.sequence = job.sequence;
    batch.tokens = at::randint(model.vocabulary, {batch.count()}, at::kLong);
    batch.labels = at::randint(model.vocabulary, {batch.count()}, at::kLong);
    batch.loss_scale = 0.5;
  }
  HostGaps gaps;
  MeasuredStep step;
  std::int64_t number = 0;
  bool keeps = false;  // the first steps touch memory for the first time
  const auto once = [&] {
    engine.step(++number, batches, &step);
    if (!keeps) {
      collector.forget();
      keeps = number >= 2;
      return;
    }
    add_row_kernels(graph, step, collector);
    gaps.add(graph, step);
  };
  bench.run(fmt::format("layers/{}/{}x{}", model.name, job.sequence, job.micro_batch), once);
  for (const auto& [key, samples] : collector.samples()) {
    if (samples.kernel.function == Function::kArange) continue;
    rows.push_back(row_of(samples, ranks, request.dtype, job));
  }
  const auto host = [&](const char* what, std::vector<double> seconds) {
    if (seconds.empty()) return;
    const BenchResult result = summary_of(std::move(seconds));
    rows.push_back({{"kind", "host"},
                    {"ranks", ranks},
                    {"what", what},
                    {"seconds", result.to_json()},
                    {"repeats", result.repeats}});
  };
  host("row", std::move(gaps.row));
  host("collective", std::move(gaps.collective));
}

}  // namespace foreshard
