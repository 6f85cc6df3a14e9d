// Descriptions of machines by other tools, as figures of a cluster file:
//
//   nvidia-smi topo -m     GPUs of a node, their NVLinks, network ports and PCIe switches
//   NCCL's topology XML    the same with rates (NCCL_TOPO_DUMP_FILE)
//   Slurm topology.conf    nodes and leaf switches
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

struct TopologyImport {
  std::string machine;  // a catalogue key, where the file tells the GPU; else ""
  std::int64_t nodes = 0;
  std::int64_t gpus_per_node = 0;
  // Figures by their key in a cluster file, as written there: {"node.nics", "8"}.
  std::vector<std::pair<std::string, std::string>> figures;
  ImportLedger ledger;
};

// Of one GPU: Blackwell has 18 (NVIDIA's data sheets); four times as many leave room for what
// comes.
inline constexpr int kMostLinks = 72;
inline constexpr std::size_t kMaxTopologyBytes = std::size_t{2} << 20;  // a node has kilobytes

// `file_name` is what errors and the ledger call the text. Throw ConfigError.
TopologyImport parse_nvidia_smi_topo(std::string_view text, std::string_view file_name);
TopologyImport parse_nccl_topology(std::string_view xml, std::string_view file_name);
TopologyImport parse_slurm_topology(std::string_view text, std::string_view file_name);

enum class TopologyFormat : std::uint8_t { kNone, kNvidiaSmi, kNcclXml, kSlurm };
TopologyFormat topology_format(std::string_view text);

// The parts of several files of one cluster; the first that knows a figure is taken, and a later
// one that says otherwise is an entry of the ledger.
TopologyImport joined(const std::vector<TopologyImport>& parts);

// A cluster file. `machine` and `nodes` stand in where the import does not know: "" and 0 for none.
// Throws Error(kInvalidInput) where neither knows the machine.
std::string cluster_file(const TopologyImport& import, std::string_view machine,
                         std::int64_t nodes);

}  // namespace foreshard
