#include <fmt/format.h>

#include "calibration/machines.h"
#include "cli/verbs/verbs.h"
#include "interop/network/nccl_log.h"
#include "sim/base/error.h"
#include "sim/base/text_file.h"

namespace foreshard {

TopologyImport read_topology(const std::string& file) {
  const std::string head = read_text_start(file, kNcclTestsHead);
  const TopologyFormat format = topology_format(head);
  if (format == TopologyFormat::kNone && looks_like_nccl_tests(head)) {
    throw ConfigError({file, 1, 0, ""}, "is a log of nccl-tests",
                      fmt::format("a machine; of this: foreshard calibrate {}", file));
  }
  const bool is_fabric =
      format == TopologyFormat::kIbnetdiscover || format == TopologyFormat::kNodeLabels;
  const std::string text =
      format == TopologyFormat::kNone
          ? ""
          : read_text_file(file, is_fabric ? kMaxFabricBytes : kMaxTopologyBytes);
  return parse_topology(format, text, file);
}

Cluster cluster_of_file(const std::string& file, const std::string& machine) {
  if (topology_format(read_text_start(file, kNcclTestsHead)) == TopologyFormat::kNone) {
    return load_cluster(file);
  }
  return parse_cluster(cluster_file(joined({read_topology(file)}), machine, 0), file);
}

}  // namespace foreshard
