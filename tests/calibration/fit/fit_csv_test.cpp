#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

#include "calibration/fit/fit_device.h"
#include "calibration/profile_store.h"
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
    text += fmt::format(
        "NVIDIA H20,{},{},{},bf16,{}\n", row.m, row.n, row.k, gemm_seconds(shipped.gemm_bf16, row, gpu) / factor * 1e6);
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
      gemm_seconds(fit.calibration.gemm_bf16, row, gpu) / gemm_seconds(shipped.gemm_bf16, row, gpu), 1 / 0.8, 0.03);
  EXPECT_LT(fit.calibration.factor(Factor::kGemm).log_sd, shipped.factor(Factor::kGemm).log_sd);
}

TEST(FitCsv, OddRowsAreNamed) {
  const CsvFit fit = fit_gemm_csv({CsvTable(rows_of(1, 6) + "NVIDIA H20,1,,1,bf16,3\n", "h20.csv")}, "ours");
  ASSERT_FALSE(fit.notes.empty());
  EXPECT_NE(fit.notes.front().find("h20.csv:8"), std::string::npos) << fit.notes.front();
  EXPECT_THROW(fit_gemm_csv({CsvTable("gpu,m,n,k,tflops\nx,1,1,1,1\n", "x.csv")}, "x"), Error);
  EXPECT_THROW(fit_gemm_csv({CsvTable("gpu,m,n,k,tflops\nH100,64,64,64,1\nA100,64,64,64,1\n", "x.csv")}, "x"), Error);
}

std::string refusal(const std::string& text) {
  try {
    fit_gemm_csv({CsvTable(text, "h20.csv")}, "ours");
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::kInvalidInput);
    return error.what();
  }
  return "";
}

TEST(FitCsv, AbsurdTablesAreRefused) {
  // One row that is faster than the GPU can be is left out and named.
  const std::string fast = "NVIDIA H20,4096,4096,4096,bf16,0.5\n";
  const CsvFit fit = fit_gemm_csv({CsvTable(rows_of(1, 6) + fast, "h20.csv")}, "ours");
  EXPECT_NE(fit.notes.front().find("h20.csv:8: 275 PFLOP/s, above the 148 TFLOP/s of h20"), std::string::npos)
      << fit.notes.front();
  // Milliseconds as microseconds, nanoseconds as microseconds, and no order at all.
  EXPECT_NE(refusal(rows_of(1000, 6)).find("6 of 6 rows in all: is tflops"), std::string::npos);
  EXPECT_NE(refusal(rows_of(0.001, 6)).find("of h20's peak: is tflops"), std::string::npos);
  std::string noise = "gpu,m,n,k,dtype,latency_us\n";
  for (int i = 0; i < 12; ++i) noise += fmt::format("NVIDIA H20,8192,8192,8192,bf16,{}\n", i % 2 == 0 ? 8e3 : 3e5);
  EXPECT_NE(refusal(noise).find("misses half of its 12 rows"), std::string::npos);
}

}
}
