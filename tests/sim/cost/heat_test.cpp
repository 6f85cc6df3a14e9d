// The clock that a power limit leaves products: within the limit, and no lower than it must be.

#include <gtest/gtest.h>

#include <cmath>

#include "sim/cost/cost_model.h"

namespace foreshard::heat_test {
namespace {

// 100 W idle, 1 J for a TFLOP.
HeatCurve curve() {
  return HeatCurve{.idle = 100,
      .joules_per_flop = 1e-12,
      .joules_per_byte = 1e-10,
      .energy_exponent = 1.2,
      .rate_exponent = 0.4,
      .cool = 0.9};
}

// W drawn at a clock, with products as much slower as it makes them.
double watts_at(double clock, const HeatLoad& load) {
  const HeatCurve c = curve();
  const double seconds = load.products * std::pow(clock, -c.rate_exponent) + load.others;
  return c.idle + load.joules / seconds * std::pow(clock, c.energy_exponent);
}

// By bisection: the greatest clock within the limit.
double clock_of(const HeatLoad& load, double limit) {
  double low = 0.01, high = 1;
  if (watts_at(high, load) <= limit) return high;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (watts_at(middle, load) <= limit ? low : high) = middle;
  }
  return low;
}

TEST(Heat, ALimitThatDoesNotBindLeavesTheTopClock) {
  // 0.01 s that takes 2 J: 100 + 200 W.
  EXPECT_DOUBLE_EQ(product_heat(curve(), {0.005, 0.005, 2}, 300), 0.9);
  EXPECT_GT(product_heat(curve(), {0.005, 0.005, 2}, 299), 0.9);
  EXPECT_DOUBLE_EQ(product_heat(curve(), {0, 0.01, 9}, 300), 0.9);  // no products to slow down
}

TEST(Heat, TheClockIsTheGreatestWithinTheLimit) {
  for (const double share : {0.2, 0.5, 0.8, 1.0}) {
    for (const double limit : {300.0, 400.0, 500.0, 700.0}) {
      const HeatLoad load{0.01 * share, 0.01 * (1 - share), 2 + 6 * share};
      const double slower = std::pow(clock_of(load, limit), -curve().rate_exponent);
      // Exact for products alone; else to first order in what they stretch the row.
      EXPECT_NEAR(product_heat(curve(), load, limit), 0.9 * slower, share < 1 ? 0.02 : 1e-9)
          << share << " of products under " << limit << " W";
    }
  }
}

Kernel product() {
  Kernel kernel = {.kind = KernelKind::kGemm};
  kernel.m = kernel.n = kernel.k = 8192;
  kernel.flops = Flops(2.0 * 8192 * 8192 * 8192);
  kernel.bytes = Bytes(3LL * 8192 * 8192 * 2);
  return kernel;
}

CostModel costs(double limit, Calibration calibration) {
  Cluster cluster;
  cluster.gpu.multiprocessors = 100;
  cluster.gpu.peak_bf16 = FlopsPerSecond(1e15);
  cluster.gpu.peak_fp32 = FlopsPerSecond(1e14);
  cluster.gpu.peak_fp8 = FlopsPerSecond(2e15);
  cluster.gpu.memory_bandwidth = BytesPerSecond(2e12);
  cluster.gpu.power_limit = limit;
  calibration.gemm_bf16.efficiency = 0.8;
  calibration.gemm_bf16.hbm_fraction = 1;
  calibration.heat = curve();
  for (MemoryCurve& memory : calibration.memory) memory.fraction = 1;
  return CostModel(cluster, calibration);
}

// Of a row of one product, and of one with a copy of 1 GiB behind it (0.5 ms): s.
std::pair<double, double> alone_and_beside(const CostModel& costs) {
  EventGraph graph;
  Kernel copy = {.bytes = Bytes(1 << 30)};
  graph.kernels = {product(), copy};
  Work alone, beside;
  alone.kernels_end = 1;
  beside.kernels_end = 2;
  graph.works = {alone, beside};
  const CostTable table = costs.price(graph);
  const double copied = costs.price(copy).seconds;
  return {table.works[0].duration.seconds(), table.works[1].duration.seconds() - copied};
}

TEST(Heat, ProductsAreFasterWhereOtherKernelsLetTheChipCool) {
  // At 0.9 of the curve's 1.37 ms a product draws 100 + 0.89 kW, with the copy 100 + 0.69.
  const auto [alone, beside] = alone_and_beside(costs(600, {}));
  EXPECT_LT(beside, 0.95 * alone);
  const auto [cool, cool_beside] = alone_and_beside(costs(2000, {}));
  EXPECT_NEAR(cool, cool_beside, 1e-9);
  EXPECT_LT(cool, beside);
  EXPECT_NEAR(cool, 0.9 * costs(2000, {}).price(product()).seconds, 1e-9);
}

TEST(Heat, PointsOfOnesOwnWereMeasuredHot) {
  Calibration measured;
  measured.measured.gemm.push_back({});
  GemmPoint& point = measured.measured.gemm.back();
  point.m = point.n = point.k = 8192;
  point.seconds = 2e-3;
  const CostModel model = costs(600, measured);
  const auto [alone, beside] = alone_and_beside(model);
  EXPECT_NEAR(alone, model.price(product()).seconds, 1e-9);
  EXPECT_NEAR(beside, alone, 1e-9);
}

}
}
