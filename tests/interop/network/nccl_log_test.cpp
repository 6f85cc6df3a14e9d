#include "interop/network/nccl_log.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "sim/base/error.h"
#include "sim/base/lookup.h"

namespace foreshard::nccl_log_test {
namespace {

// 8 ranks on 2 hosts, an all_gather: busbw = 7/8 algbw. 1 MiB in 50 us: 20.97 GB/s; 2 MiB in 80 us: 26.21 GB/s.
const std::string kDevices = [] {
  std::string text = "# Using devices\n";
  for (int rank = 0; rank < 8; ++rank) {
    text += "#  Rank  " + std::to_string(rank) + " Group  0 Pid   1" + std::to_string(rank) + " on node" +
            std::to_string(rank / 4) + " device  " + std::to_string(rank % 4) + " [0000:1b:00] NVIDIA H100 80GB HBM3\n";
  }
  return text;
}();
const std::string kHeader =
    "#       size         count      type   redop    root     time   algbw   busbw #wrong     time "
    "  algbw   busbw #wrong\n"
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us) "
    " (GB/s)  (GB/s)       \n";
const std::string kRows =
    "     1048576         32768     float    none      -1    50.00   20.97   18.35      0    49.0  "
    " "
    "21.40   18.72      0\n"
    "     2097152         65536     float    none      -1    80.00   26.21   22.94      0    79.0   26.55   23.23      "
    "0\n";
const std::string kLog =
    "# nccl-tests version 2.17.6 nccl-headers=22809 nccl-library=22703\n"
    "# Collective test starting: all_gather_perf\n"
    "# nThread 1 nGpus 1 minBytes 1048576 maxBytes 2097152 step: 2(factor) warmup iters: 5\n" +
    kDevices + kHeader + kRows + "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 20.6\n";

int count(const ImportLedger& ledger, Mapping mapping) {
  return static_cast<int>(std::ranges::count_if(ledger, [&](const ImportEntry& e) { return e.mapping == mapping; }));
}

TEST(NcclLog, ReadsATest) {
  const NcclTests tests = parse_nccl_tests(kLog, "log.txt");
  ASSERT_EQ(tests.sweeps.size(), 1U);
  const CollectiveSweep& sweep = tests.sweeps[0];
  EXPECT_EQ(sweep.operation, CollectiveOperation::kAllGather);
  EXPECT_EQ(sweep.ranks, 8);
  EXPECT_EQ(sweep.nodes, 2);
  ASSERT_EQ(sweep.points.size(), 2U);
  EXPECT_EQ(sweep.points[0], (SizePoint{1048576, 50e-6}));
  EXPECT_EQ(sweep.points[1], (SizePoint{2097152, 80e-6}));
  EXPECT_EQ(tests.version, (NcclVersion{2, 27, 3}));
  EXPECT_EQ(tests.gpu, "NVIDIA H100 80GB HBM3");
  EXPECT_EQ(count(tests.ledger, Mapping::kUnsupported), 0);
}

TEST(NcclLog, LooksThroughPrefixesAndWarnings) {
  // As mpirun --tag-output prints it, with a warning in between and CR LF.
  std::string tagged;
  std::size_t at = 0;
  while (at < kLog.size()) {
    const std::size_t end = kLog.find('\n', at);
    tagged += "[1,0]<stdout>:" + kLog.substr(at, end - at) + "\r\n";
    if (tagged.size() < 3000) tagged += "node0:12:34 [0] NCCL WARN something went slow\r\n";
    at = end + 1;
  }
  const NcclTests plain = parse_nccl_tests(kLog, "log.txt");
  const NcclTests read = parse_nccl_tests(tagged, "log.txt");
  ASSERT_EQ(read.sweeps.size(), 1U);
  EXPECT_EQ(read.sweeps[0].points, plain.sweeps[0].points);
  EXPECT_EQ(read.sweeps[0].ranks, 8);
  EXPECT_EQ(count(read.ledger, Mapping::kIgnored), count(plain.ledger, Mapping::kIgnored) + 1);
}

TEST(NcclLog, OldReleasesHaveFewerColumns) {
  // No redop's root for an all_reduce, `error` instead of `#wrong`.
  const std::string old = "# nThread: 1 nGpus: 8 minBytes: 1048576\n" + kDevices +
                          "#       size    count   type   redop     time   algbw   busbw  error\n"
                          "     1048576   262144  float     sum    70.00   14.98   26.21  4e-07\n";
  const NcclTests tests = parse_nccl_tests(old, "runs/all_reduce_8.log");
  ASSERT_EQ(tests.sweeps.size(), 1U);
  EXPECT_EQ(tests.sweeps[0].operation, CollectiveOperation::kAllReduce);
  EXPECT_EQ(tests.sweeps[0].points[0], (SizePoint{1048576, 70e-6}));
  EXPECT_EQ(count(tests.ledger, Mapping::kDefaulted), 1);  // the operation
}

TEST(NcclLog, RanksFollowFromBandwidthsWithoutDevices) {
  const NcclTests tests = parse_nccl_tests("# Collective test starting: all_gather_perf\n" + kHeader + kRows, "log");
  EXPECT_EQ(tests.sweeps[0].ranks, 8);  // 18.35 / 20.97 = 1 - 1/8
  EXPECT_EQ(tests.sweeps[0].nodes, 1);
}

TEST(NcclLog, CutOffAnywhereItReadsWhatIsThereOrSaysWhere) {
  for (std::size_t size = 0; size < kLog.size(); size += 7) {
    const std::string part = kLog.substr(0, size);
    try {
      const NcclTests tests = parse_nccl_tests(part, "log.txt");
      ASSERT_EQ(tests.sweeps.size(), 1U);
      for (const SizePoint& point : tests.sweeps[0].points) {
        EXPECT_TRUE(point == (SizePoint{1048576, 50e-6}) || point == (SizePoint{2097152, 80e-6}));
      }
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find("log.txt"), std::string::npos);
    }
  }
}

TEST(NcclLog, SetsAsideRowsThatContradictThemselves) {
  // 2 MiB in 80 us is 26 GB/s, not 2.6: another column was cut.
  const std::string wrong = kLog.substr(0, kLog.find("   26.21")) + "    2.62    2.29      0\n";
  const NcclTests tests = parse_nccl_tests(wrong, "log.txt");
  EXPECT_EQ(tests.sweeps[0].points.size(), 1U);
  const ImportEntry& entry =
      *std::ranges::find_if(tests.ledger, [](const ImportEntry& e) { return contains(e.why, "disagree"); });
  EXPECT_EQ(entry.line, static_cast<int>(std::ranges::count(wrong, '\n')));
}

TEST(NcclLog, ReadsJson) {
  const std::string json = R"({"version": 3, "nccl_version": "2.28.9",
    "args": ["./build/reduce_scatter_perf", "-b", "1M"],
    "config": {"devices": [
      {"rank": 0, "hostname": "a", "device": 0, "device_info": "NVIDIA B200"},
      {"rank": 1, "hostname": "a", "device": 1, "device_info": "NVIDIA B200"}]},
    "results": [
      {"size": 1048576, "count": 131072, "type": "float", "redop": "sum", "root": "-1",
       "out_of_place": {"time": 20.0, "alg_bw": 52.43, "bus_bw": 26.21, "nwrong": "0"},
       "in_place": null}]})";
  const NcclTests tests = parse_nccl_tests(json, "log.json");
  ASSERT_EQ(tests.sweeps.size(), 1U);
  EXPECT_EQ(tests.sweeps[0].operation, CollectiveOperation::kReduceScatter);
  EXPECT_EQ(tests.sweeps[0].ranks, 2);
  EXPECT_EQ(tests.sweeps[0].points[0], (SizePoint{1048576, 20e-6}));
  EXPECT_EQ(tests.gpu, "NVIDIA B200");
  EXPECT_THROW(parse_nccl_tests(json.substr(0, json.size() / 2), "log.json"), ConfigError);
}

TEST(NcclLog, SeveralTestsInOneLog) {
  const NcclTests tests = parse_nccl_tests(
      kLog + "# Collective test starting: reduce_scatter_perf\n" + kDevices + kHeader + kRows, "log.txt");
  ASSERT_EQ(tests.sweeps.size(), 2U);
  EXPECT_EQ(tests.sweeps[1].operation, CollectiveOperation::kReduceScatter);
  EXPECT_EQ(tests.sweeps[1].ranks, 8);
}

TEST(NcclLog, RefusesOtherFiles) {
  EXPECT_THROW(parse_nccl_tests("", "x"), ConfigError);
  EXPECT_THROW(parse_nccl_tests("hello\nworld\n", "x"), ConfigError);
  EXPECT_TRUE(looks_like_nccl_tests(kLog));
  EXPECT_FALSE(looks_like_nccl_tests("{\"schema\": \"foreshard.measurements/1\"}"));
}

// As nccl-tests on one host may write it, and a fuzzer found: no rank says where it is.
TEST(NcclLog, DevicesWithoutAHostAreOnOneNode) {
  const NcclTests tests =
      parse_nccl_tests(R"({"args": ["all_gather_perf"], "config": {"devices": [{"device_info": "NVIDIA H100"},)"
                       R"( {"device_info": "NVIDIA H100"}]}, "results": [{"size": 1048576,)"
                       R"( "out_of_place": {"time": 50.0, "alg_bw": 20.97, "bus_bw": 10.5}}]})",
          "log.json");
  ASSERT_EQ(tests.sweeps.size(), 1U);
  EXPECT_EQ(tests.sweeps[0].ranks, 2);
  EXPECT_EQ(tests.sweeps[0].nodes, 1);
  EXPECT_GT(count(tests.ledger, Mapping::kDefaulted), 0);
}

}
}
