// One price of a kernel: remembered (to be at most 100 ns) and computed (at most 2 us), for each
// kind on a shipped profile.
#include <benchmark/benchmark.h>

#include "calibration/machines.h"
#include "calibration/profile_store.h"
#include "sim/cost/cost_model.h"

namespace foreshard {
namespace {

Kernel kernel_of_kind(std::int64_t kind) {
  Kernel kernel;
  if (kind == 0) {
    kernel = kernel_of(GemmPoint{Pass::kForward, false, 8192, 4096, 14336, 1});
  } else if (kind == 1) {
    kernel = kernel_of(AttentionPoint{Pass::kBackward, false, true, 1, 8192, 32, 8, 96, 1});
  } else {
    kernel.memory_class = MemoryClass::kNormForward;
    kernel.bytes = Bytes(1 << 27);
  }
  return kernel;
}

const char* name_of(std::int64_t kind) { return kind == 0 ? "product" : kind == 1 ? "attention" : "memory-bound"; }

void BM_PriceRemembered(benchmark::State& state) {
  const CostModel costs(load_cluster("8xh100"), load_profile("h100-sxm"));
  const Kernel kernel = kernel_of_kind(state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(costs.price(kernel).seconds);
  state.SetLabel(name_of(state.range(0)));
}
BENCHMARK(BM_PriceRemembered)->DenseRange(0, 2);

void BM_PriceComputed(benchmark::State& state) {
  const CostModel costs(load_cluster("8xh100"), load_profile("h100-sxm"));
  const Kernel kernel = kernel_of_kind(state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(costs.compute_price(kernel).seconds);
  state.SetLabel(name_of(state.range(0)));
}
BENCHMARK(BM_PriceComputed)->DenseRange(0, 2);

}
}
