// Profiles of measured machines: written and read, and the cluster of ranks made of them.
#include "calibration/local_profile.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "calibration/fit/fit_local.h"
#include "sim/base/error.h"
#include "sim/cost/cost_model.h"
#include "tests/calibration/synthetic.h"

namespace foreshard::local_profile_test {
namespace {

const LocalProfile& profile() {
  static const LocalProfile made = fit_local(parse_measurements(SyntheticRaw().text(), "raw.json")).profile;
  return made;
}

CostModel costs_of(std::int64_t ranks) {
  LocalMachine machine = local_machine(profile(), ranks);
  return CostModel(machine.cluster, machine.calibration);
}

TEST(LocalProfile, SurvivesWritingAndReading) {
  const Json written = to_json(profile());
  const LocalProfile again = parse_local_profile(to_text(written), "again.json");
  EXPECT_EQ(to_json(again), written);
  EXPECT_EQ(again.variants[1].calibration.measured, profile().variants[1].calibration.measured);
}

TEST(LocalProfile, WrongFilesAreRefused) {
  const auto refused = [](const Json& json, const char* says) {
    try {
      parse_local_profile(to_text(json), "p.json");
      ADD_FAILURE() << "taken, though " << says;
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find(says), std::string::npos) << error.what();
    }
  };
  const Json good = to_json(profile());
  Json bad = good;
  bad["schema"] = "foreshard.measurements/1";
  refused(bad, "unknown schema");
  bad = good;
  bad["variants"] = Json::array();
  refused(bad, "variants");
  bad = good;
  bad["variants"][1]["ranks"] = 1;
  refused(bad, "ascending");
  bad = good;
  bad["variants"][0]["calibration"]["measured"]["memory"][0]["seconds"][1] = 1e-9;
  refused(bad, "below the time before");
  bad = good;
  bad["variants"][0]["calibration"]["measured"]["memory"][0]["bytes"].erase(0);
  refused(bad, "another length");
  bad = good;
  bad["variants"][0]["calibration"]["measured"]["gemm"][0]["mm"] = 1;
  refused(bad, "mm");
}

TEST(LocalMachine, IsOneNodeWhoseRanksShareTheMemory) {
  const Cluster cluster = local_machine(profile(), 2).cluster;
  EXPECT_TRUE(cluster.host_computes);
  EXPECT_EQ(cluster.gpus, 2);
  EXPECT_EQ(cluster.nodes(), 1);
  EXPECT_EQ(cluster.gpu.key, "local");
  EXPECT_EQ(cluster.gpu.name, "Example CPU @ 3.0GHz");
  EXPECT_EQ(cluster.gpu.memory, Bytes(std::int64_t{4} << 30));
  EXPECT_EQ(cluster.memory_outside_allocator, Bytes(64 << 20));
  const GroupLink link = group_link(cluster, {2, 1});
  EXPECT_EQ(link.nodes, 1);
  EXPECT_EQ(link.ranks_per_node, 2);
}

TEST(LocalMachine, OtherNumbersOfRanksTakeTheNextVariant) {
  Kernel copy = {.function = Function::kCopy, .bytes = Bytes(100'000)};
  EXPECT_EQ(costs_of(2).price(copy).evidence, Evidence::kMeasured);
  // Four ranks on two cores get half a core each: twice the time of two, and nobody measured it.
  const KernelPrice four = costs_of(4).price(copy);
  EXPECT_DOUBLE_EQ(four.seconds, 2 * costs_of(2).price(copy).seconds);
  EXPECT_EQ(four.evidence, Evidence::kExtrapolated);
  EXPECT_EQ(local_machine(profile(), 4).cluster.gpu.memory, Bytes(std::int64_t{2} << 30));
  const Kernel gemm = kernel_of(GemmPoint{Pass::kForward, true, 512, 1024, 256, 1});
  EXPECT_NEAR(costs_of(4).price(gemm).seconds, 2 * costs_of(2).price(gemm).seconds, 1e-12);
  // One of two variants left: the larger one serves the smaller number.
  LocalProfile two = profile();
  two.variants.erase(two.variants.begin());
  const LocalMachine one = local_machine(two, 1);
  EXPECT_EQ(CostModel(one.cluster, one.calibration).price(copy).evidence, Evidence::kInterpolated);
}

TEST(LocalMachine, AGatherOfOneIsACopyOrACast) {
  // 1 MB written by a copy moves 2 MB: 3 us + 200 us. From fp32 to bf16 it moves 3 MB.
  EXPECT_NEAR(costs_of(1).price(EventKind::kAllGather, Bytes(1'000'000), {1, 1}).seconds, 203e-6, 1e-9);
  const LocalMachine machine = local_machine(profile(), 1);
  CostChoices choices = {.compute = DType::kBf16};
  EXPECT_NEAR(CostModel(machine.cluster, machine.calibration, choices)
                  .price(EventKind::kAllGather, Bytes(1'000'000), {1, 1})
                  .seconds,
      303e-6, 1e-9);
}

TEST(LocalMachine, NominalFiguresAreAllAssumed) {
  MeasuredHost host = {.cpu = "some CPU", .cores = 4, .memory = Bytes(std::int64_t{16} << 30)};
  const LocalMachine machine = local_machine(nominal_local_profile(host), 8);
  const CostModel costs(machine.cluster, machine.calibration);
  const Kernel gemm = kernel_of(GemmPoint{Pass::kForward, true, 512, 512, 512, 1});
  EXPECT_EQ(costs.price(gemm).evidence, Evidence::kAssumed);
  EXPECT_GT(costs.price(gemm).seconds, 0);
  EXPECT_EQ(costs.price(EventKind::kAllGather, Bytes(1000), {8, 1}).evidence, Evidence::kAssumed);
}

}
}
