// The published rows, each forecast without its own source (or shape family), against the figures
// that are to be reached; and what files of the same form may hold.
#include "reports/accuracy/score_kernels.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace foreshard::score_kernels_test {
namespace {

CsvTable published(const std::string& name) {
  std::ifstream file(std::string(FORESHARD_SOURCE_DIR) + "/calibration/published/" + name);
  std::stringstream text;
  text << file.rdbuf();
  return CsvTable(text.str(), name);
}

std::string group_of(const AccuracyRow& row, const std::string& name) {
  for (const auto& [key, value] : row.groups) {
    if (key == name) return value;
  }
  return "";
}

AccuracySummary summary_of(const std::vector<AccuracyRow>& rows, const std::string& group, const std::string& value) {
  std::vector<const AccuracyRow*> picked;
  for (const AccuracyRow& row : rows) {
    if (group.empty() || group_of(row, group) == value) picked.push_back(&row);
  }
  return summarize_accuracy(picked);
}

void print(const std::vector<AccuracyRow>& rows, const std::string& group) {
  std::map<std::string, int> values;
  for (const AccuracyRow& row : rows) ++values[group_of(row, group)];
  for (const auto& [value, count] : values) {
    const AccuracySummary s = summary_of(rows, group, value);
    fmt::print("{:8} {:60} {:5} {:5}  {:5.1f} {:5.1f}  bias {:+5.1f}  cover {:3.0f} half {:4.1f}\n", group, value,
        count, s.scored, 100 * s.median_abs_error, 100 * s.p90_abs_error, 100 * s.bias, 100 * s.coverage,
        100 * s.half_width);
  }
  const AccuracySummary s = summary_of(rows, "", "");
  fmt::print("all {} scored {}: {:.1f} {:.1f} cover {:.0f} half {:.1f}\n", s.rows, s.scored, 100 * s.median_abs_error,
      100 * s.p90_abs_error, 100 * s.coverage, 100 * s.half_width);
}

TEST(ScoreKernels, ProductsOfASourceLeftOut) {
  const auto rows = score_gemm(published("gemm_measured.csv"));
  for (const char* group : {"gpu", "source", "size", "rule"}) print(rows, group);
  struct Target {
    const char* gpu;
    double median;
  };
  for (const Target& target : {Target{"h100-sxm", 0.041}, Target{"a100-80gb", 0.070}, Target{"b200", 0.047},
           Target{"gb300", 0.039}, Target{"h200", 0.08}, Target{"b300", 0.08}, Target{"gb200", 0.08},
           Target{"l40s", 0.08}, Target{"rtx-pro-6000", 0.08}}) {
    EXPECT_LE(summary_of(rows, "gpu", target.gpu).median_abs_error, target.median) << target.gpu;
  }
  const AccuracySummary all = summary_of(rows, "", "");
  EXPECT_LE(all.median_abs_error, 0.06);
  EXPECT_GE(all.coverage, 0.85);
  EXPECT_LE(all.coverage, 0.97);
}

TEST(ScoreKernels, AttentionOfShapesLeftOut) {
  const auto rows = score_attention(published("attention_measured.csv"));
  for (const char* group : {"gpu", "source", "kernel", "rule"}) print(rows, group);
  const AccuracySummary all = summary_of(rows, "", "");
  EXPECT_LE(all.median_abs_error, 0.08);
  EXPECT_GE(all.coverage, 0.85);
  EXPECT_LE(all.coverage, 0.97);
}

TEST(ScoreKernels, MemoryBoundOfSizesLeftOut) {
  const auto rows = score_memory_bound(published("membound_measured.csv"));
  for (const char* group : {"gpu", "kernel", "rule"}) print(rows, group);
  const AccuracySummary all = summary_of(rows, "", "");
  EXPECT_GT(all.scored, 70);
  EXPECT_LE(all.median_abs_error, 0.08);
}

TEST(ScoreKernels, EveryRowAppearsWithItsIdOrLine) {
  const auto rows =
      score_gemm(CsvTable("id,gpu,m,n,k,dtype,tflops,latency_us\n"
                          "x,H100,4096,4096,4096,bf16,700,\n"
                          ",H100,4096,4096,4096,bf16,,196\r\n"
                          ",H100,,4096,4096,bf16,700,\r"
                          ",H100,4096,4096,4096,bf16,,\n"
                          ",H100,4096,4096,4096,bf16,-5,nan\n"
                          ",Abacus 3000,4096,4096,4096,bf16,700,\n"
                          ",A100,4096,4096,4096,fp8_e4m3,700,\n"
                          ",H100,4096,4096,4096,bf16,7000,\n"
                          ",H100,4096,4096,4096,bf16,,196000\n",
          "g.csv"));
  ASSERT_EQ(rows.size(), 9U);
  EXPECT_EQ(rows[0].id, "x");
  EXPECT_EQ(rows[1].id, "line 3");
  EXPECT_EQ(rows[0].quantity, "latency_us");
  // 2 * 4096^3 operations at 700 TFLOP/s.
  EXPECT_NEAR(rows[0].measured, 196.3, 0.1);
  EXPECT_TRUE(rows[0].scored && rows[1].scored);
  EXPECT_GT(rows[0].predicted, rows[0].low);
  EXPECT_LT(rows[0].predicted, rows[0].high);
  for (std::size_t i = 2; i < rows.size(); ++i) {
    EXPECT_FALSE(rows[i].scored) << i;
    EXPECT_FALSE(rows[i].reason.empty()) << i;
  }
}

// Vendor, case, punctuation and brackets do not matter; a kernel nobody knows takes the usual one.
TEST(ScoreKernels, SpellingsMeanTheSame) {
  double first = 0;
  for (const char* name : {"NVIDIA H100 80GB HBM3", "h100-sxm", "H100 SXM5 (700 W)", "H100_SXM"}) {
    const auto rows = score_gemm(CsvTable(
        fmt::format("source,gpu,m,n,k,dtype,tflops,latency_us\nnew,{},4096,8192,4096,BF16,700,\n", name), "g.csv"));
    ASSERT_TRUE(rows[0].scored) << name << ' ' << rows[0].reason;
    if (first == 0) first = rows[0].predicted;
    EXPECT_EQ(rows[0].predicted, first) << name;
  }
  for (const char* kernel : {"FlashAttention-2", "flash_attn_2", "something new", ""}) {
    const auto rows = score_attention(CsvTable(
        fmt::format(
            "source,gpu,kernel,pass,causal,batch,seqlen,heads,kv_heads,head_dim,dtype,tflops,latency_us\nnew,A100 "
            "SXM,{},fwd,1,4,4096,32,32,128,bf16,180,\n",
            kernel),
        "a.csv"));
    EXPECT_TRUE(rows[0].scored) << kernel << ' ' << rows[0].reason;
    EXPECT_NEAR(rows[0].predicted / rows[0].measured, 1, 0.3) << kernel;
  }
}

TEST(ScoreKernels, WholeFileInSeconds) {
  const CsvTable table = published("gemm_measured.csv");
  const auto start = std::chrono::steady_clock::now();
  score_gemm(table);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "instrumented";
#endif
  EXPECT_LT(taken.count(), 20);
}

}
}
