// Corrections of shapes, lines between sizes, and collectives of other groups.
#include "sim/cost/measured.h"

#include <gtest/gtest.h>

#include <cmath>

#include "sim/cost/cost_model.h"
#include "sim/graph/training_step.h"
#include "tests/support/fixtures.h"

namespace foreshard::measured_test {
namespace {

Kernel product(std::int64_t m, std::int64_t n, std::int64_t k) {
  return kernel_of(GemmPoint{Pass::kForward, true, m, n, k, 1});
}

TEST(ShapeCorrection, IsExactAtAPointAndFadesAwayFromIt) {
  ShapeCorrection correction;
  correction.add(product(100, 100, 100), 2);
  EXPECT_DOUBLE_EQ(correction.at(product(100, 100, 100)).value, 2);
  EXPECT_EQ(correction.at(product(100, 100, 100)).evidence, Evidence::kMeasured);
  // At distance log 4 the point weighs as much as the curve: the root of 2.
  EXPECT_NEAR(correction.at(product(400, 100, 100)).value, std::sqrt(2.0), 1e-12);
  EXPECT_NEAR(correction.at(product(1'000'000, 100, 100)).value, 1, 0.01);
  EXPECT_EQ(correction.at(product(400, 100, 100)).evidence, Evidence::kExtrapolated);
}

TEST(ShapeCorrection, BetweenPointsItIsBetweenThem) {
  ShapeCorrection correction;
  correction.add(product(100, 100, 100), 1.2);
  correction.add(product(400, 100, 100), 1.5);
  double last = 1.2;
  for (std::int64_t m = 110; m < 400; m += 10) {
    const Estimate estimate = correction.at(product(m, 100, 100));
    EXPECT_GT(estimate.value, 1.15);
    EXPECT_LT(estimate.value, 1.5);
    EXPECT_EQ(estimate.evidence, Evidence::kInterpolated);
    last = estimate.value;
  }
  EXPECT_NEAR(last, 1.5, 0.01);
  // Leaving a point out is as if it had not been added.
  EXPECT_DOUBLE_EQ(correction.without(1).at(product(100, 100, 100)).value, 1.2);
  EXPECT_EQ(correction.without(0).at(product(100, 100, 100)).evidence, Evidence::kExtrapolated);
}

TEST(ShapeCorrection, PassesAndDtypesAreApart) {
  ShapeCorrection correction;
  correction.add(product(100, 100, 100), 2);
  Kernel other = product(100, 100, 100);
  other.pass = Pass::kBackward;
  EXPECT_DOUBLE_EQ(correction.at(other).value, 1);
  EXPECT_EQ(correction.at(other).evidence, Evidence::kExtrapolated);
  other = product(100, 100, 100);
  other.fp32 = false;
  EXPECT_DOUBLE_EQ(correction.at(other).value, 1);
}

// 192 tiles of 256 x 256 are one wave and a half of 128 units, 384 tiles of 128 x 256 three.
TEST(CurveSeconds, TilesAreHipblasltsOnAmd) {
  GemmCurve curve = {.efficiency = 0.5, .hbm_fraction = 1, .wave = 0.3};
  GemmCurve flat = curve;
  flat.wave = 0;
  Gpu gpu = {.multiprocessors = 128, .peak_fp32 = FlopsPerSecond(1e14), .memory_bandwidth = BytesPerSecond(1e13)};
  const Kernel kernel = product(4096, 3072, 4096);
  const auto waste = [&](const char* architecture) {
    gpu.architecture = architecture;
    return curve_seconds(curve, kernel, gpu) / curve_seconds(flat, kernel, gpu) - 1;
  };
  EXPECT_NEAR(waste("cdna3"), 0.3 / 3, 1e-9);
  EXPECT_NEAR(waste("hopper"), 0, 1e-9);
}

Gpu hopper() { return Gpu{.multiprocessors = 132, .clock = 1.83e9, .peak_bf16 = FlopsPerSecond(989e12)}; }

// Experts' rows lie between features: how many a group has aligns nothing.
TEST(CurveSeconds, RowsOfAGroupAreAlignedWhateverTheirNumber) {
  GemmCurve curve = {.efficiency = 1, .hbm_fraction = 1, .misaligned = {1, 1, 1}};
  Gpu gpu = hopper();
  gpu.memory_bandwidth = BytesPerSecond(1e18);  // nothing waits for it
  const auto seconds = [&](std::int64_t k, std::int64_t groups) {
    Kernel kernel = product(1536, 1024, k);
    kernel.pass = Pass::kBackward;
    kernel.fp32 = false;
    kernel.groups = groups;
    return curve_seconds(curve, kernel, gpu);
  };
  EXPECT_NEAR(seconds(820, 40) / seconds(824, 40), 820 / 824.0, 1e-6);
  EXPECT_NEAR(seconds(820, 1) / seconds(824, 1), 2 * 820 / 824.0, 1e-6);
}

// A mask of every pair and dropout: what forward and backward take besides, as cuDNN's do.
TEST(CurveSeconds, ScoresThatAreMaskedOrDroppedTakeLonger) {
  const Gpu gpu = hopper();
  AttentionCurve curve = {.efficiency = 0.5};
  Kernel kernel = kernel_of(AttentionPoint{
      .fp32 = false, .causal = false, .batch = 1, .sequence = 4096, .heads = 8, .kv_heads = 8, .head_dim = 64});
  const double plain = curve_seconds(curve, kernel, gpu);
  kernel.masked = true;
  EXPECT_NEAR(curve_seconds(curve, kernel, gpu), 1.6 * plain, 1e-9);
  kernel.masked = false;
  kernel.dropout = true;
  const double pairs = 8.0 * 4096 * 4096;
  EXPECT_NEAR(curve_seconds(curve, kernel, gpu) - plain, pairs * 0.95e-12, 0.02 * plain);
}

// 262,144 heads of 64 values: 385 us of an H200, where their bytes take 20.
TEST(RowSeconds, ShortRowsOfANormTakeABlockEach) {
  const Gpu gpu = hopper();
  MemoryCurve streams = {.fraction = 0.9};
  Kernel kernel = {.memory_class = MemoryClass::kNormForward, .m = 262144};
  EXPECT_NEAR(row_seconds(kernel, streams, gpu), 385e-6, 4e-6);
  kernel.memory_class = MemoryClass::kGeneratedNorm;
  EXPECT_EQ(row_seconds(kernel, streams, gpu), 0);
}

// 16,384 rows of 1,024 values in 16 bits: 35 us for the input's gradient and 79 for the weights'.
TEST(RowSeconds, WeightsOfANarrowNormGoDownItsRows) {
  Gpu gpu = hopper();
  gpu.memory_bandwidth = BytesPerSecond(4.8e12);
  MemoryCurve streams = {.fraction = 0.9};
  Kernel kernel = {.memory_class = MemoryClass::kNormBackward, .m = 16384, .bytes = Bytes(3LL * 16384 * 1024 * 2)};
  EXPECT_NEAR(row_seconds(kernel, streams, gpu), 114e-6, 0.15 * 114e-6);
  // Above 65,536 rows narrow ones share their columns.
  kernel.m = 131072;
  kernel.bytes = Bytes(3LL * 131072 * 1024 * 2);
  EXPECT_LT(row_seconds(kernel, streams, gpu), 131072 / 16384 * 79e-6);
}

TEST(SecondsAt, LinesBetweenPoints) {
  // 10 us + bytes / 1 GB/s up to 1 MB, then 0.5 GB/s: a cache that ends.
  const std::vector<SizePoint> points = {{1e5, 110e-6}, {1e6, 1010e-6}, {2e6, 3010e-6}};
  EXPECT_DOUBLE_EQ(seconds_at(points, 1e6).value, 1010e-6);
  EXPECT_EQ(seconds_at(points, 1e6).evidence, Evidence::kMeasured);
  EXPECT_NEAR(seconds_at(points, 5e5).value, 510e-6, 1e-15);
  EXPECT_EQ(seconds_at(points, 5e5).evidence, Evidence::kInterpolated);
  EXPECT_NEAR(seconds_at(points, 0).value, 10e-6, 1e-15);
  EXPECT_NEAR(seconds_at(points, 4e6).value, 7010e-6, 1e-15);
  EXPECT_EQ(seconds_at(points, 4e6).evidence, Evidence::kExtrapolated);
  // One point: in proportion. Two that would start below zero: in proportion below them.
  EXPECT_DOUBLE_EQ(seconds_at(std::vector<SizePoint>{{10, 1}}, 5).value, 0.5);
  EXPECT_DOUBLE_EQ(seconds_at(std::vector<SizePoint>{{10, 1}, {20, 4}}, 5).value, 0.5);
}

MeasuredPoints collectives() {
  MeasuredPoints measured;
  for (const std::int64_t group : {2, 4}) {
    // 10 us per hop, and the share of the buffer that travels at 1 GB/s.
    const double hops = static_cast<double>(group - 1);
    const double share = hops / static_cast<double>(group);
    CollectivePoints points = {.group = group};
    for (const double bytes : {1e4, 1e6}) points.points.push_back({bytes, 10e-6 * hops + share * bytes / 1e9});
    measured.collectives.push_back(points);
  }
  return measured;
}

TEST(CollectiveAt, GroupsThatWereNotMeasured) {
  const MeasuredPoints measured = collectives();
  CollectiveCall call = {.group = 4, .bytes = 1e6};
  EXPECT_DOUBLE_EQ(collective_at(measured, call)->value, 30e-6 + 750e-6);
  call.group = 3;  // between 510 us and 780 us
  EXPECT_NEAR(collective_at(measured, call)->value, 645e-6, 1e-12);
  EXPECT_EQ(collective_at(measured, call)->evidence, Evidence::kInterpolated);
  call.group = 8;  // seven hops, 7/8 of the buffer
  EXPECT_NEAR(collective_at(measured, call)->value, 70e-6 + 875e-6, 1e-9);
  EXPECT_EQ(collective_at(measured, call)->evidence, Evidence::kExtrapolated);
  call.group = 2;
  call.order = ReductionOrder::kLibrary;
  EXPECT_DOUBLE_EQ(collective_at(measured, call)->value, 510e-6);
  EXPECT_EQ(collective_at(measured, call)->evidence, Evidence::kExtrapolated);
  call.operation = CollectiveOperation::kAllReduce;
  EXPECT_FALSE(collective_at(measured, call).has_value());
}

TEST(CostModelOnCpu, HostWorkIsPerRowAndLaunchesAreFree) {
  Calibration c = round_calibration();
  c.host.per_launch = 0;
  c.host.per_hook = 1e-6;
  c.host.per_row = 2e-6;
  c.host.per_collective = 10e-6;
  const EventGraph graph = build_training_step(tiny_model(2), tiny_plan());
  const CostTable table = CostModel(round_cluster(8), c).price(graph);
  for (std::size_t i = 0; i < graph.works.size(); ++i) {
    const Work& work = graph.works[i];
    const std::int64_t ns = 2000 + 1000 * work.hooks + (is_collective(work.kind) ? std::int64_t{10'000} : 0);
    EXPECT_EQ(table.works[i].before, Time::ns(ns));
    EXPECT_EQ(table.works[i].during, Time());
  }
}

TEST(CostModelOnCpu, FunctionsAreFoundByFunctionPassAndDtype) {
  Calibration c = round_calibration();
  c.measured.functions = {{Function::kAdd, Pass::kForward, true, {{1000, 1}}},
      {Function::kAdd, Pass::kForward, false, {{1000, 2}}}, {Function::kAdd, Pass::kBackward, true, {{1000, 3}}}};
  Kernel kernel = {.function = Function::kAdd, .bytes = Bytes(1000)};
  const auto price = [&](DType compute) {
    CostChoices choices = {.compute = compute};
    return CostModel(round_cluster(8), c, choices).price(kernel).seconds;
  };
  EXPECT_EQ(price(DType::kFp32), 1);
  EXPECT_EQ(price(DType::kBf16), 2);
  kernel.pass = Pass::kBackward;
  EXPECT_EQ(price(DType::kBf16), 3);  // of the other dtype: better than of the class
  kernel.function = Function::kGelu;  // not measured: the class, 1000 B at 1 TB/s
  EXPECT_NEAR(price(DType::kFp32), 1e-9, 1e-15);
}

}
}
