// The long form of a cluster file: nodes, switches and links as they are.
//
//     machine: h100-sxm
//     nodes:                                   # in the order of their ranks
//       - {names: "a[1-5]", leaf: leaf1}
//       - {count: 3, leaf: leaf2, degraded: [{nic: 3, fraction: 0}]}
//       - {count: 2, machine: h100-pcie, node: {nics: 2}, leaf: [rail0, rail1]}
//     switches: [leaf1, leaf2, rail0, rail1, {name: spine, latency: 300ns}]
//     links:
//       - {between: [leaf1, spine], rate: 1.6Tbit/s, latency: 500ns}
//     ranks: ["a[1-5]", n5]                    # where they sit; other nodes stay idle
//     background: {leaf1-spine: [0.1, 0.5]}    # what other jobs use, 90 % of the time
//
// `leaf` is the switch of all ports, or a list: port i hangs on its i-th. Without switches the
// nodes hang on the leaves of `network:`, nodes_per_leaf after nodes_per_leaf. One share in
// background: is an average, from half of it to half as much again.
#pragma once

#include <functional>

#include "sim/base/config.h"
#include "sim/spec/cluster.h"

namespace foreshard {

// GPU and node of one group: the file's own with the figures that the group has.
using KindReader = std::function<Cluster(const ConfigNode& group)>;

// An element of degraded: but for its node: {nic: 2, fraction: 0}, {gpu: 5, fraction: 0.5}.
DegradedLink read_degraded_link(const ConfigNode& element, const NodeKind& node);

// Sets layout, degraded, gpus and node_count, and the gpu and node that set the pace. `cluster`:
// what the file says of its usual nodes. Throws ConfigError.
void read_layout(const ConfigNode& root, const KindReader& read_kind, Cluster& cluster);

}
