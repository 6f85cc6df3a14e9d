// Products of AMD's GPUs: rows that hold more than one product, and what was published beside them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "calibration/machines.h"
#include "sim/base/lookup.h"
#include "sim/cost/measured.h"
#include "tests/tools/profiles/all_fits.h"

namespace foreshard {
namespace {

const Calibration& calibration_of(std::string_view gpu) { return fit_of(gpu).calibration; }

// A row of both gradients is the two products with the layer's sides exchanged, and their adding
// up: 6 B of each element of the input and the weight, at 0.79 of the bandwidth.
TEST(FitAmd, GradientsOfALayerAreTwoProducts) {
  const Gpu gpu = load_cluster("8xmi300x").gpu;
  GemmCurve curve = {.efficiency = 0.5, .k_half = 100, .hbm_fraction = 0.85, .m_half = 60, .n_half = 20};
  const auto seconds_of = [&](double m, double n, double k, bool gradients) {
    GemmRow row = {.m = m, .n = n, .k = k, .gradients = gradients};
    return gemm_seconds(curve, row, gpu);
  };
  const double added = 6 * (8192.0 * 4096 + 14336.0 * 4096) / (0.79 * 5.3e12) + 5e-6;
  EXPECT_NEAR(seconds_of(8192, 14336, 4096, true),
      seconds_of(8192, 4096, 14336, false) + seconds_of(14336, 4096, 8192, false) + added, 1e-9);
}

// Gradients alone say what a product costs.
TEST(FitAmd, GemmRecoversKnownConstantsFromGradients) {
  const Gpu gpu = load_cluster("8xmi300x").gpu;
  GemmCurve truth = {.efficiency = 0.47,
      .k_half = 90,
      .hbm_fraction = 0.9,
      .overhead = 3e-6,
      .m_half = 40,
      .n_half = 20,
      .wave = 0.08,
      .blend = 4,
      .slowdown = 0.01};
  std::vector<GemmRow> rows;
  int row_count = 0;
  for (const double m : {1024, 4096, 16384}) {
    for (const double n : {1024, 4096, 14336}) {
      for (const double k : {1024, 4096, 8192}) {
        GemmRow row = {.source = "synthetic", .m = m, .n = n, .k = k, .gradients = true};
        row.seconds = gemm_seconds(truth, row, gpu) * (row_count++ % 2 == 0 ? 1.02 : 0.98);
        rows.push_back(row);
      }
    }
  }
  GemmFitOptions options = {.hbm_fraction = 0.9};
  const GemmCurve found = fit_gemm_curve(rows, gpu, options);
  for (GemmRow row : rows) {
    row.gradients = false;
    EXPECT_NEAR(gemm_seconds(found, row, gpu) / gemm_seconds(truth, row, gpu), 1, 0.04)
        << row.m << ' ' << row.n << ' ' << row.k;
  }
}

// MI300X runs fp16 at a lower clock than bf16; no other chip is known to.
TEST(FitAmd, HalfIsSlowerOnMi300x) {
  GemmRow row;
  row.m = row.n = row.k = 8192;
  GemmRow half = row;
  half.half = true;
  for (const auto& [name, factor] : {std::pair{"mi300x", 708.0 / 654}, std::pair{"h100", 1.0}}) {
    const Gpu gpu = load_cluster(fmt::format("8x{}", name)).gpu;
    const GemmCurve& curve = calibration_of(gpu.key).gemm_bf16;
    EXPECT_NEAR(gemm_seconds(curve, half, gpu) / gemm_seconds(curve, row, gpu), factor, 1e-9);
  }
}

// Products of `shapes` in a row on a hot chip, TFLOP/s: all their operations over all their time.
double rate_of(
    const GemmCurve& curve, const Gpu& gpu, GemmType type, const std::vector<std::array<double, 3>>& shapes) {
  double flops = 0, seconds = 0;
  for (const auto& [m, n, k] : shapes) {
    GemmRow row = {.m = m, .n = n, .k = k, .type = type};
    flops += 2 * m * n * k;
    seconds += curve_seconds(curve, kernel_of(row), gpu);
  }
  return flops / seconds / 1e12;
}

// What AMD measured of MI325X, which no fit saw but for its ratio to MI300X: Typical Attained
// FLOPs, ten products of DeepSeek V3, 30 s of each (ROCm blogs, 2026-10).
TEST(FitAmd, Mi325xAgreesWithWhatAmdMeasured) {
  std::vector<std::array<double, 3>> shapes;
  for (const double m : {32, 32768}) {
    append(shapes, {{m, 2112, 7168}, {m, 3072, 1536}, {m, 7168, 2048}, {m, 4608, 7168}, {m, 7168, 256}});
  }
  const Gpu gpu = load_cluster("8xmi325x").gpu;
  const Calibration& c = calibration_of("mi325x");
  EXPECT_NEAR(rate_of(c.gemm_bf16, gpu, GemmType::k16Bit, shapes) / 616, 1, 0.13);
  EXPECT_NEAR(rate_of(c.gemm_fp8, gpu, GemmType::kFp8, shapes) / 1143, 1, 0.05);
}

// Two of hipBLASLt's rates of MI355X in fp8 beside the one that sets the scale.
TEST(FitAmd, Mi355xAgreesWithOtherSizesInFp8) {
  const Gpu gpu = load_cluster("8xmi355x").gpu;
  const GemmCurve& curve = calibration_of("mi355x").gemm_fp8;
  const auto rate = [&](double m, double n, double k) { return rate_of(curve, gpu, GemmType::kFp8, {{m, n, k}}); };
  EXPECT_NEAR(rate(8192, 8192, 8192) / 3130, 1, 0.005);
  EXPECT_NEAR(rate(4096, 4096, 4096) / 2750, 1, 0.08);
  EXPECT_NEAR(rate(4096, 65536, 14336) / 3273, 1, 0.06);
}

// AMD's Max-Achievable FLOPs are of one shape chosen for the chip: no product comes near.
TEST(FitAmd, NoProductOfMi300xExceedsTheAchievable) {
  const Gpu gpu = load_cluster("8xmi300x").gpu;
  const Calibration& c = calibration_of("mi300x");
  for (const double size : {4096, 8192, 16384, 65536}) {
    const std::vector<std::array<double, 3>> shape = {{size, size, size}};
    EXPECT_LT(rate_of(c.gemm_bf16, gpu, GemmType::k16Bit, shape), 708);
    EXPECT_LT(rate_of(c.gemm_fp8, gpu, GemmType::kFp8, shape), 1273);
  }
}

// Four products of the library of October 2024 (ROCm/TransformerEngine#73) fit nothing; they are in
// the report and in the spread.
TEST(FitAmd, AnOlderLibraryIsOnlyASpread) {
  const CurveReport& report = fit_of("mi300x").reports.front();
  EXPECT_EQ(report.rows.find("TransformerEngine"), std::string::npos);
  const auto apart =
      std::ranges::find_if(report.errors, [](const FitError& error) { return error.what.starts_with("not fitted: "); });
  ASSERT_NE(apart, report.errors.end());
  EXPECT_EQ(apart->rows, 4);
  EXPECT_NEAR(apart->log_bias, -0.16, 0.04);
}

// AMD's spreads are what its own sources say, and NVIDIA's what NVIDIA's say.
TEST(FitAmd, SpreadsOfProductsAreAVendors) {
  const auto spread = [](const char* gpu, Factor factor) { return calibration_of(gpu).factor(factor).log_sd; };
  // Root mean squares of 0.095 and 0.080; six biases in all: Student's t of six degrees of freedom
  // has its 95 % quantile at 1.943, a normal at 1.645.
  EXPECT_NEAR(spread("mi300x", Factor::kGemm), 0.095 * 1.943 / 1.645, 0.01);
  EXPECT_NEAR(spread("mi355x", Factor::kGemm), 0.080 * 1.943 / 1.645, 0.01);
  EXPECT_EQ(spread("mi325x", Factor::kGemm), 0.10);       // AMD's own ratio to MI300X
  EXPECT_EQ(spread("mi250x", Factor::kGemm), 0.18);       // a curve of another card
  EXPECT_EQ(spread("mi300x", Factor::kAttention), 0.25);  // shapes are H100's
  EXPECT_NEAR(spread("h100-sxm", Factor::kGemm), 0.036, 0.002);
}

const AttentionCurve& attention_of(std::string_view gpu, std::string_view kernel, Pass pass, std::int64_t head_dim) {
  for (const AttentionCurve& curve : calibration_of(gpu).attention) {
    if (curve.kernel == kernel && curve.pass == pass && curve.head_dim == head_dim) return curve;
  }
  throw std::runtime_error(std::string(kernel));
}

// PyTorch's own attention: 290 TFLOP/s forward at 8,192 positions of 128, and a third of that
// backward until AOTriton calls aiter's.
TEST(FitAmd, PyTorchsAttentionIsTriton) {
  const Calibration& c = calibration_of("mi300x");
  EXPECT_EQ(c.sdpa_kernel, "aotriton");
  EXPECT_EQ(c.sdpa_preferred, "aotriton_asm");
  const AttentionCurve& forward = attention_of("mi300x", "aotriton", Pass::kForward, 128);
  const double rate = forward.efficiency * 1307.4e12 / (1 + forward.s_half / 8192);
  EXPECT_NEAR(rate, 289.55e12, 0.05 * 289.55e12);
  const AttentionCurve& backward = attention_of("mi300x", "aotriton", Pass::kBackward, 128);
  EXPECT_NEAR(backward.efficiency, 0.345 * forward.efficiency, 1e-6);
  EXPECT_EQ(attention_of("mi300x", "aotriton_asm", Pass::kForward, 128).efficiency, forward.efficiency);
  EXPECT_EQ(attention_of("mi300x", "aotriton_asm", Pass::kBackward, 128).efficiency,
      attention_of("mi300x", "fa3", Pass::kBackward, 128).efficiency);
}

// MI210: 94.61 of 181 TFLOP/s without a mask at 8,192 positions of 64.
TEST(FitAmd, TheMi200sUseMoreOfTheirUnits) {
  const AttentionCurve& curve = attention_of("mi250x", "aotriton", Pass::kForward, 64);
  EXPECT_NEAR(curve.full_efficiency / (1 + curve.full_s_half / 8192), 94.61 / 181, 1e-3);
}

}
}
