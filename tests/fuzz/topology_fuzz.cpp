// Descriptions of machines and networks by other tools: any bytes give a cluster file, or an Error
// for bad input; and so does the cluster file, whose graph is built and routed. The first line may
// be "nodelist: HOSTS". A text that no reader claims goes to the one that its size picks.
#include <cstddef>
#include <cstdint>

#include "calibration/machines.h"
#include "interop/network/topology_import.h"
#include "sim/base/lookup.h"
#include "sim/spec/cluster.h"
#include "tests/fuzz/scratch.h"

namespace {

// Lists of thousands of hosts are slow under a sanitizer; tests/cli/large_files.py has them.
bool names_thousands(std::string_view text) {
  constexpr int kMostDigits = 3;
  int digits = 0;
  for (const char c : text) {
    digits = c >= '0' && c <= '9' ? digits + 1 : 0;
    if (digits > kMostDigits && contains(text, '[')) return true;
  }
  return false;
}

}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace foreshard;
  std::string_view text(reinterpret_cast<const char*>(data), size);
  if (names_thousands(text)) return -1;
  constexpr std::string_view kNodes = "nodelist: ";
  std::string_view hosts;
  if (text.starts_with(kNodes)) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    hosts = text.substr(kNodes.size(), end - kNodes.size());
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  constexpr std::size_t kFormats = 7;  // and none
  const auto picked = static_cast<TopologyFormat>(1 + size % kFormats);
  const TopologyFormat claimed = topology_format(text);
  constexpr std::int64_t kMostRouted = 256;  // more take long under a sanitizer
  expect_answer_or_refusal([&] {
    TopologyImport import = joined({parse_topology(claimed == TopologyFormat::kNone ? picked : claimed, text, "fuzz")});
    if (!hosts.empty()) import = allocated(std::move(import), hosts);
    if (import.gpus_per_node == 0) import.gpus_per_node = 8;  // Slurm's file does not say
    ledger_text(import.ledger);
    const Cluster cluster = parse_cluster(cluster_file(import, "h100-sxm", 0), "imported");
    if (cluster.gpus <= kMostRouted && cluster.gpus > 1) group_link(cluster, {cluster.gpus, 1});
  });
  return 0;
}
