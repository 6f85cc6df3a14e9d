#include <nlohmann/json.hpp>
#include <numeric>

#include "calibration/measure/bench.h"
#include "calibration/measure/measure.h"

namespace foreshard {

KernelKey key_of(const Kernel& k) {
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
  for (const Kernel& kernel : kernels) {
    if (kernel.kind != KernelKind::kMemory || kernels.size() == 1) return add(kernel, whole);
  }
  add(kernels.back(), whole);
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

}
