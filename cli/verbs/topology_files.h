// Files in which other tools tell of machines and networks.
#pragma once

#include <string>

#include "interop/network/topology_import.h"
#include "sim/spec/cluster.h"

namespace foreshard {

// Throws ConfigError where the file is of no known form.
TopologyImport read_topology(const std::string& file);

// A cluster file, or the cluster of such a file with the machine named beside it ("": as it says).
Cluster cluster_of_file(const std::string& file, const std::string& machine);

}  // namespace foreshard
