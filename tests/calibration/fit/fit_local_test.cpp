// Fits of a synthetic machine whose constants are known (tests/calibration/synthetic.h).
#include "calibration/fit/fit_local.h"

#include <gtest/gtest.h>

#include <cmath>

#include "sim/base/error.h"
#include "sim/cost/cost_model.h"
#include "tests/calibration/synthetic.h"

namespace foreshard {
namespace {

LocalFit fit_of(const SyntheticRaw& raw) { return fit_local(parse_measurements(raw.text(), "raw.json")); }
const LocalFit& fit() {
  static const LocalFit made = fit_of(SyntheticRaw());
  return made;
}

CostModel costs_of(std::int64_t ranks) {
  LocalMachine machine = local_machine(fit().profile, ranks);
  CostChoices choices = {.order = ReductionOrder::kMicrobatch};
  return CostModel(machine.cluster, machine.calibration, choices);
}

Kernel product(std::int64_t m, std::int64_t n, std::int64_t k) {
  return kernel_of(GemmPoint{Pass::kForward, true, m, n, k, 1});
}

Kernel moving(Function function, std::int64_t bytes) { return Kernel{.function = function, .bytes = Bytes(bytes)}; }

TEST(LocalFit, HasAVariantPerNumberOfRanks) {
  const LocalProfile& profile = fit().profile;
  EXPECT_EQ(profile.id, "box-2026-01-31T12-00-00Z");
  ASSERT_EQ(profile.variants.size(), 2U);
  // The best product is the largest of the longest inner width: 2mnk over its time.
  const double flops = 2.0 * 2048 * 1024 * 1024;
  EXPECT_NEAR(profile.variants[0].peak_fp32.value(), flops / SyntheticRaw::gemm(1024, 1024, 2048, 1), 1e4);
  // Two ranks at once do 0.8 each, but for the 2 us.
  EXPECT_NEAR(profile.variants[1].peak_fp32.value() / profile.variants[0].peak_fp32.value(), 0.8, 1e-3);
  EXPECT_NEAR(profile.variants[0].memory_bandwidth.value(), 1e7 / (3e-6 + 1e-3), 1e3);
  EXPECT_EQ(profile.variants[1].memory_outside, Bytes(64 << 20));
}

TEST(LocalFit, FindsTheConstantsOfProducts) {
  const LocalVariant& variant = fit().profile.variants[0];
  const GemmCurve& curve = variant.calibration.gemm_fp32;
  // efficiency * peak is the rate at large shapes.
  EXPECT_NEAR(curve.efficiency * variant.peak_fp32.value(), 100e9, 1e9);
  EXPECT_NEAR(curve.k_half, 20, 2);
  EXPECT_NEAR(curve.overhead, 2e-6, 3e-7);
  EXPECT_EQ(curve.evidence, Evidence::kMeasured);
  EXPECT_EQ(variant.calibration.gemm_bf16.evidence, Evidence::kAssumed);
}

TEST(LocalFit, MeasuredShapesAndSizesArePricedExactly) {
  for (const int ranks : {1, 2}) {
    const CostModel costs = costs_of(ranks);
    const KernelPrice gemm = costs.price(product(512, 1024, 256));
    EXPECT_NEAR(gemm.seconds / SyntheticRaw::gemm(512, 1024, 256, ranks), 1, 1e-7);
    EXPECT_EQ(gemm.evidence, Evidence::kMeasured);
    const KernelPrice copy = costs.price(moving(Function::kCopy, 100'000));
    EXPECT_NEAR(copy.seconds / SyntheticRaw::function(1e5, ranks), 1, 1e-7);
    EXPECT_EQ(copy.evidence, Evidence::kMeasured);
  }
}

TEST(LocalFit, BetweenShapesAndSizesItInterpolates) {
  const CostModel costs = costs_of(1);
  const KernelPrice gemm = costs.price(product(300, 700, 600));
  EXPECT_NEAR(gemm.seconds / SyntheticRaw::gemm(300, 700, 600, 1), 1, 0.01);
  EXPECT_EQ(gemm.evidence, Evidence::kInterpolated);
  // Times that are a line in bytes are met exactly, inside and outside.
  const KernelPrice inside = costs.price(moving(Function::kAdamW, 3'000'000));
  EXPECT_NEAR(inside.seconds / SyntheticRaw::function(3e6, 1), 1, 1e-6);
  EXPECT_EQ(inside.evidence, Evidence::kInterpolated);
  const KernelPrice outside = costs.price(moving(Function::kAdamW, 1'000'000'000));
  EXPECT_NEAR(outside.seconds / SyntheticRaw::function(1e9, 1), 1, 1e-6);
  EXPECT_EQ(outside.evidence, Evidence::kExtrapolated);
  // Far from all shapes: the curve.
  const KernelPrice far = costs.price(product(16384, 65536, 4096));
  EXPECT_NEAR(far.seconds / SyntheticRaw::gemm(16384, 65536, 4096, 1), 1, 0.02);
  EXPECT_EQ(far.evidence, Evidence::kExtrapolated);
}

TEST(LocalFit, AFunctionThatNobodyMeasuredTakesItsClassesTime) {
  const KernelPrice price = costs_of(1).price(moving(Function::kGelu, 1'000'000));
  EXPECT_NEAR(price.seconds / SyntheticRaw::function(1e6, 1), 1, 0.05);
  EXPECT_EQ(price.evidence, Evidence::kExtrapolated);
}

TEST(LocalFit, CollectivesHostAndOverlap) {
  const CostModel costs = costs_of(2);
  const KernelPrice gather = costs.price(EventKind::kAllGather, Bytes(3'000'000), {2, 1});
  EXPECT_NEAR(gather.seconds / SyntheticRaw::collective(3e6), 1, 1e-6);
  EXPECT_EQ(gather.evidence, Evidence::kInterpolated);
  const Calibration& c = costs.calibration();
  EXPECT_DOUBLE_EQ(c.host.per_row, 2e-6);
  EXPECT_DOUBLE_EQ(c.host.per_hook, 1e-6);
  EXPECT_DOUBLE_EQ(c.host.per_collective, 10e-6);
  EXPECT_DOUBLE_EQ(c.host.per_launch, 0);
  EXPECT_DOUBLE_EQ(c.contention.compute, 1.25);
  EXPECT_DOUBLE_EQ(c.contention.communication, 1.5);
}

TEST(LocalFit, ErrorsOnOwnAndOnLeftOutRows) {
  for (const VariantReport& report : fit().reports) {
    for (const CurveReport& curve : report.curves) {
      ASSERT_EQ(curve.errors.size(), 2U) << curve.curve;
      EXPECT_LT(curve.errors[0].p90, 1e-6) << curve.curve;
      // Attention has three sizes: two are few to fit a curve to.
      const double limit = curve.curve.starts_with("attention") ? 0.05 : 0.02;
      EXPECT_LT(curve.errors[1].p90, limit) << curve.curve;
    }
  }
  EXPECT_EQ(fit().reports[0].gaps.size(), 0U);
  // A shape that is 50 % slower than its neighbours say is exact on its own row, and not when left out.
  const LocalFit odd = fit_of(SyntheticRaw().row(
      R"({"kind": "gemm", "ranks": 1, "pass": "forward", "dtype": "fp32", "m": 300, "n": 700,
          "k": 600, )" +
      SyntheticRaw::seconds(1.5 * SyntheticRaw::gemm(300, 700, 600, 1)) + "}"));
  const CurveReport& gemm = odd.reports[0].curves[0];
  EXPECT_LT(gemm.errors[0].p90, 1e-6);
  EXPECT_EQ(gemm.errors[1].rows, 37);
  const LocalMachine machine = local_machine(odd.profile, 1);
  const CostModel costs(machine.cluster, machine.calibration);
  EXPECT_NEAR(costs.price(product(300, 700, 600)).seconds / (1.5 * SyntheticRaw::gemm(300, 700, 600, 1)), 1, 1e-7);
}

TEST(LocalFit, SpreadIsThatOfTheRepeatsAndAtLeastTheFloor) {
  // Quartiles 1 % to each side are a standard deviation of 0.0148, below the floor of 0.02.
  const FactorSpread& spread = fit().profile.variants[0].calibration.factor(Factor::kGemm);
  EXPECT_DOUBLE_EQ(spread.log_sd, 0.02);
  EXPECT_NE(spread.source.find("0.015"), std::string::npos) << spread.source;
}

TEST(LocalFit, OneShapeMeasuredTwiceIsTheGeometricMean) {
  const std::string row =
      R"({"kind": "gemm", "ranks": 1, "pass": "forward", "dtype": "fp32", "m": 64, "n": 64, "k": 64, )";
  const LocalFit twice =
      fit_of(SyntheticRaw().row(row + SyntheticRaw::seconds(1e-5) + "}").row(row + SyntheticRaw::seconds(4e-5) + "}"));
  const LocalMachine machine = local_machine(twice.profile, 1);
  EXPECT_NEAR(CostModel(machine.cluster, machine.calibration).price(product(64, 64, 64)).seconds, 2e-5, 1e-11);
}

TEST(LocalFit, NoiseNeverMakesMoreBytesCheaper) {
  const std::vector<SizePoint> points = smoothed({{100, 4}, {10, 1}, {20, 2}, {40, 8}, {20, 2}, {200, 10}});
  // 40 B at 8 s and 100 B at 4 s are pooled to sqrt(32).
  ASSERT_EQ(points.size(), 5U);
  EXPECT_DOUBLE_EQ(points[1].seconds, 2);
  EXPECT_NEAR(points[2].seconds, std::sqrt(32), 1e-6);
  EXPECT_EQ(points[2].seconds, points[3].seconds);
  double last = 0;
  for (double bytes = 1; bytes < 400; bytes += 1) {
    const double now = seconds_at(points, bytes).value;
    EXPECT_GE(now, last) << bytes;
    last = now;
  }
}

TEST(LocalFit, WithoutARateToStartFromItSaysWhatIsMissing) {
  Measurements m = parse_measurements(SyntheticRaw().text(), "raw.json");
  m.gemm.clear();
  try {
    fit_local(m);
    ADD_FAILURE() << "fitted";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::kInvalidInput);
    EXPECT_NE(std::string(error.what()).find("raw.json: no matrix product"), std::string::npos) << error.what();
  }
  m = parse_measurements(SyntheticRaw().text(), "raw.json");
  m.attention.clear();
  m.collectives.clear();
  m.contention.clear();
  m.host_work.clear();
  m.memory_outside.clear();
  const LocalFit bare = fit_local(m);
  EXPECT_EQ(bare.reports[0].gaps.size(), 3U);  // attention, host, memory outside
  EXPECT_EQ(bare.reports[1].gaps.size(), 5U);  // and collectives and contention
  EXPECT_EQ(bare.profile.variants[1].calibration.intra_node.evidence, Evidence::kAssumed);
}

}
}
