#include "interop/network/topology_import.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "calibration/machines.h"
#include "sim/base/error.h"
#include "sim/spec/network/cluster_layout.h"

namespace foreshard {
namespace {

std::string figure(const TopologyImport& import, const std::string& key) {
  for (const auto& [name, value] : import.figures) {
    if (name == key) return value;
  }
  return "";
}

int count(const TopologyImport& import, Mapping mapping) {
  return static_cast<int>(
      std::ranges::count_if(import.ledger, [&](const ImportEntry& e) { return e.mapping == mapping; }));
}

// 8 GPUs, each with a port of its own on its switch, and one port of the host.
std::string matrix(const std::string& link) {
  std::string text = "\t";
  for (int g = 0; g < 8; ++g) text += fmt::format("GPU{}\t", g);
  for (int n = 0; n < 9; ++n) text += fmt::format("NIC{}\t", n);
  text += "CPU Affinity\tNUMA Affinity\tGPU NUMA ID\n";
  for (int row = 0; row < 17; ++row) {
    text += row < 8 ? fmt::format("GPU{}\t", row) : fmt::format("NIC{}\t", row - 8);
    for (int g = 0; g < 8; ++g) text += row == g ? " X \t" : row < 8 ? link + "\t" : row - 8 == g ? "PIX\t" : "SYS\t";
    for (int n = 0; n < 9; ++n) {
      text += row - 8 == n ? " X \t" : row < 8 && row == n ? "PIX\t" : n == 8 ? "NODE\t" : "SYS\t";
    }
    text += row < 8 ? "0-51,104-155\t0\t\tN/A\n" : "\n";
  }
  return text + "\nLegend:\n\n  X    = Self\n  SYS  = ...\n\nNIC Legend:\n\n  NIC0: mlx5_0\n";
}

TEST(NvidiaSmiTopo, ReadsGpusLinksPortsAndSwitches) {
  const std::string text = "Warning: persistence mode is off\n" + matrix("NV18");
  ASSERT_EQ(topology_format(text), TopologyFormat::kNvidiaSmi);
  const TopologyImport import = parse_nvidia_smi_topo(text, "topo.txt");
  EXPECT_EQ(import.gpus_per_node, 8);
  EXPECT_EQ(figure(import, "node.gpus"), "8");
  EXPECT_EQ(figure(import, "node.nics"), "8");  // NIC8 hangs on no GPU's switch
  EXPECT_EQ(figure(import, "node.pcie_switches"), "8");
  EXPECT_EQ(figure(import, "node.gpu_link_name"), "NVLink + NVSwitch");
  EXPECT_EQ(import.machine, "");  // 18 links: Hopper or Blackwell
  EXPECT_EQ(count(import, Mapping::kUnsupported), 1);
  EXPECT_EQ(import.ledger.front().line, 2);
  EXPECT_THROW(cluster_file(import, "", 0), Error);
  EXPECT_EQ(cluster_file(import, "h100-sxm", 2).substr(0, 27), "gpus: 16\nmachine: h100-sxm\n");
}

TEST(NvidiaSmiTopo, TwelveLinksAreAnA100) {
  const TopologyImport import = parse_nvidia_smi_topo(matrix("NV12"), "topo.txt");
  EXPECT_EQ(import.machine, "a100-80gb");
  EXPECT_EQ(figure(import, "node.gpu_link"), "300GB/s");
}

TEST(NvidiaSmiTopo, WithoutNvlinkItIsPcie) {
  const TopologyImport import = parse_nvidia_smi_topo(matrix("PHB"), "topo.txt");
  EXPECT_EQ(figure(import, "node.gpu_link_name"), "PCIe");
  EXPECT_EQ(figure(import, "node.gpu_link"), "");
}

TEST(NvidiaSmiTopo, CutOffAnywhereItReadsOrSaysWhere) {
  const std::string text = matrix("NV18");
  for (std::size_t size = 0; size < text.size(); size += 11) {
    try {
      const TopologyImport import = parse_nvidia_smi_topo(text.substr(0, size), "topo.txt");
      EXPECT_GE(import.gpus_per_node, 1);
      EXPECT_LE(import.gpus_per_node, 8);
    } catch (const ConfigError& error) {
      EXPECT_EQ(std::string(error.what()).rfind("topo.txt", 0), 0U);
    }
  }
}

// Two GPUs on one NVSwitch, 18 links each, a port of 400 Gbit/s beside each.
std::string xml() {
  std::string text = "<system version=\"1\">\n<cpu host_hash=\"0x1\" numaid=\"0\" arch=\"x86_64\">\n";
  for (int i = 0; i < 2; ++i) {
    text += fmt::format(
        "<pci busid=\"0000:{0}a:00.0\" class=\"0x060400\" link_speed=\"32.0 GT/s PCIe\" "
        "link_width=\"16\">\n"
        "<pci busid=\"0000:{0}b:00.0\" class=\"0x030200\" link_speed=\"32.0 GT/s PCIe\" "
        "link_width=\"16\">\n"
        "<gpu dev=\"{0}\" sm=\"90\" rank=\"{0}\" gdr=\"1\">\n"
        "<nvlink target=\"0000:c0:00.0\" count=\"9\" tclass=\"0x068000\"/>\n"
        "<nvlink target=\"0000:c1:00.0\" count=\"9\" tclass=\"0x068000\"/>\n"
        "</gpu>\n</pci>\n"
        "<pci busid=\"0000:{0}c:00.0\" class=\"0x020700\" link_speed=\"32.0 GT/s PCIe\" "
        "link_width=\"16\">\n"
        "<nic><net name=\"mlx5_{0}\" dev=\"{0}\" speed=\"400000\" port=\"1\" latency=\"0\" "
        "gdr=\"1\"/></nic>\n</pci>\n</pci>\n",
        i);
  }
  return text + "</cpu>\n</system>\n";
}

TEST(NcclTopology, ReadsGpusLinksAndPorts) {
  ASSERT_EQ(topology_format(xml()), TopologyFormat::kNcclXml);
  const TopologyImport import = parse_nccl_topology(xml(), "topo.xml");
  EXPECT_EQ(import.machine, "h100-sxm");
  EXPECT_EQ(import.gpus_per_node, 2);
  EXPECT_EQ(figure(import, "node.gpu_link"), "450GB/s");  // 18 links of 25
  EXPECT_EQ(figure(import, "node.gpu_link_name"), "NVLink + NVSwitch");
  EXPECT_EQ(figure(import, "node.nics"), "2");
  EXPECT_EQ(figure(import, "node.nic_rate"), "400Gbit/s");
  EXPECT_EQ(figure(import, "node.host_link"), "48GB/s");  // 16 lanes of 240 over 80
  EXPECT_EQ(count(import, Mapping::kUnsupported), 0);
}

TEST(NcclTopology, HostsOfOneNvlinkDomain) {
  std::string two = xml();
  two.insert(two.find("</system>"), xml().substr(xml().find("<cpu"), xml().find("</system>") - xml().find("<cpu")));
  const std::size_t second = two.rfind("host_hash=\"0x1\"");
  two.replace(second, 15, "host_hash=\"0x2\"");
  const TopologyImport import = parse_nccl_topology(two, "topo.xml");
  EXPECT_EQ(import.nodes, 2);
  EXPECT_EQ(import.gpus_per_node, 2);
  EXPECT_EQ(figure(import, "node.link_domain"), "2");
  EXPECT_EQ(figure(import, "node.nics"), "2");
}

TEST(NcclTopology, CutOffItReadsAsFarAsItGoes) {
  const std::string text = xml();
  const TopologyImport import = parse_nccl_topology(text.substr(0, text.size() * 3 / 4), "t.xml");
  EXPECT_GE(import.gpus_per_node, 1);
  EXPECT_GE(count(import, Mapping::kIgnored), 1);
  try {
    parse_nccl_topology(text.substr(0, 60), "t.xml");
    FAIL() << "no GPU was there";
  } catch (const ConfigError& error) {
    EXPECT_EQ(std::string(error.what()).rfind("t.xml:", 0), 0U);
  }
}

const char* const kTree =
    "# a tree\nSwitchName=leaf1 Nodes=n[01-16]\nswitchname=leaf2 nodes=n[17-24,30]\n"
    "SwitchName=spine Switches=leaf[1-2] LinkSpeed=1\n";

TEST(SlurmTopology, BecomesNodesSwitchesAndLinks) {
  ASSERT_EQ(topology_format(kTree), TopologyFormat::kSlurm);
  const TopologyImport import = parse_slurm_topology(kTree, "topology.conf");
  EXPECT_EQ(import.nodes, 25);
  EXPECT_EQ(import.network.hosts.front().name, "n01");
  EXPECT_EQ(import.network.hosts.back().leaves, std::vector<std::string>{"leaf2"});
  EXPECT_EQ(count(import, Mapping::kDefaulted), 1);  // how wide the up-links are
  const Cluster cluster = parse_cluster(cluster_file(import, "h100-sxm", 0), "imported");
  EXPECT_EQ(cluster.gpus, 200);
  ASSERT_TRUE(cluster.layout);
  // As wide as the ports below: 16 and 9 nodes of eight ports of 50 GB/s.
  ASSERT_EQ(cluster.layout->links.size(), 2U);
  EXPECT_NEAR(cluster.layout->links[0].rate.value(), 6400e9, 1e6);
  EXPECT_NEAR(cluster.layout->links[1].rate.value(), 3600e9, 1e6);
  EXPECT_NEAR(group_link(cluster, {200, 1}).network.value(), 400e9, 1);
}

TEST(SlurmTopology, AnAllocationTakesItsNodesInItsOrder) {
  const std::string env = "SLURM_JOB_ID=7\nSLURM_JOB_NODELIST=n[15-18]\n";
  ASSERT_EQ(topology_format(env), TopologyFormat::kAllocation);
  const TopologyImport all =
      joined({parse_slurm_topology(kTree, "topology.conf"), parse_slurm_allocation(env, "env.txt")});
  const Cluster cluster = parse_cluster(cluster_file(all, "h100-sxm", 0), "imported");
  EXPECT_EQ(cluster.gpus, 32);
  EXPECT_EQ(cluster.layout->groups.size(), 2U);
  EXPECT_EQ(cluster.layout->groups[1].names, (std::vector<std::string>{"n17", "n18"}));
  const TopologyImport named = allocated(parse_slurm_topology(kTree, "topology.conf"), "n[16-17]");
  EXPECT_EQ(parse_cluster(cluster_file(named, "h100-sxm", 0), "imported").gpus, 16);
}

// Where and with which words a reader refuses.
std::string refusal(auto read) {
  try {
    read();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

void expect_slurm(const std::string& text, const std::string& begin, const std::string& holds) {
  const std::string said = refusal([&] { parse_slurm_topology(text, "t.conf"); });
  EXPECT_EQ(said.rfind(begin, 0), 0U) << said;
  EXPECT_NE(said.find(holds), std::string::npos) << said;
}

TEST(SlurmTopology, SaysWhereItIsWrongAndBetweenWhom) {
  expect_slurm("SwitchName=a Nodes=n[1-4]\nSwitchName=b Nodes=n[5-\n", "t.conf:2", "cut off");
  expect_slurm("SwitchName=a Nodes=n[4-1]\n", "t.conf:1", "backwards");
  expect_slurm("SwitchName=a\n", "t.conf:1", "neither nodes nor switches");
  expect_slurm("# nothing\n", "t.conf:1", "no switch with nodes");
  expect_slurm("SwitchName=l Nodes=n1\nSwitchName=a Switches=b\nSwitchName=b Switches=a,l\n", "t.conf:2",
      "a is above itself, by way of b");
  expect_slurm("SwitchName=a Nodes=n[1-4]\nSwitchName=b Nodes=n4\n", "t.conf:2", "n4 hangs on a and on b");
  expect_slurm("SwitchName=a Nodes=n1\nSwitchName=b Switches=c\n", "t.conf:2", "not there, c");
  expect_slurm("SwitchName=a Nodes=n1\nSwitchName=a Nodes=n2\n", "t.conf:2", "first in line 1");
  expect_slurm(
      "SwitchName=a Nodes=n1\nSwitchName=b Switches=a\nSwitchName=c Switches=a\n", "t.conf:3", "a hangs on b and on c");
}

TEST(SlurmTopology, AllocationsThatCannotBeAreNamed) {
  const auto said = [](const std::string& tree, const std::string& hosts) {
    return refusal([&] {
      cluster_file(
          joined({parse_slurm_topology(tree, "t.conf"), parse_slurm_allocation("SLURM_JOB_NODELIST=" + hosts, "env")}),
          "h100-sxm", 0);
    });
  };
  const std::string apart = "SwitchName=a Nodes=n[1-2]\nSwitchName=b Nodes=m[1-2]\n";
  EXPECT_EQ(said(apart, "n[1-2]"), "");
  EXPECT_EQ(said(apart, "n1,m1").rfind("t.conf:2: no links lead from b (m1) to a (n1)", 0), 0U) << said(apart, "n1,m1");
  EXPECT_EQ(said(apart, "n[1-3]").rfind("env:1: allocates a node that is not there, n3", 0), 0U)
      << said(apart, "n[1-3]");
}

TEST(SlurmTopology, BlocksLieBesideEachOther) {
  const TopologyImport import =
      parse_slurm_topology("BlockName=b1 Nodes=n[1-2]\nBlockName=b2 Nodes=n[3-4]\n", "t.conf");
  const Cluster cluster = parse_cluster(cluster_file(import, "gb200", 0), "imported");
  EXPECT_EQ(cluster.layout->links.size(), 2U);
}

// Two leaves under a spine: a1 with both ports, b1 with a slow one, b2 without its second.
const char* const kFabric =
    "#\n# Topology file: generated on Mon\n#\n\nvendid=0x2c9\ndevid=0xd2f0\n"
    "switchguid=0x1(1)\nSwitch\t41 \"S-0001\"\t\t# \"MF0;leaf1:MQM8700/U1\" enhanced port 0 lid 1\n"
    "[1]\t\"H-000a\"[1](a1) \t\t# \"a1 mlx5_0\" lid 4 4xHDR\n"
    "[2]\t\"H-000b\"[1](b1) \t\t# \"a1 mlx5_1\" lid 5 4xHDR\n"
    "[40]\t\"S-0003\"[1]\t\t# \"MF0;spine:MQM8700/U1\" lid 3 4xHDR\n"
    "[41]\t\"S-0003\"[2]\t\t# \"MF0;spine:MQM8700/U1\" lid 3 4xHDR\n\n"
    "switchguid=0x2(2)\nSwitch\t41 \"S-0002\"\t\t# \"MF0;leaf2:MQM8700/U1\" enhanced port 0 lid 2\n"
    "[40]\t\"S-0003\"[3]\t\t# \"MF0;spine:MQM8700/U1\" lid 3 4xHDR\n\n"
    "switchguid=0x3(3)\nSwitch\t41 \"S-0003\"\t\t# \"MF0;spine:MQM8700/U1\" enhanced port 0 lid 3\n"
    "[1]\t\"S-0001\"[40]\t\t# \"MF0;leaf1:MQM8700/U1\" lid 1 4xHDR\n"
    "[2]\t\"S-0001\"[41]\t\t# \"MF0;leaf1:MQM8700/U1\" lid 1 4xHDR\n"
    "[3]\t\"S-0002\"[40]\t\t# \"MF0;leaf2:MQM8700/U1\" lid 2 4xHDR\n\n"
    "caguid=0xa\nCa\t1 \"H-000a\"\t\t# \"a1 mlx5_0\"\n[1](a) \t\"S-0001\"[1]\t\t# lid 4 lmc 0 "
    "\"MF0;leaf1:MQM8700/U1\" lid 1 4xHDR\n\n"
    "caguid=0xb\nCa\t1 \"H-000b\"\t\t# \"a1 mlx5_1\"\n[1](b) \t\"S-0001\"[2]\t\t# lid 5 lmc 0 "
    "\"MF0;leaf1:MQM8700/U1\" lid 1 4xHDR\n\n"
    "caguid=0xc\nCa\t1 \"H-000c\"\t\t# \"b1 mlx5_0\"\n[1](c) \t\"S-0002\"[1]\t\t# lid 6 lmc 0 "
    "\"MF0;leaf2:MQM8700/U1\" lid 2 4xHDR\n\n"
    "caguid=0xd\nCa\t1 \"H-000d\"\t\t# \"b1 mlx5_1\"\n[1](d) \t\"S-0002\"[2]\t\t# lid 7 lmc 0 "
    "\"MF0;leaf2:MQM8700/U1\" lid 2 4xEDR\n\n"
    "caguid=0xe\nCa\t1 \"H-000e\"\t\t# \"b2 mlx5_0\"\n[1](e) \t\"S-0002\"[3]\t\t# lid 8 lmc 0 "
    "\"MF0;leaf2:MQM8700/U1\" lid 2 4xHDR\n\n"
    "caguid=0xf\nCa\t1 \"H-000f\"\t\t# \"Mellanox Technologies Aggregation Node\"\n[1](f) "
    "\t\"S-0003\"[9]\t\t# lid 9 lmc 0 \"MF0;spine:MQM8700/U1\" lid 3 4xHDR\n";

TEST(Ibnetdiscover, ReadsCablesRatesAndMissingPorts) {
  ASSERT_EQ(topology_format(kFabric), TopologyFormat::kIbnetdiscover);
  const TopologyImport import = parse_ibnetdiscover(kFabric, "fabric.txt");
  EXPECT_EQ(figure(import, "node.nics"), "2");
  EXPECT_EQ(figure(import, "node.nic_rate"), "200Gbit/s");
  const std::string yaml = cluster_file(import, "a100-80gb", 0);
  const Cluster cluster = parse_cluster(yaml, "imported");
  EXPECT_EQ(cluster.nodes(), 3);
  ASSERT_EQ(cluster.layout->links.size(), 2U);
  EXPECT_NEAR(cluster.layout->links[0].rate.value(), 50e9, 1);  // two cables
  EXPECT_NEAR(cluster.layout->links[1].rate.value(), 25e9, 1);
  ASSERT_EQ(cluster.degraded.size(), 2U);
  EXPECT_EQ(cluster.degraded[0], (DegradedLink{1, DegradedLink::Part::kNic, 1, 0.5}));
  EXPECT_EQ(cluster.degraded[1], (DegradedLink{2, DegradedLink::Part::kNic, 1, 0}));
}

TEST(Ibnetdiscover, SaysWhereItIsWrong) {
  const auto said = [](const std::string& text) { return refusal([&] { parse_ibnetdiscover(text, "f"); }); };
  EXPECT_EQ(said("nothing").rfind("f:1", 0), 0U);
  EXPECT_EQ(said("Switch 41 \"S-1\" # \"a\"\n[1] \"S-2\"[1] # \"b\" lid 1\n").rfind("f:2", 0), 0U);
  const std::string lost =
      "Switch 41 \"S-1\" # \"a\"\n[1] \"S-2\"[1] # \"b\" lid 1 4xHDR\n"
      "Ca 1 \"H-1\" # \"n1 mlx5_0\"\n[1](1) \"S-1\"[2] # lid 4xHDR\n";
  EXPECT_NE(said(lost).find("not there, S-2"), std::string::npos) << said(lost);
}

TEST(NodeLabels, MakeATreeOfTheirLevels) {
  const auto node = [](const char* name, const char* leaf, const char* spine) {
    return fmt::format(
        R"({{"metadata": {{"name": "{}", "labels": {{"network.topology.nvidia.com/leaf": "{}",
        "network.topology.nvidia.com/spine": "{}", "nvidia.com/gpu.count": "8",
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}}}}}})",
        name, leaf, spine);
  };
  const std::string text =
      fmt::format(R"({{"kind": "List", "items": [{}, {}, {}, {{"metadata": {{"name": "cpu"}}}}]}})",
          node("n1", "l1", "s1"), node("n2", "l2", "s1"), node("n3", "l3", "s2"));
  ASSERT_EQ(topology_format(text), TopologyFormat::kNodeLabels);
  const TopologyImport import = parse_node_labels(text, "nodes.json");
  EXPECT_EQ(import.machine, "h100-sxm");
  EXPECT_EQ(import.network.hosts.size(), 3U);
  EXPECT_EQ(import.network.switches.size(), 6U);  // l1, s1, l2, l3, s2 and what joins s1 and s2
  const Cluster cluster = parse_cluster(cluster_file(import, "", 0), "imported");
  EXPECT_EQ(cluster.gpus, 24);
  EXPECT_NEAR(group_link(cluster, {24, 1}).network.value(), 400e9, 1);
}

TEST(NodeLabels, ReadEc2Placements) {
  const std::string text =
      R"({"Instances": [
        {"InstanceId": "i-1", "InstanceType": "p5.48xlarge", "NetworkNodes": ["nn-1", "nn-2", "nn-3"]},
        {"InstanceId": "i-2", "InstanceType": "p5.48xlarge", "NetworkNodes": ["nn-1", "nn-4", "nn-5"]}]})";
  ASSERT_EQ(topology_format(text), TopologyFormat::kNodeLabels);
  const TopologyImport import = parse_node_labels(text, "ec2.json");
  EXPECT_EQ(import.machine, "p5.48xlarge");
  EXPECT_EQ(parse_cluster(cluster_file(import, "", 0), "imported").gpus, 16);
}

TEST(NcclGraphs, GiveTheOrderOfTheRing) {
  const std::string text =
      "<graphs version=\"1\"><graph id=\"0\" pattern=\"4\" nchannels=\"2\"><channel><net dev=\"0\"/><gpu "
      "dev=\"0\"/><gpu dev=\"2\"/><gpu dev=\"1\"/><gpu dev=\"3\"/><net dev=\"1\"/></channel><channel><gpu "
      "dev=\"3\"/><gpu dev=\"1\"/><gpu dev=\"2\"/><gpu dev=\"0\"/></channel></graph><graph id=\"1\" "
      "pattern=\"1\"/></graphs>";
  ASSERT_EQ(topology_format(text), TopologyFormat::kNcclGraphs);
  const TopologyImport import = parse_nccl_graphs(text, "graph.xml");
  ASSERT_EQ(import.network.rings.size(), 2U);
  EXPECT_EQ(import.network.rings[0].gpus, (std::vector<int>{0, 2, 1, 3}));
  EXPECT_EQ(import.network.rings[0].enters, 0);
  EXPECT_EQ(import.network.rings[0].leaves, 1);
  EXPECT_EQ(import.network.rings[1].enters, -1);
  const Cluster cluster = parse_cluster(
      cluster_file(joined({parse_slurm_topology("SwitchName=s Nodes=n[1-2]\n", "t"), import}), "h100-sxm", 0),
      "imported");
  ASSERT_EQ(cluster.layout->rings.size(), 2U);
  EXPECT_EQ(cluster.layout->rings[0].leaves, 1);
  EXPECT_EQ(cluster.layout->rings[1].leaves, -1);
  EXPECT_NE(refusal([] {
    parse_nccl_graphs("<graphs><graph id=\"0\"><channel><gpu dev=\"1\"/></channel></graph></graphs>", "g");
  }),
      "");
}

TEST(TopologyImports, SeveralNodesMatricesAreSeveralNodes) {
  const TopologyImport all =
      joined({parse_nvidia_smi_topo(matrix("NV12"), "n1.txt"), parse_nvidia_smi_topo(matrix("NV12"), "n2.txt")});
  const Cluster cluster = parse_cluster(cluster_file(all, "", 0), "imported");
  EXPECT_EQ(cluster.gpus, 16);
  EXPECT_EQ(cluster.layout->groups.front().names, (std::vector<std::string>{"n1", "n2"}));
}

TEST(TopologyImports, JoinWithTheFirstWinning) {
  const TopologyImport all =
      joined({parse_nvidia_smi_topo(matrix("NV12"), "a"), parse_slurm_topology("SwitchName=s Nodes=n[1-4]\n", "b")});
  EXPECT_EQ(all.nodes, 4);
  const Cluster cluster = parse_cluster(cluster_file(all, "", 0), "imported");
  EXPECT_EQ(cluster.gpus, 32);
  EXPECT_EQ(cluster.gpu.key, "a100-80gb");
}

constexpr const char* kQuery =
    "\n==============NVSMI LOG==============\n\nAttached GPUs                             : 2\n"
    "GPU 00000000:1B:00.0\n"
    "    Product Name                          : NVIDIA H100 80GB HBM3\n"
    "    Clocks Event Reasons\n"
    "        SW Power Cap                      : Active\n"
    "    GPU Power Readings\n"
    "        Power Draw                        : 498.11 W\n"
    "        Current Power Limit               : 700.00 W\n"
    "        Enforced Power Limit              : 700.00 W\n"
    "    Module Power Readings\n"
    "        Current Power Limit               : 300.00 W\n"
    "GPU 00000000:43:00.0\n"
    "    Product Name                          : NVIDIA H100 80GB HBM3\n"
    "    GPU Power Readings\n"
    "        Current Power Limit               : 500.00 W\n";

// The slower of two GPUs counts; the module's limit does not.
TEST(NvidiaSmiQuery, TellsTheGpuAndItsPowerLimit) {
  ASSERT_EQ(topology_format(kQuery), TopologyFormat::kNvidiaSmiQuery);
  const TopologyImport import = parse_nvidia_smi_query(kQuery, "smi.txt");
  EXPECT_EQ(import.machine, "h100-sxm");
  EXPECT_EQ(import.gpus_per_node, 2);
  const Cluster cluster = parse_cluster(cluster_file(import, "", 4), "imported");
  EXPECT_EQ(cluster.gpus, 8);
  EXPECT_EQ(cluster.gpu.power_limit, 500);
  bool is_held = false;
  for (const ImportEntry& entry : import.ledger) is_held |= entry.what == "SW Power Cap";
  EXPECT_TRUE(is_held);
}

TEST(NvidiaSmiQuery, ReadsTheTableAndCsv) {
  const std::string table =
      "| NVIDIA-SMI 550.54.15    Driver Version: 550.54.15    CUDA Version: 12.4 |\n"
      "|   0  NVIDIA A100-SXM4-80GB          On  |   00000000:07:00.0 Off |          0 |\n"
      "| N/A   31C    P0             62W /  400W |       1MiB /  81920MiB |  0%  Default |\n";
  ASSERT_EQ(topology_format(table), TopologyFormat::kNvidiaSmiQuery);
  const TopologyImport of_table = parse_nvidia_smi_query(table, "smi.txt");
  EXPECT_EQ(of_table.machine, "a100-80gb");
  EXPECT_EQ(parse_cluster(cluster_file(of_table, "", 0), "imported").gpu.power_limit, 400);
  const std::string csv =
      "index, name, power.limit [W], enforced.power.limit [W]\n"
      "0, NVIDIA H200, 700.00 W, 600.00 W\n1, NVIDIA H200, 700.00 W, [N/A]\n";
  ASSERT_EQ(topology_format(csv), TopologyFormat::kNvidiaSmiQuery);
  const TopologyImport of_csv = parse_nvidia_smi_query(csv, "smi.csv");
  EXPECT_EQ(of_csv.machine, "h200");
  EXPECT_EQ(parse_cluster(cluster_file(of_csv, "", 0), "imported").gpu.power_limit, 600);
}

TEST(NvidiaSmiQuery, RefusesWhatNamesNoGpuOrSeveralKinds) {
  EXPECT_NE(refusal([] { parse_nvidia_smi_query("name, power.limit [W]\n", "smi.csv"); }), "");
  const std::string two = "name, power.limit [W]\nNVIDIA H100, 700.00 W\nNVIDIA L4, 72.00 W\n";
  const std::string said = refusal([&] { parse_nvidia_smi_query(two, "smi.csv"); });
  EXPECT_NE(said.find("smi.csv:3"), std::string::npos) << said;
  // Cut off anywhere it is read or refused, never more.
  const std::string text = kQuery;
  for (std::size_t size = 0; size < text.size(); ++size) {
    refusal([&] { parse_nvidia_smi_query(text.substr(0, size), "smi.txt"); });
  }
}

TEST(TopologyFormats, OthersAreNone) {
  EXPECT_EQ(topology_format("hello"), TopologyFormat::kNone);
  EXPECT_EQ(topology_format(""), TopologyFormat::kNone);
}

}
}
