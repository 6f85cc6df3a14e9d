#include "calibration/published.h"

#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "sim/base/error.h"
#include "sim/base/lookup.h"

namespace foreshard {
namespace {

constexpr const char* kFiles[] = {
    "gemm_measured.csv", "attention_measured.csv", "membound_measured.csv", "nccl_measured.csv", "nccl_scaling.csv"};

TEST(Published, CsvReadsQuotedFields) {
  const CsvTable table("a,b,c\n1,\"x, \"\"y\"\"\",\n2.5e3,,z\r\n", "t.csv");
  ASSERT_EQ(table.rows(), 2U);
  EXPECT_EQ(table.text(0, "b"), "x, \"y\"");
  EXPECT_EQ(table.number(1, "a"), 2500);
  EXPECT_TRUE(table.empty(0, "c"));
  EXPECT_EQ(table.text(1, "c"), "z");
  EXPECT_THROW(table.text(0, "d"), Error);
}

TEST(Published, CsvIsStrict) {
  EXPECT_THROW(CsvTable("", "t.csv"), ConfigError);
  EXPECT_THROW(CsvTable("a,b\n1\n", "t.csv"), ConfigError);
  EXPECT_THROW(CsvTable("a,b\n1,2,3\n", "t.csv"), ConfigError);
  EXPECT_THROW(CsvTable("a,b\n1,\"2\n", "t.csv"), ConfigError);
  EXPECT_THROW(CsvTable("a,b\n1,\"2\"x\n", "t.csv"), ConfigError);
  EXPECT_THROW(CsvTable("a,b\n1,2\"x\n", "t.csv"), ConfigError);
  const CsvTable table("a\n1x\nnan\n\n", "t.csv");
  for (std::size_t row = 0; row < table.rows(); ++row) EXPECT_THROW(table.number(row, "a"), ConfigError);
  try {
    table.number(0, "a");
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.location().line, 2);
  }
}

TEST(Published, ChipNames) {
  EXPECT_EQ(chip_of("NVIDIA A100-SXM4-80GB"), "a100");
  EXPECT_EQ(chip_of("H100-80GB SXM5"), "h100");
  EXPECT_EQ(chip_of("H200 SXM"), "h200");
  EXPECT_EQ(chip_of("B200 HGX"), "b200");
  EXPECT_EQ(chip_of("GB200 NVL72"), "");
  EXPECT_EQ(chip_of("A100 PCIe"), "");
  EXPECT_EQ(chip_of("L40S"), "");
}

TEST(Published, RowsAreThere) {
  const std::vector<GemmRow> rows = gemm_rows(list_machines());
  const auto count = [&](std::string_view gpu, GemmType type) {
    return std::ranges::count_if(rows, [&](const GemmRow& row) { return row.gpu == gpu && row.type == type; });
  };
  EXPECT_EQ(count("h100-sxm", GemmType::k16Bit), 1120);
  EXPECT_EQ(count("gb300", GemmType::k16Bit), 864);
  EXPECT_EQ(count("rtx-pro-6000", GemmType::k16Bit), 432);
  EXPECT_EQ(count("h200", GemmType::kFp8), 114);
  EXPECT_EQ(count("mi300x", GemmType::k16Bit), 385);
  EXPECT_EQ(count("mi300x", GemmType::kFp8), 84);
  EXPECT_EQ(count("mi355x", GemmType::k16Bit), 185);
  EXPECT_GT(attention_rows("h100").size(), 400U);
  EXPECT_GT(memory_rows("a100").size(), 30U);
}

TEST(Published, WhatElseAProductsTimeHolds) {
  const CsvTable table(
      "source,gpu,m,n,k,dtype,tflops,latency_us,layout,notes\n"
      "s,MI300X,4096,8192,1024,bf16,500,,NN and NT (bwd),\n"
      "s,MI300X,4096,8192,1024,bf16,,300,NN and NT (bwd),\n"
      "s,MI300X,4096,8192,1024,fp16,500,,TN (fwd),\n"
      "s,MI300X,4096,8192,1024,fp8,500,,TN (fwd),quantises activation and weight\n"
      "s,MI300X,4096,8192,1024,fp8_e4m3,500,,TN (fwd),incl. activation quantisation\n",
      "t.csv");
  const std::vector<ReadGemm> rows = read_gemm_rows(table, list_machines());
  const double flops = 2.0 * 4096 * 8192 * 1024;
  EXPECT_TRUE(rows[0].row.gradients);
  EXPECT_DOUBLE_EQ(rows[0].row.seconds, 2 * flops / 500e12);  // a rate is of both products
  EXPECT_DOUBLE_EQ(rows[1].row.seconds, 300e-6);
  EXPECT_FALSE(rows[2].row.gradients);
  EXPECT_TRUE(rows[2].row.half);
  EXPECT_FALSE(rows[0].row.half);
  EXPECT_TRUE(rows[3].row.quantises && rows[3].row.quantises_weight);
  EXPECT_TRUE(rows[4].row.quantises && !rows[4].row.quantises_weight);
}

// Tuned kernels of inference libraries are no products that PyTorch runs.
TEST(Published, AmdRowsAreOfTheLibrary) {
  const CsvTable table = published_table("gemm_measured.csv");
  int aiter = 0;
  for (std::size_t i = 0; i < table.rows(); ++i) {
    if (!table.text(i, "source").starts_with("ROCm/aiter")) continue;
    EXPECT_NE(table.text(i, "notes").find("torch"), std::string::npos) << i;
    ++aiter;
  }
  EXPECT_EQ(aiter, 41);
}

// Their licences do not allow the rows in this repository.
TEST(Published, NoExcludedSources) {
  for (const char* file : kFiles) {
    const CsvTable table = published_table(file);
    for (std::size_t i = 0; i < table.rows(); ++i) {
      for (const char* excluded : {"te42kyfo", "mag-/", "stas00", "ml-engineering"}) {
        EXPECT_EQ(table.text(i, "source").find(excluded), std::string::npos) << file << ' ' << i;
        EXPECT_EQ(table.text(i, "notes").find(excluded), std::string::npos) << file << ' ' << i;
      }
    }
  }
}

TEST(Published, NoticeNamesEverySource) {
  std::ifstream stream(std::string(FORESHARD_SOURCE_DIR) + "/NOTICE");
  std::stringstream notice;
  notice << stream.rdbuf();
  const std::string text = notice.str();
  std::set<std::string> missing;
  for (const char* file : kFiles) {
    const CsvTable table = published_table(file);
    for (std::size_t i = 0; i < table.rows(); ++i) {
      std::string source = table.text(i, "source");
      if (source.starts_with("github:")) source = source.substr(7);
      // "owner/repository:path", "aiconfigurator:path", an address, or a title.
      const std::string name = source.starts_with("http") ? source : source.substr(0, source.find(':'));
      if (!contains(text, name)) missing.insert(name);
    }
  }
  for (const std::string& name : missing) ADD_FAILURE() << "NOTICE does not name " << name;
}

}
}
