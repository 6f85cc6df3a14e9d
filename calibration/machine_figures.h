// The figures of a machine as its catalogue entry or a cluster file gives them: gpu, node, network
// and memory_outside_allocator (calibration/README.md has the keys and their units).
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sim/base/config.h"
#include "sim/base/json.h"
#include "sim/spec/cluster.h"

namespace foreshard {

// What to do where a figure is not there: keep what `cluster` holds, of all or of the server (node and network) alone.
enum class MissingFigures : std::uint8_t { kError, kKeepServer, kKeep };

// All figures of `root` over what `cluster` already holds, each with its source. Throws ConfigError.
void read_figures(const ConfigNode& root, MissingFigures missing, Cluster& cluster);

// What no machine is: figures of a cluster file outside what hardware of this decade can have, or at odds with each
// other. Throws ConfigError at the figure of `root` (a cluster file, figures plain or {value, source}) that cannot be.
// `cluster` is the file as read; `catalogue` the machine it names, as it is without the file, or nullptr.
void check_physics(const ConfigNode& root, const Cluster& cluster, const Cluster* catalogue);

// The one text for each part that Gpu, NodeKind and Network carry, of the sources of its figures.
void join_sources(Cluster& cluster);

// A figure as it is told.
struct ShownFigure {
  std::string path;      // "gpu.memory"
  std::string json_key;  // "memory_bytes": in the mapping of its part
  std::string text;      // "79.1 GiB"
  Json value;
};
std::vector<ShownFigure> shown_figures(const Cluster& cluster);

// The figures into the JSON Schema of cluster files (cli/schemas/cluster.txt), which has
// the rest.
void add_figures(Json& schema);

}
