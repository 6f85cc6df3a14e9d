// What a CostModel makes of dtypes, power limits, masks and kernels nobody has curves for; and that
// what it remembers is what it computes.
#include <gtest/gtest.h>

#include <cmath>
#include <thread>
#include <vector>

#include "sim/cost/cost_model.h"

namespace foreshard::kernel_prices_test {
namespace {

Gpu gpu() {
  return Gpu{.multiprocessors = 100,
      .peak_bf16 = FlopsPerSecond(100e12),
      .peak_fp32 = FlopsPerSecond(10e12),
      .peak_fp8 = FlopsPerSecond(200e12),
      .memory_bandwidth = BytesPerSecond(1e12),
      .power_limit = 400};
}

AttentionCurve attention(const char* kernel, std::int64_t head_dim, Pass pass, double efficiency) {
  return AttentionCurve{
      .kernel = kernel, .head_dim = head_dim, .pass = pass, .efficiency = efficiency, .evidence = Evidence::kMeasured};
}

Calibration calibration() {
  Calibration c;
  c.gemm_bf16.efficiency = 0.5;
  c.gemm_bf16.hbm_fraction = 1;
  c.gemm_bf16.evidence = Evidence::kMeasured;
  c.gemm_fp32 = c.gemm_bf16;
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    c.attention.push_back(attention("fa2", 64, pass, 0.4));
    c.attention.push_back(attention("fa2", 128, pass, 0.6));
    c.attention.push_back(attention("cudnn", 128, pass, 0.8));
  }
  c.sdpa_kernel = "fa2";
  c.sdpa_preferred = "cudnn";
  for (MemoryCurve& curve : c.memory) curve.fraction = 1;
  return c;
}

Cluster cluster() { return Cluster{.gpu = gpu()}; }

CostChoices with_kernel(const char* name) { return CostChoices{.attention_kernel = name}; }

Kernel product(std::int64_t m, std::int64_t n, std::int64_t k) {
  return kernel_of(GemmPoint{Pass::kForward, false, m, n, k, 1});
}

Kernel attention_kernel(std::int64_t head_dim) {
  return kernel_of(AttentionPoint{Pass::kForward, false, true, 1, 4096, 16, 16, head_dim, 1});
}

TEST(KernelPrices, ProductsInFp8RunAtTheirOwnPeak) {
  Calibration c = calibration();
  Kernel kernel = product(4096, 4096, 4096);
  const double bf16 = CostModel(cluster(), c).price(kernel).seconds;
  kernel.fp8 = true;
  // Without a curve: as in bf16, an assumption.
  EXPECT_DOUBLE_EQ(CostModel(cluster(), c).price(kernel).seconds, bf16);
  EXPECT_EQ(CostModel(cluster(), c).price(kernel).evidence, Evidence::kAssumed);
  c.gemm_fp8 = c.gemm_bf16;
  EXPECT_DOUBLE_EQ(CostModel(cluster(), c).price(kernel).seconds, bf16 / 2);
}

TEST(KernelPrices, GroupsApartAreAsFastAsAPlainProductUntilBlackwell) {
  Kernel grouped = product(4096, 4096, 4096);
  grouped.groups = 2;
  Cluster on = cluster();
  const auto ratio = [&](const char* architecture) {
    on.gpu.architecture = architecture;
    const auto seconds = [&](bool apart) {
      return CostModel(on, calibration(), {.group_by_group = apart}).price(grouped).seconds;
    };
    return seconds(true) / seconds(false);
  };
  EXPECT_DOUBLE_EQ(ratio("hopper"), 0.75);
  EXPECT_DOUBLE_EQ(ratio("blackwell"), 1);
}

TEST(KernelPrices, ClocksFollowThePowerLimit) {
  Calibration c = calibration();
  c.power_limit = 400;
  c.power_exponent = 0.5;
  const Kernel kernel = product(4096, 4096, 4096);
  const double full = CostModel(cluster(), c).price(kernel).seconds;
  Cluster low = cluster();
  low.gpu.power_limit = 100;
  EXPECT_NEAR(CostModel(low, c).price(kernel).seconds, 2 * full, 1e-12);
  Kernel copy;
  copy.bytes = Bytes(1 << 30);  // memory has a clock of its own
  EXPECT_DOUBLE_EQ(CostModel(low, c).price(copy).seconds, CostModel(cluster(), c).price(copy).seconds);
}

TEST(KernelPrices, OddWidthsCostMore) {
  Calibration c = calibration();
  c.gemm_bf16.misaligned = {0.1, 0.3, 0.7};
  const CostModel costs(cluster(), c);
  const double even = costs.price(product(8192, 8192, 8192)).seconds;
  // Rows of 8196 elements are multiples of 8 bytes, of 8194 of 4, of 8193 of 2.
  const auto per_flop = [&](std::int64_t n) {
    const Kernel kernel = product(8192, n, 8192);
    return costs.price(kernel).seconds / static_cast<double>(n) * 8192 / even;
  };
  EXPECT_NEAR(per_flop(8200), 1, 1e-9);
  EXPECT_NEAR(per_flop(8196), 1.1, 1e-9);
  EXPECT_NEAR(per_flop(8194), 1.3, 1e-9);
  EXPECT_NEAR(per_flop(8193), 1.7, 1e-9);
  // Rows of the output are n wide: an odd number of them costs nothing.
  EXPECT_NEAR(costs.price(product(8193, 8192, 8192)).seconds / even, 8193.0 / 8192, 1e-9);
}

TEST(KernelPrices, HeadSizesBetweenCurvesAreInterpolated) {
  const CostModel costs(cluster(), calibration(), with_kernel("fa2"));
  const auto rate = [&](std::int64_t head_dim) {
    const Kernel kernel = attention_kernel(head_dim);
    return kernel.flops.count() / costs.price(kernel).seconds / 100e12;
  };
  EXPECT_NEAR(rate(64), 0.4, 1e-9);
  EXPECT_NEAR(rate(128), 0.6, 1e-9);
  EXPECT_NEAR(rate(96), 0.4 + 0.2 * std::log2(96.0 / 64), 1e-9);
  EXPECT_NEAR(rate(32), 0.4, 1e-9);
  EXPECT_NEAR(rate(256), 0.6, 1e-9);
}

TEST(KernelPrices, UnknownAttentionKernelsTakeTheirRelatives) {
  const auto price = [](const char* name) {
    return CostModel(cluster(), calibration(), with_kernel(name)).price(attention_kernel(128));
  };
  EXPECT_DOUBLE_EQ(price("").seconds, price("cudnn").seconds);
  EXPECT_DOUBLE_EQ(price("sdpa").seconds, price("cudnn").seconds);
  EXPECT_DOUBLE_EQ(price("sdpa_flash").seconds, price("fa2").seconds);
  EXPECT_DOUBLE_EQ(price("fa3").seconds, price("cudnn").seconds);
  EXPECT_DOUBLE_EQ(price("fa1").seconds, price("fa2").seconds);
  EXPECT_EQ(price("fa2").evidence, Evidence::kMeasured);
  EXPECT_EQ(price("fa1").evidence, Evidence::kAssumed);
  EXPECT_EQ(price("something new").evidence, Evidence::kAssumed);
}

TEST(KernelPrices, WithoutAMaskHasConstantsOfItsOwn) {
  Calibration c = calibration();
  for (AttentionCurve& curve : c.attention) curve.full_efficiency = 1.5 * curve.efficiency;
  const CostModel costs(cluster(), c, with_kernel("fa2"));
  Kernel kernel = attention_kernel(128);
  const double causal = costs.price(kernel).seconds;
  kernel.causal = false;
  EXPECT_NEAR(costs.price(kernel).seconds, causal / 1.5, 1e-12);
}

TEST(KernelPrices, RememberedIsComputedFromManyThreads) {
  const CostModel costs(cluster(), calibration());
  std::vector<Kernel> kernels;
  for (int i = 1; i <= 3000; ++i) kernels.push_back(product(64 + i, 128, 256));
  std::vector<int> wrong(4, 0);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 3; ++round) {
        for (const Kernel& kernel : kernels) {
          wrong[t] += costs.price(kernel).seconds != costs.compute_price(kernel).seconds;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int count : wrong) EXPECT_EQ(count, 0);
}

}
}
