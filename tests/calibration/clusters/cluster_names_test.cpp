#include "calibration/clusters/cluster_names.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "calibration/machines.h"
#include "sim/base/error.h"

namespace foreshard {
namespace {

std::string spec_of(const std::string& text) {
  try {
    return load_cluster(text).spec;
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(ClusterNamesTest, CountAndNameAsPeopleWriteThem) {
  for (const char* text : {"64xh100", "64xH100", "64XH100", "h100x64", "H100 x 64", "64 h100", "64 x h100", "64x h100",
           "64h100", "h100 64", "64 NVIDIA H100 GPUs", "8 nodes of h100", "8 H100 nodes", "64*h100", "64\xC3\x97h100",
           "  64   h100  ", "64-h100"}) {
    EXPECT_EQ(spec_of(text), "64xh100") << text;
  }
  EXPECT_EQ(spec_of("16 A100 80GB"), "16xa100-80gb");
  EXPECT_EQ(spec_of("mi300x x 8"), "8xmi300x");
  EXPECT_EQ(spec_of("MI300Xx8"), "8xmi300x");
  EXPECT_EQ(spec_of("mi300x8"), "8xmi300x");
  EXPECT_EQ(spec_of("8x6000-ada"), "8x6000-ada");
  EXPECT_EQ(spec_of("8 GPUs of h200"), "8xh200");
}

TEST(ClusterNamesTest, InstanceTypesAreCountedWhole) {
  for (const char* text : {"8xp5.48xlarge", "8 nodes of p5.48xlarge", "p5.48xlarge x 8", "8 P5.48xlarge instances",
           "64 gpus of p5.48xlarge", "8xp5"}) {
    const Cluster cluster = load_cluster(text);
    EXPECT_EQ(cluster.gpus, 64) << text;
    EXPECT_EQ(cluster.spec, "8xp5.48xlarge") << text;
    EXPECT_EQ(cluster.gpu.key, "h100-sxm") << text;
    EXPECT_EQ(cluster.node.nics, 32) << text;
    EXPECT_EQ(load_cluster(cluster.spec).gpus, cluster.gpus) << text;
  }
  EXPECT_EQ(load_cluster("p5.48xlarge").gpus, 8);
  EXPECT_EQ(load_cluster("2x Standard_ND96isr_H100_v5").gpus, 16);
  EXPECT_EQ(load_cluster("4 nodes of ND H100 v5").gpus, 32);
  EXPECT_EQ(load_cluster("2 x a2-megagpu-16g").node.gpus, 16);
  // The network is the cloud's, and says so.
  const Cluster cluster = load_cluster("8xp4d.24xlarge");
  EXPECT_EQ(cluster.node.nics, 4);
  EXPECT_EQ(cluster.node.nic_rate.value(), 12.5e9);
  EXPECT_NE(cluster.node.source.find("AWS EC2"), std::string::npos);
  EXPECT_EQ(spec_of("12 gpus of p5.48xlarge"),
      "cluster '12 gpus of p5.48xlarge': 12 GPUs are not whole nodes of 8; the next multiples are 8 and 16");
}

TEST(ClusterNamesTest, TheTableNamesMachinesOfTheCatalogue) {
  std::set<std::string> seen;
  for (const Instance& instance : list_instances()) {
    EXPECT_TRUE(seen.insert(instance.name).second) << instance.name;
    EXPECT_FALSE(instance.source.empty()) << instance.name;
    const Cluster cluster = load_cluster("2x" + instance.name);
    EXPECT_EQ(cluster.gpus, 2 * instance.gpus) << instance.name;
    EXPECT_GT(cluster.node.nics, 0) << instance.name;
    for (const std::string& other : instance.also) EXPECT_EQ(load_cluster("2x" + other).spec, cluster.spec) << other;
    EXPECT_TRUE(machine_named(instance.name).has_value()) << instance.name;
  }
  EXPECT_GE(seen.size(), 35U);
}

TEST(ClusterNamesTest, NearMissesAreShort) {
  const auto expect_said = [](const char* text, const char* part) {
    const std::string message = spec_of(text);
    EXPECT_NE(message.find(part), std::string::npos) << message;
    EXPECT_LE(message.size(), 250U) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  };
  expect_said("64xh10", "did you mean 64xh100?");
  expect_said("64xb20", "did you mean 64xb200?");
  expect_said("8xp5.48xlarg", "did you mean 8xp5.48xlarge?");
  expect_said("64xzzz", "foreshard machines lists all");
  expect_said("h100", "says no count; did you mean 8xh100?");
  expect_said("64", "expected a count and a machine");
  expect_said("0xh100", "the count must be 1 to");
  expect_said("99999999999999999999xh100", "the count must be 1 to");
  expect_said("9000000 nodes of h100", "the count must be 1 to");
  expect_said("-8xh100", "the count must be 1 to");
  expect_said("many h100", "expected a count");
  expect_said("of", "expected a count");
  expect_said("", "is empty");
}

TEST(ClusterNamesTest, MachinesWithoutACount) {
  EXPECT_EQ(machine_named("H100")->key, "h100-sxm");
  EXPECT_EQ(machine_named("H100")->node.spec, "8xh100");
  EXPECT_EQ(machine_named("a3-mega")->node.spec, "1xa3-megagpu-8g");
  EXPECT_FALSE(machine_named("8xh100").has_value());
  EXPECT_FALSE(machine_named("h1000").has_value());
}

}
}
