// Descriptions of machines and networks by other tools, as a cluster file:
//
//   nvidia-smi topo -m     GPUs of a node, their NVLinks, network ports and PCIe switches; several
//                          are several nodes
//   nvidia-smi             also -q, and --query-gpu=name,power.limit --format=csv: GPUs of a node
//                          and their power limit
//   NCCL's topology XML    the same with rates (NCCL_TOPO_DUMP_FILE); the order of its rings from
//                          its graph XML (NCCL_GRAPH_DUMP_FILE)
//   Slurm topology.conf    nodes and the tree (or blocks) of switches above them
//   ibnetdiscover          nodes, switches, and every cable with its rate
//   Kubernetes node list   (kubectl get nodes -o json) trees of switches by topology labels; also
//                          EC2's describe-instance-topology
//   an allocation          SLURM_JOB_NODELIST=..., as env prints it: the nodes in use
//
// Each takes what it knows and says in the ledger what it took for the rest. A file that is cut off
// is read as far as it goes where that is enough, else it is a ConfigError with file and line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "interop/frameworks/import_ledger.h"

namespace foreshard {

using ImportedFigures = std::vector<std::pair<std::string, std::string>>;

struct ImportedHost {
  std::string name;
  std::vector<std::string> leaves;               // per port, or one for all; empty: not told
  ImportedFigures figures;                       // of this host: {"node.nics", "8"}
  std::vector<std::pair<int, double>> degraded;  // ports and what is left of them
  std::string file;
  int line = 0;
};

struct ImportedLink {
  std::string below;
  std::string above;
  double rate = 0;  // bytes/s of all cables, one direction; 0: not told
};

// Of a channel, by their numbers in the node.
struct ImportedRing {
  std::vector<int> gpus;
  int enters = -1;  // network port; -1: not told
  int leaves = -1;
};

struct ImportedNetwork {
  std::vector<ImportedHost> hosts;
  std::vector<std::string> switches;
  std::vector<ImportedLink> links;
  std::vector<ImportedRing> rings;
  std::vector<std::string> allocation;  // hosts in use, in the order of their ranks; empty: all
  std::string allocation_file;
  int allocation_line = 0;
};

struct TopologyImport {
  std::string machine;  // a catalogue key or instance type, where the file tells the GPU; else ""
  std::int64_t nodes = 0;
  std::int64_t gpus_per_node = 0;
  // Figures by their key in a cluster file, as written there: {"node.nics", "8"}.
  ImportedFigures figures;
  ImportedNetwork network;
  ImportLedger ledger;
};

// Of one GPU: Blackwell has 18 (NVIDIA's data sheets); four times as many leave room for what comes.
inline constexpr int kMostLinks = 72;
inline constexpr std::size_t kMaxTopologyBytes = std::size_t{2} << 20;  // a node has kilobytes
inline constexpr std::size_t kMaxFabricBytes = std::size_t{16} << 20;   // of ten thousand nodes

// `file_name` is what errors and the ledger call the text. Throw ConfigError.
TopologyImport parse_nvidia_smi_topo(std::string_view text, std::string_view file_name);
TopologyImport parse_nvidia_smi_query(std::string_view text, std::string_view file_name);
TopologyImport parse_nccl_topology(std::string_view xml, std::string_view file_name);
TopologyImport parse_nccl_graphs(std::string_view xml, std::string_view file_name);
TopologyImport parse_slurm_topology(std::string_view text, std::string_view file_name);
TopologyImport parse_slurm_allocation(std::string_view text, std::string_view file_name);
TopologyImport parse_ibnetdiscover(std::string_view text, std::string_view file_name);
TopologyImport parse_node_labels(std::string_view json, std::string_view file_name);

enum class TopologyFormat : std::uint8_t {
  kNone,
  kNvidiaSmi,
  kNvidiaSmiQuery,
  kNcclXml,
  kNcclGraphs,
  kSlurm,
  kAllocation,
  kIbnetdiscover,
  kNodeLabels
};
TopologyFormat topology_format(std::string_view text);
// kNone: ConfigError.
TopologyImport parse_topology(TopologyFormat format, std::string_view text, std::string_view file_name);

// The parts of several files of one cluster; the first that knows a figure is taken, and a later one that says
// otherwise is an entry of the ledger. Several nodes' own descriptions are those nodes'.
TopologyImport joined(const std::vector<TopologyImport>& parts);

// The import with the nodes of an allocation, as Slurm writes them. Throws Error(kUsage).
TopologyImport allocated(TopologyImport import, std::string_view hosts);

// A cluster file. `machine` and `nodes` stand in where the import does not know: "" and 0 for none.
// Throws Error(kInvalidInput) where neither knows the machine, and where hosts of the allocation
// are not there or nothing connects them.
std::string cluster_file(const TopologyImport& import, std::string_view machine, std::int64_t nodes);

}
