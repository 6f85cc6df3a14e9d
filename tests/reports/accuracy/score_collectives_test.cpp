// One process for the suites ScoreCollectives
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "calibration/fit/fit_fabric.h"
#include "calibration/published.h"
#include "reports/accuracy/score_kernels.h"
#include "sim/base/error.h"

namespace foreshard {
namespace {

constexpr const char* kHeader =
    "id,source,gpu,n_gpus,n_nodes,network,nccl_version,collective,dtype,bytes,time_us_oop,algbw_GBps,busbw_GBps,"
    "notes\n";

std::string group_of(const AccuracyRow& row, std::string_view by) {
  for (const auto& [name, value] : row.groups) {
    if (name == by) return value;
  }
  return "";
}

bool is_large(const AccuracyRow& row) { return group_of(row, "size") != "< 1 MiB"; }

const std::vector<AccuracyRow>& published_rows(CollectiveKnowledge knowledge) {
  static const std::vector<AccuracyRow> kSwept =
      score_collectives(published_table("nccl_measured.csv"), CollectiveKnowledge::kOtherCollective);
  static const std::vector<AccuracyRow> kUnseen =
      score_collectives(published_table("nccl_measured.csv"), CollectiveKnowledge::kUnseenFabric);
  return knowledge == CollectiveKnowledge::kUnseenFabric ? kUnseen : kSwept;
}

AccuracySummary summary(CollectiveKnowledge knowledge, std::string_view how) {
  std::vector<const AccuracyRow*> chosen;
  for (const AccuracyRow& row : published_rows(knowledge)) {
    if (is_large(row) && group_of(row, "how") == how) chosen.push_back(&row);
  }
  const AccuracySummary result = summarize_accuracy(chosen);
  testing::Test::RecordProperty("median error", fmt::format("{:.1f} %", 100 * result.median_abs_error));
  return result;
}

TEST(ScoreCollectives, EveryRowIsThere) {
  const std::vector<AccuracyRow>& rows = published_rows(CollectiveKnowledge::kOtherCollective);
  EXPECT_EQ(rows.size(), published_table("nccl_measured.csv").rows());
  for (const AccuracyRow& row : rows) {
    EXPECT_EQ(row.quantity, "time_us_oop");
    if (!row.scored) {
      EXPECT_FALSE(row.reason.empty());
      continue;
    }
    EXPECT_LT(row.low, row.predicted);
    EXPECT_GT(row.high, row.predicted);
    EXPECT_EQ(row.groups.size(), 6U);
  }
}

// Leaving out the row's source; rows from 1 MiB up. The bounds are the project's targets.
TEST(ScoreCollectives, TheOtherCollectiveForecastsIt) {
  const AccuracySummary s = summary(CollectiveKnowledge::kOtherCollective, "other collective");
  EXPECT_GT(s.scored, 80);
  EXPECT_LE(s.median_abs_error, 0.03);
  EXPECT_GE(s.coverage, 0.85);
}

TEST(ScoreCollectives, UnseenNodesOfEight) {
  const AccuracySummary s = summary(CollectiveKnowledge::kUnseenFabric, "unseen 8-GPU node");
  EXPECT_GT(s.scored, 80);
  EXPECT_LE(s.median_abs_error, 0.08);
  EXPECT_GE(s.coverage, 0.85);
}

TEST(ScoreCollectives, UnseenNetworks) {
  const AccuracySummary s = summary(CollectiveKnowledge::kUnseenFabric, "unseen network");
  EXPECT_GT(s.scored, 300);
  EXPECT_LE(s.median_abs_error, 0.20);
  EXPECT_GE(s.coverage, 0.80);
}

// A row of an H100 node that nobody published, with everything as a person would write it.
std::string row(const std::string& gpu, const std::string& network, double microseconds,
    const std::string& more = "all_gather,float,268435456") {
  return fmt::format("x,somebody,{},8,1,{},2.28.9,{},{},,,\n", gpu, network, more, microseconds);
}

std::vector<AccuracyRow> score(const std::string& rows) {
  return score_collectives(CsvTable(kHeader + rows, "test.csv"));
}

TEST(ScoreCollectives, MeasuredTimesReachNoForecast) {
  const std::vector<AccuracyRow> rows = score(
      row("H100", "NVLink", 700) + row("H100", "NVLink", 7000) + row("NVIDIA H100-SXM5-80GB (HGX)", "NVSwitch", 70));
  ASSERT_EQ(rows.size(), 3U);
  for (const AccuracyRow& r : rows) EXPECT_EQ(r.predicted, rows[0].predicted);
  EXPECT_NEAR(rows[0].predicted, 720, 80);  // 325 GB/s of bus bandwidth
}

TEST(ScoreCollectives, NoFitSeesItsOwnSource) {
  // What the fit without a source says does not change with that source's rows.
  const std::vector<NcclRow>& rows = published_nccl_rows();
  const std::string source = "xxrjun/nccl-tests-cluster";
  std::vector<NcclRow> changed = rows;
  for (NcclRow& r : changed) {
    if (r.source == source) r.seconds *= 3;
  }
  const auto use = [&](const NcclRow& r) { return r.source != source; };
  const std::vector<FabricCurve> one = fit_fabrics(GpuGeneration::kHopper, rows, use);
  const std::vector<FabricCurve> two = fit_fabrics(GpuGeneration::kHopper, changed, use);
  ASSERT_EQ(one.size(), kFabricKinds);
  for (std::size_t i = 0; i < one.size(); ++i) {
    EXPECT_EQ(one[i].fixed, two[i].fixed);
    EXPECT_EQ(one[i].ring, two[i].ring);
    EXPECT_EQ(one[i].source.find("h100_hgx"), std::string::npos);
  }
}

TEST(ScoreCollectives, SpellingsDoNotMatter) {
  const auto two_nodes = [](const char* gpu, const char* network) {
    return score(fmt::format("x,s,{},16,2,{},2.28,all_gather,float,1073741824,3000,,,\n", gpu, network))[0].predicted;
  };
  const double plain = two_nodes("H200", "8x400Gb RoCE");
  for (const char* other :
      {"8 x 400 Gbit/s InfiniBand", "8x400G", "8x NDR 400Gb", "unheard of", "8x400GbE BlueField-3", ""}) {
    EXPECT_NEAR(two_nodes("h200-sxm 141GB", other), plain, 1e-6 * plain) << other;
  }
  EXPECT_GT(two_nodes("H200", "4x100Gb EFA"), 3 * plain);
  EXPECT_GT(two_nodes("Tesla X999", "8x400Gb"), 0);
}

TEST(ScoreCollectives, SetsAsideWhatSaysNothing) {
  const std::vector<AccuracyRow> rows =
      score(row("H100", "NVLink", 700, "gather_some,float,1e6") +  // no such collective
            row("H100", "NVLink", 700, "all_gather,float,") +      // no size
            row("H100", "NVLink", 0) +                             // no time
            row("H100", "NVLink", 0.001) +                         // 268 TB/s: another unit
            row("H100", "NVLink", 700, "all_gather,float,-5") +
            "y,s,H100,1,1,NVLink,,all_gather,float,1048576,10,,,\n"  // a rank alone
            "z,s,H100,8,1,NVLink,,all_gather,float,1048576,,,,\n");  // not published
  ASSERT_EQ(rows.size(), 7U);
  for (const AccuracyRow& r : rows) {
    EXPECT_FALSE(r.scored) << r.line;
    EXPECT_FALSE(r.reason.empty()) << r.line;
  }
}

TEST(ScoreCollectives, ATableWithoutItsColumnsIsAnError) {
  EXPECT_THROW(score_collectives(CsvTable("a,b\n1,2\n", "test.csv")), Error);
}

TEST(ScoreCollectives, ASweepOfTheFabricThatIsGivenIsUsed) {
  // An all_gather at a third of what the form says; the reduce_scatter follows.
  const std::string known =
      "k,s,H100,8,1,slow,2.28.9,all_gather,float,134217728,1200,,,\n"
      "k,s,H100,8,1,slow,2.28.9,all_gather,float,536870912,4800,,,\n";
  const std::string asked = "k,s,H100,8,1,slow,2.28.9,reduce_scatter,float,268435456,2400,,,\n";
  const CsvTable table(kHeader + asked, "asked.csv");
  const AccuracyRow unseen = score_collectives(table)[0];
  const AccuracyRow swept = score_collectives(table, CsvTable(kHeader + known, "known.csv"))[0];
  EXPECT_LT(unseen.predicted, 1000);
  EXPECT_NEAR(swept.predicted, 2400, 1e-6);
  EXPECT_EQ(group_of(swept, "how"), "other collective");
}

}
}
