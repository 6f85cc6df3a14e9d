#include <ATen/Functions.h>

#include <nlohmann/json.hpp>
#include <numeric>

#include "calibration/measure/bench.h"
#include "calibration/measure/measure.h"
#include "exec/engine/engine.h"

namespace foreshard {

KernelKey key_of(const Kernel& k) {
  return {static_cast<int>(k.kind), static_cast<int>(k.function), static_cast<int>(k.pass), k.m, k.n, k.k, k.heads,
      k.kind == KernelKind::kMemory ? k.bytes.count() : 0, k.causal};
}

void KernelTimes::add(const Kernel& kernel, double seconds) {
  KernelSamples& samples = samples_[key_of(kernel)];
  samples.kernel = kernel;
  samples.seconds.push_back(seconds);
}

void KernelTimes::add_step(std::span<const Kernel> kernels, const std::vector<double>& stamps) {
  if (kernels.empty()) return;
  if (stamps.size() == kernels.size()) {
    for (std::size_t i = 0; i < kernels.size(); ++i) add(kernels[i], stamps[i]);
    return;
  }
  const double whole = std::accumulate(stamps.begin(), stamps.end(), 0.0);
  for (const Kernel& kernel : kernels)
    if (kernel.kind != KernelKind::kMemory || kernels.size() == 1) return add(kernel, whole);
  add(kernels.back(), whole);
}

void add_row_kernels(const EventGraph& graph, const MeasuredStep& step, KernelTimes& times) {
  for (std::size_t i = 0; i < graph.rows.size(); ++i) {
    const Work& work = graph.works[graph.rows[i].work];
    if (graph.details[i].layer >= 0 || work.kernels_end != work.kernels_begin + 1) continue;
    const Span& span = step.spans[i];
    times.add(graph.kernels[work.kernels_begin], (span.end - span.arrive).seconds());
  }
}

MicroBatch random_batch(const MeasuredJob& job) {
  MicroBatch batch;
  batch.sequences = job.micro_batch;
  batch.sequence = job.sequence;
  batch.tokens = at::randint(job.model.vocabulary, {batch.count()}, at::kLong);
  batch.labels = at::randint(job.model.vocabulary, {batch.count()}, at::kLong);
  return batch;
}

void add_host_row(Json& rows, const char* what, int ranks, std::vector<double> seconds) {
  if (seconds.empty()) return;
  const BenchResult result = summary_of(std::move(seconds));
  rows.push_back(
      {{"kind", "host"}, {"ranks", ranks}, {"what", what}, {"seconds", result.to_json()}, {"repeats", result.repeats}});
}

ModelSpec few_blocks(ModelSpec model, std::int64_t blocks) {
  std::int64_t seen = 0;
  std::erase_if(model.order, [&](const LayerInstance& layer) {
    return model.kinds[at(layer.kind)].role == LayerRole::kBlock && ++seen > blocks;
  });
  return model;
}

Json kernel_row(const KernelSamples& samples, int ranks, DType dtype, const MeasuredJob& job) {
  const Kernel& k = samples.kernel;
  const BenchResult result = summary_of(samples.seconds);
  Json row;
  const auto common = [&](const char* kind) {
    row = {{"kind", kind}, {"ranks", ranks}};
    if (k.kind == KernelKind::kMemory) row["function"] = to_string(k.function);
    row["pass"] = k.pass == Pass::kForward ? "forward" : "backward";
    row["dtype"] = to_string(dtype);
  };
  if (k.kind == KernelKind::kGemm) {
    common("gemm");
    row.update({{"m", k.m}, {"n", k.n}, {"k", k.k}});
  } else if (k.kind == KernelKind::kAttention) {
    common("attention");
    std::int64_t kv_heads = k.heads;
    for (const LayerSpec& kind : job.model.kinds) {
      for (const Operation& op : kind.operations)
        if (op.function == Function::kAttention) kv_heads = op.attention.kv_heads;
    }
    row.update({{"batch", k.m}, {"sequence", k.n}, {"heads", k.heads}, {"kv_heads", kv_heads}, {"head_dim", k.k},
        {"causal", k.causal}});
  } else {
    common("memory");
    row["bytes"] = k.bytes.count();
  }
  row["seconds"] = result.to_json();
  row["repeats"] = result.repeats;
  return row;
}

}
