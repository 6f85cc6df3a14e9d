// The graph of a cluster for Graphviz.
#pragma once

#include <span>
#include <string>

#include "sim/spec/network/topology.h"

namespace foreshard {

// One undirected graph without sub-graphs; rates and latencies as edge labels. `used`
// (AxisRoute::used) colours a wire by the share of it that is used in the busier direction: grey
// for none, then green to red; empty: no colours.
std::string to_dot(const Topology& topology, std::span<const float> used = {});

}  // namespace foreshard
