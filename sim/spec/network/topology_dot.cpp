#include <fmt/format.h>

#include <algorithm>
#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/graphviz.hpp>
#include <cstddef>
#include <sstream>

#include "sim/base/unit_strings.h"
#include "sim/spec/network/topology.h"

namespace foreshard {
namespace {

struct Edge {
  std::size_t wire = 0;
};
using Graph = boost::adjacency_list<boost::vecS, boost::vecS, boost::undirectedS, boost::no_property, Edge>;

// From a third of the colour circle (green) down to 0 (red), as Graphviz reads HSV.
std::string colour_of(double used) {
  if (used <= 0) return "gray";
  return fmt::format("{:.3f} 1 0.8", (1 - std::min(1.0, used)) / 3);
}

}

std::string to_dot(const Topology& topology, std::span<const float> used) {
  Graph graph(topology.devices.size());
  for (std::size_t i = 0; i < topology.wires.size(); ++i) {
    const Wire& wire = topology.wires[i];
    boost::add_edge(at(wire.a), at(wire.b), Edge{i}, graph);
  }
  const auto name_vertex = [&](std::ostream& out, std::size_t v) {
    const DeviceKind kind = topology.devices[v].kind;
    const char* shape = kind == DeviceKind::kGpu ? "box" : kind == DeviceKind::kNic ? "ellipse" : "hexagon";
    out << fmt::format("[label=\"{}\" shape={}]", device_name(topology, static_cast<std::int64_t>(v)), shape);
  };
  const auto name_edge = [&](std::ostream& out, const auto& edge) {
    const std::size_t i = graph[edge].wire;
    const Wire& wire = topology.wires[i];
    std::string more;
    if (!used.empty()) {
      const double share = std::max(used[2 * i], used[2 * i + 1]);
      more = fmt::format(" color=\"{}\" penwidth={:.1f} tooltip=\"{:.0f} % used\"", colour_of(share),
          1 + 3 * std::min(1.0, share), 100 * share);
    }
    out << fmt::format("[label=\"{}, {}\"{}]", format_bandwidth(wire.rate), format_time(wire.latency), more);
  };
  std::ostringstream out;
  boost::write_graphviz(out, graph, name_vertex, name_edge);
  return out.str();
}

}
