// The machine catalogue (calibration/machines/*.yaml, built into the program) and cluster specs.
//
// A spec is `64xh100` (GPUs in the catalogue's usual nodes and network), `8xp5.48xlarge` (instances
// of a cloud), either as calibration/clusters/cluster_names.h reads it, or the path of a cluster
// file: `gpus` and either `machine` (a catalogue key) with any figure overridden, or every figure:
//
//     gpus: 64
//     machine: h100-sxm
//     node: {nics: 4, nic_rate: 200Gbit/s}     # or {value: 200Gbit/s, source: "..."}
//     network: {oversubscription: 2}
//     memory_outside_allocator: 2GiB
//
// A figure without a source of its own gets the place in the file as its source.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/spec/cluster.h"

namespace foreshard {

inline constexpr std::int64_t kMaxGpus = 1'048'576;

struct Machine {
  std::string key;                   // "h100-sxm"
  std::vector<std::string> aliases;  // "h100"
  Cluster node;                      // one full node
};

// The catalogue, by key. Throws ConfigError if a catalogue file is wrong.
std::vector<Machine> list_machines();

// Every word that a cluster's name may hold: keys, aliases, instance types.
std::vector<std::string> cluster_words();

// The machine that a name without a count means, `node` being one node of it; of an instance type
// with the cloud's network.
std::optional<Machine> machine_named(std::string_view text);

// Whether the spec is a path, which lies at `seen`: it has a slash, ends in .yaml or .yml, or names
// no cluster and is there.
bool is_cluster_file(std::string_view spec, const std::filesystem::path& seen);

// Throws ConfigError where a file is wrong, Error(kInvalidInput) where the spec is: unknown key
// (with the nearest ones), count not in 1..kMaxGpus, or larger than a node and not whole
// nodes.
Cluster load_cluster(std::string_view spec);

// The same for the text of a cluster file; `file_name` is what errors call it.
Cluster parse_cluster(std::string_view yaml, std::string_view file_name);

}
