#include "interop/network/topology_import.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "sim/base/error.h"

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
      std::count_if(import.ledger.begin(), import.ledger.end(),
                    [&](const ImportEntry& e) { return e.mapping == mapping; }));
}

// 8 GPUs, each with a port of its own on its switch, and one port of the host.
std::string matrix(const std::string& link) {
  std::string text = "\t";
  for (int g = 0; g < 8; ++g) text += fmt::format("GPU{}\t", g);
  for (int n = 0; n < 9; ++n) text += fmt::format("NIC{}\t", n);
  text += "CPU Affinity\tNUMA Affinity\tGPU NUMA ID\n";
  for (int row = 0; row < 17; ++row) {
    text += row < 8 ? fmt::format("GPU{}\t", row) : fmt::format("NIC{}\t", row - 8);
    for (int g = 0; g < 8; ++g) {
      text += row == g ? " X \t" : row < 8 ? link + "\t" : row - 8 == g ? "PIX\t" : "SYS\t";
    }
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
  std::string text =
      "<system version=\"1\">\n<cpu host_hash=\"0x1\" numaid=\"0\" arch=\"x86_64\">\n";
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
  two.insert(two.find("</system>"),
             xml().substr(xml().find("<cpu"), xml().find("</system>") - xml().find("<cpu")));
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

TEST(SlurmTopology, CountsNodesAndLeaves) {
  const std::string text =
      "# a tree\nSwitchName=leaf1 Nodes=n[1-16]\nswitchname=leaf2 nodes=n[17-24,30]\n"
      "SwitchName=spine Switches=leaf[1-2] LinkSpeed=1\n";
  ASSERT_EQ(topology_format(text), TopologyFormat::kSlurm);
  const TopologyImport import = parse_slurm_topology(text, "topology.conf");
  EXPECT_EQ(import.nodes, 25);
  EXPECT_EQ(figure(import, "network.nodes_per_leaf"), "16");
  EXPECT_EQ(count(import, Mapping::kDefaulted), 1);  // how wide the up-links are
}

TEST(SlurmTopology, SaysWhereItIsWrong) {
  const auto line_of = [](const char* text) {
    try {
      parse_slurm_topology(text, "t.conf");
    } catch (const ConfigError& error) {
      return error.location().line;
    }
    return -1;
  };
  EXPECT_EQ(line_of("SwitchName=a Nodes=n[1-4]\nSwitchName=b Nodes=n[5-\n"), 2);
  EXPECT_EQ(line_of("SwitchName=a Nodes=n[4-1]\n"), 1);
  EXPECT_EQ(line_of("SwitchName=a\n"), 1);
  EXPECT_EQ(line_of("# nothing\n"), 1);
}

TEST(TopologyImports, JoinWithTheFirstWinning) {
  TopologyImport all = joined({parse_nvidia_smi_topo(matrix("NV12"), "a"),
                               parse_slurm_topology("SwitchName=s Nodes=n[1-4]\n", "b")});
  EXPECT_EQ(all.nodes, 4);
  const std::string file = cluster_file(all, "", 0);
  EXPECT_EQ(file.substr(0, 28), "gpus: 32\nmachine: a100-80gb\n");
  EXPECT_NE(file.find("  nodes_per_leaf: 4\n"), std::string::npos);
}

TEST(TopologyFormats, OthersAreNone) {
  EXPECT_EQ(topology_format("hello"), TopologyFormat::kNone);
  EXPECT_EQ(topology_format(""), TopologyFormat::kNone);
}

}  // namespace
}  // namespace foreshard
