// nvidia-smi topo -m, NCCL's topology XML, Slurm's topology.conf: any bytes give a cluster file, or
// an Error for bad input; and so does the cluster file.
#include <cstddef>
#include <cstdint>

#include "calibration/machines.h"
#include "interop/network/topology_import.h"
#include "tests/fuzz/scratch.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace foreshard;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  topology_format(text);
  for (const auto parse : {parse_nvidia_smi_topo, parse_nccl_topology, parse_slurm_topology}) {
    expect_answer_or_refusal([&] {
      TopologyImport import = joined({parse(text, "fuzz")});
      if (import.gpus_per_node == 0) import.gpus_per_node = 8;  // Slurm's file does not say
      ledger_text(import.ledger);
      parse_cluster(cluster_file(import, "h100-sxm", 0), "imported");
    });
  }
  return 0;
}
