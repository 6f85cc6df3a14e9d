// Clusters as people write them: 64xH100, h100x64, 64 h100, 8 nodes of p5.48xlarge.
//
// A count and a name, in either order, in any letter case, with or without an x, "of", a vendor's
// name and what is counted (GPUs, nodes). The name is a machine of the catalogue, of which GPUs are
// counted, or a cloud's instance type (calibration/machines/instances.csv), of which instances are.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/units.h"

namespace foreshard {

// What a cloud sells as one machine: GPUs of the catalogue behind a network of the cloud's own.
struct Instance {
  std::string name;               // "p5.48xlarge"
  std::vector<std::string> also;  // "p5"
  std::string machine;            // key of the catalogue
  std::int64_t gpus = 0;
  std::int64_t nics = 0;
  BytesPerSecond nic_rate;  // of each, one direction
  std::string nic_name;
  std::string source;
};

// Throws ConfigError where the table is wrong.
std::vector<Instance> list_instances();

struct ClusterName {
  std::string name;                   // a word of `machines`, or an instance's name
  std::optional<Instance> instance;   // where it is one
  std::optional<std::int64_t> count;  // none: the name alone
  bool counts_nodes = false;          // else GPUs
};

// `machines`: every word that names a machine of the catalogue. nullopt: no such name in it. A
// count is at least 1 and at most `most`; what is beyond is given as most + 1.
std::optional<ClusterName> read_cluster_name(
    std::string_view text, std::span<const std::string> machines, std::int64_t most);

}
