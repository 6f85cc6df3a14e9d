// Clusters as they are, from other tools' files to the answer.
#include <gtest/gtest.h>

#include <string>

#include "tests/cli/program.h"

namespace foreshard::topology_test {
namespace {

const char* const kTree =
    "SwitchName=leaf1 Nodes=n[1-4]\nSwitchName=leaf2 Nodes=n[5-8]\nSwitchName=s Switches=leaf[1-2]\n";
const char* const kAlternating =
    "machine: h100\n"
    "nodes: [{names: \"a[1-2]\", leaf: l1}, {names: \"b[1-2]\", leaf: l2}]\n"
    "switches: [l1, l2]\nlinks: [{between: [l1, l2], rate: 20GB/s}]\n"
    "ranks: [a1, b1, a2, b2]\n";
const std::string kJob = " --model llama-3.1-8b --sequence 2048 --cluster ";

TEST(TopologyCli, FromSlurmToAForecast) {
  write_temporary("topology.conf", kTree);
  const Outcome imported = run("import topology.conf --machine h100 --nodelist 'n[3-6]' --out c.yaml");
  ASSERT_EQ(imported.exit_code, 0) << imported.err;
  const auto report = json_of(run("predict --json" + kJob + "c.yaml"));
  EXPECT_EQ(report["cluster"]["gpus"], 32);
  const Outcome lost = run("import topology.conf --machine h100 --nodelist 'n[7-9]'");
  EXPECT_EQ(lost.exit_code, 3);
  expect_says(lost.err, "n9");
}

TEST(TopologyCli, ALinksLatencyCosts) {
  const auto seconds = [](const std::string& latency) {
    write_temporary("l.yaml",
        "machine: h100\nnodes: [{count: 2, leaf: l1}, {count: 2, leaf: l2}]\n"
        "switches: [l1, l2]\nlinks: [{between: [l1, l2], rate: 400GB/s, latency: " +
            latency + "}]\n");
    const auto report = json_of(run("predict --json" + kJob + "l.yaml"));
    return report["step"]["seconds"]["value"].get<double>();
  };
  EXPECT_LT(seconds("100ns"), seconds("50ms"));
}

TEST(TopologyCli, ExplainNamesTheWireAndWhatHelps) {
  write_temporary("c.yaml", kAlternating);
  const Outcome text = run("explain" + kJob + "c.yaml");
  ASSERT_EQ(text.exit_code, 0) << text.err;
  expect_says(text.out, "narrowest: l1 - l2");
  expect_says(text.out, "placement: by_leaf");
  const auto json = json_of(run("explain --json" + kJob + "c.yaml"));
  EXPECT_EQ(json["network"]["communicators"][0]["narrowest"]["to"], "l2");
  EXPECT_GT(json["network"]["changes"].size(), 0U);
}

TEST(TopologyCli, SearchVariesThePlacement) {
  write_temporary("c.yaml", kAlternating);
  const auto json =
      json_of(run("search --json --vary placement" + kJob + "c.yaml --set mesh.shard=32 --set batch.micro_batch=1"));
  const std::string placement = json["best"]["plan"].value("placement", "listed");
  EXPECT_TRUE(placement == "by_leaf" || placement == "by_pod") << placement;
}

TEST(TopologyCli, MixedKindsAreSaid) {
  write_temporary("m.yaml",
      "machine: h100\nnodes: [{count: 2, leaf: l}, {count: 1, machine: a100, leaf: l}]\n"
      "switches: [l]\n");
  const Outcome text = run("explain" + kJob + "m.yaml");
  ASSERT_EQ(text.exit_code, 0) << text.err;
  expect_says(text.out, "without the 1 node of a100-80gb");
  expect_says(run("predict" + kJob + "m.yaml").out, "nodes of several kinds");
}

TEST(TopologyCli, MachinesDrawsIt) {
  write_temporary("c.yaml", kAlternating);
  const Outcome dot = run("machines --topology c.yaml");
  ASSERT_EQ(dot.exit_code, 0) << dot.err;
  expect_says(dot.out, "graph G");
  expect_says(dot.out, "\"a1.gpu0\"");
  expect_says(dot.out, "color=");
}

}
}
