// What no machine is: figures of a cluster file outside what hardware of this decade can have, or
// at odds with each other.
#pragma once

#include "sim/base/config.h"
#include "sim/spec/cluster.h"

namespace foreshard {

// Throws ConfigError at the figure of `root` (a cluster file, figures plain or {value, source})
// that cannot be. `cluster` is the file as read; `catalogue` the machine it names, as it is without
// the file, or nullptr.
void check_physics(const ConfigNode& root, const Cluster& cluster, const Cluster* catalogue);

}  // namespace foreshard
