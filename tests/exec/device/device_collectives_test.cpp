// Curves of collectives between the threads that stand for ranks with a GPU each, and the profile
// that calibrate makes of them.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "calibration/fit/fit_device.h"
#include "calibration/measure/measure.h"
#include "calibration/measurements.h"
#include "exec/comm/rank_threads.h"
#include "exec/device/host_accelerator.h"

namespace foreshard {
namespace {

TEST(MeasuredGroups, ArePowersOfTwoThatDivideTheWorldAndTheWorld) {
  EXPECT_EQ(measured_groups(1), (std::vector<int>{}));
  EXPECT_EQ(measured_groups(2), (std::vector<int>{2}));
  EXPECT_EQ(measured_groups(8), (std::vector<int>{2, 4, 8}));
  EXPECT_EQ(measured_groups(6), (std::vector<int>{2, 6}));
}

std::vector<Json> measure(int ranks, const DeviceCollectivesRequest& request) {
  std::vector<Json> rows(at(ranks));
  for_each_rank(ranks, [&](World& world) {
    const auto device = host_accelerator();
    rows[at(world.rank())] = measure_device_collectives(*device, world, request);
  });
  return rows;
}

TEST(DeviceCollectives, EveryGroupOperationAndSizeIsARow) {
  DeviceCollectivesRequest request = {.smallest = 1000, .largest = 16'000, .repeats = 2, .ranks_per_node = 2};
  const std::vector<Json> of_ranks = measure(4, request);
  for (const Json& rows : of_ranks) EXPECT_EQ(rows, of_ranks.front());
  std::map<std::tuple<std::string, int, int>, int> sizes;  // by operation, group, nodes
  for (const Json& row : of_ranks.front()) {
    EXPECT_EQ(row["kind"], "collective");
    EXPECT_EQ(row["ranks"], 4);
    const int group = row["group"];
    EXPECT_EQ(row["bytes"].get<int>() % (128 * group), 0);
    EXPECT_GT(row["seconds"]["median"].get<double>(), 0);
    ++sizes[{row["operation"], group, row.value("nodes", 1)}];
  }
  // 1000, 4000 and 16,000 bytes, rounded down to whole lines per rank.
  const std::map<std::tuple<std::string, int, int>, int> wanted = {{{"all_gather", 2, 1}, 3},
      {{"reduce_scatter", 2, 1}, 3}, {{"all_reduce", 2, 1}, 3}, {{"all_gather", 4, 2}, 3},
      {{"reduce_scatter", 4, 2}, 3}, {{"all_reduce", 4, 2}, 3}};
  EXPECT_EQ(sizes, wanted);
}

TEST(DeviceCollectives, CalibrateMakesSweepsOfThem) {
  const auto row = [](const char* operation, int group, int bytes, double seconds) {
    return Json{{"kind", "collective"}, {"ranks", 8}, {"operation", operation}, {"order", "library"}, {"group", group},
        {"bytes", bytes}, {"seconds", {{"median", seconds}, {"low", seconds}, {"high", seconds}}}, {"repeats", 7}};
  };
  const Json document = {{"schema", "foreshard.measurements/1"}, {"created", "2030-01-02T03:04:05Z"},
      {"host", {{"name", "box"}, {"cpu", "x"}, {"cores", 8}, {"memory_bytes", 1000}, {"kernel", "6"}}},
      {"device", {{"name", "NVIDIA H100 80GB HBM3"}, {"capability", 90}, {"multiprocessors", 132},
                     {"memory_bytes", 85'000'000'000}}},
      {"versions", {{"nccl", "2.28.9"}}}, {"command", "measure"}, {"threads", 1},
      {"rows", {row("all_gather", 8, 65'536, 20e-6), row("all_gather", 8, 1 << 20, 40e-6),
                   row("reduce_scatter", 4, 65'536, 15e-6)}}};
  const DeviceFit fit = fit_device(parse_measurements(to_text(document), "raw.json"));
  ASSERT_EQ(fit.calibration.sweeps.size(), 2U);
  const CollectiveSweep& gather = fit.calibration.sweeps.front();
  EXPECT_EQ(gather.operation, CollectiveOperation::kAllGather);
  EXPECT_EQ(gather.ranks, 8);
  EXPECT_EQ(gather.nodes, 1);
  EXPECT_EQ(gather.points, (std::vector<SizePoint>{{65'536, 20e-6}, {1 << 20, 40e-6}}));
  EXPECT_NE(fit.notes.back().find("2 curves of collectives were measured"), std::string::npos);
}

}
}
