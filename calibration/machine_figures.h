// The figures of a machine as its catalogue entry or a cluster file gives them: gpu, node, network
// and memory_outside_allocator (calibration/README.md has the keys and their units).
#pragma once

#include <cstdint>

#include "sim/base/config.h"
#include "sim/spec/cluster.h"

namespace foreshard {

// What to do where a figure is not there: keep what `cluster` holds.
enum class MissingFigures : std::uint8_t { kError, kKeep };

// All figures of `root` over what `cluster` already holds, each with its source. Throws
// ConfigError.
void read_figures(const ConfigNode& root, MissingFigures missing, Cluster& cluster);

// The one text for each part that Gpu, NodeKind and Network carry, of the sources of its figures.
void join_sources(Cluster& cluster);

}  // namespace foreshard
