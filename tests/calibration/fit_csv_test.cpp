#include "calibration/fit_csv.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

#include "calibration/profile.h"
#include "calibration/published.h"
#include "sim/base/error.h"

namespace foreshard {
namespace {

// Products of an H20 that run at `factor` of what its shipped profile says.
std::string rows_of(double factor, int count) {
  const std::vector<Machine> machines = list_machines();
  const Calibration shipped = load_profile("h20");
  const Gpu gpu = load_cluster("8xh20").gpu;
  std::string text = "gpu,m,n,k,dtype,latency_us\n";
  for (int i = 0; i < count; ++i) {
    GemmRow row;
    row.m = 4096 << (i % 3);
    row.n = i % 2 == 0 ? 4096 : 12288;
    row.k = 8192;
    text += fmt::format("NVIDIA H20,{},{},{},bf16,{}\n", row.m, row.n, row.k,
                        gemm_seconds(shipped.gemm_bf16, row, gpu) / factor * 1e6);
  }
  return text;
}

TEST(FitCsv, SixLargeProductsSetTheScale) {
  const CsvFit fit = fit_gemm_csv({CsvTable(rows_of(0.8, 6), "h20.csv")}, "ours");
  const Calibration shipped = load_profile("h20");
  EXPECT_EQ(fit.calibration.gpu, "h20");
  EXPECT_EQ(fit.calibration.id, "ours");
  EXPECT_EQ(fit.calibration.gemm_bf16.evidence, Evidence::kMeasured);
  const Gpu gpu = load_cluster("8xh20").gpu;
  GemmRow row;
  row.m = 2048;
  row.n = 5120;
  row.k = 5120;
  EXPECT_NEAR(
      gemm_seconds(fit.calibration.gemm_bf16, row, gpu) / gemm_seconds(shipped.gemm_bf16, row, gpu),
      1 / 0.8, 0.03);
  EXPECT_LT(fit.calibration.factor(Factor::kGemm).log_sd, shipped.factor(Factor::kGemm).log_sd);
}

TEST(FitCsv, OddRowsAreNamed) {
  const CsvFit fit =
      fit_gemm_csv({CsvTable(rows_of(1, 6) + "NVIDIA H20,1,,1,bf16,3\n", "h20.csv")}, "ours");
  ASSERT_FALSE(fit.notes.empty());
  EXPECT_NE(fit.notes.front().find("h20.csv:8"), std::string::npos) << fit.notes.front();
  EXPECT_THROW(fit_gemm_csv({CsvTable("gpu,m,n,k,tflops\nx,1,1,1,1\n", "x.csv")}, "x"), Error);
  EXPECT_THROW(
      fit_gemm_csv({CsvTable("gpu,m,n,k,tflops\nH100,64,64,64,1\nA100,64,64,64,1\n", "x.csv")},
                   "x"),
      Error);
}

}  // namespace
}  // namespace foreshard
