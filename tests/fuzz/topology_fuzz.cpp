// Descriptions of machines and networks by other tools: any bytes give a cluster file, or an Error
// for bad input; and so does the cluster file, whose graph is built and routed. The first line may
// be "nodelist: HOSTS".
#include <cstddef>
#include <cstdint>

#include "calibration/machines.h"
#include "interop/network/topology_import.h"
#include "sim/spec/cluster.h"
#include "tests/fuzz/scratch.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace foreshard;
  std::string_view text(reinterpret_cast<const char*>(data), size);
  constexpr std::string_view kNodes = "nodelist: ";
  std::string_view hosts;
  if (text.starts_with(kNodes)) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    hosts = text.substr(kNodes.size(), end - kNodes.size());
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  topology_format(text);
  constexpr std::int64_t kMostRouted = 4096;  // more take long under a sanitizer
  for (const auto parse :
       {parse_nvidia_smi_topo, parse_nccl_topology, parse_nccl_graphs, parse_slurm_topology,
        parse_slurm_allocation, parse_ibnetdiscover, parse_node_labels}) {
    expect_answer_or_refusal([&] {
      TopologyImport import = joined({parse(text, "fuzz")});
      if (!hosts.empty()) import = allocated(std::move(import), hosts);
      if (import.gpus_per_node == 0) import.gpus_per_node = 8;  // Slurm's file does not say
      ledger_text(import.ledger);
      const Cluster cluster = parse_cluster(cluster_file(import, "h100-sxm", 0), "imported");
      if (cluster.gpus <= kMostRouted && cluster.gpus > 1) group_link(cluster, {cluster.gpus, 1});
    });
  }
  return 0;
}
