// Shortest paths between switches, for the router alone.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sim/base/integers.h"
#include "sim/spec/network/topology.h"

namespace foreshard {

// The network's switches: shortest paths between two of them.
class SwitchPaths {
 public:
  struct Step {
    std::uint32_t end = 0;  // wire and direction
    double share = 0;
  };
  struct Route {
    std::vector<Step> steps;
    double latency = 0;  // ns
  };

  explicit SwitchPaths(const Topology& topology) : topology_(topology), hops_(topology.layout.switches.size()) {
    const auto count = topology.layout.switches.size();
    std::vector<std::int32_t> degree(count + 1, 0);
    const auto each_link = [&](auto&& visit) {
      const auto first = static_cast<std::int32_t>(topology.wires.size() - links());
      for (std::size_t i = 0; i < links(); ++i) {
        const SwitchLink& link = topology.layout.links[i];
        visit(link.a, link.b, static_cast<std::uint32_t>(2 * (at(first) + i)));
        visit(link.b, link.a, static_cast<std::uint32_t>(2 * (at(first) + i) + 1));
      }
    };
    each_link([&](std::int32_t a, std::int32_t, std::uint32_t) { ++degree[at(a) + 1]; });
    for (std::size_t i = 0; i < count; ++i) degree[i + 1] += degree[i];
    begin_ = degree;
    neighbours_.resize(2 * links());
    each_link([&](std::int32_t a, std::int32_t b, std::uint32_t end) { neighbours_[at(degree[at(a)]++)] = {b, end}; });
  }

  const Route& between(std::int32_t from, std::int32_t to) {
    const std::uint64_t key = static_cast<std::uint64_t>(from) << 32 | static_cast<std::uint32_t>(to);
    const auto found = routes_.find(key);
    if (found != routes_.end()) return found->second;
    return routes_.emplace(key, make(from, to)).first->second;
  }

 private:
  struct Neighbour {
    std::int32_t device = 0;
    std::uint32_t end = 0;
  };
  static constexpr std::uint8_t kFar = 255;

  std::size_t links() const { return topology_.layout.links.size(); }

  std::span<const Neighbour> next(std::int32_t device) const {
    return std::span(neighbours_).subspan(at(begin_[at(device)]), at(begin_[at(device) + 1] - begin_[at(device)]));
  }

  // Hops to `to` from everywhere.
  const std::vector<std::uint8_t>& hops_to(std::int32_t to) {
    std::vector<std::uint8_t>& hops = hops_[at(to)];
    if (!hops.empty()) return hops;
    hops.assign(hops_.size(), kFar);
    hops[at(to)] = 0;
    std::vector<std::int32_t> queue{to};
    for (std::size_t head = 0; head < queue.size(); ++head) {
      const std::uint8_t here = hops[at(queue[head])];
      if (here + 1 >= kFar) break;
      for (const Neighbour& n : next(queue[head])) {
        if (hops[at(n.device)] != kFar) continue;
        hops[at(n.device)] = static_cast<std::uint8_t>(here + 1);
        queue.push_back(n.device);
      }
    }
    return hops;
  }

  Route make(std::int32_t from, std::int32_t to) {
    const std::vector<std::uint8_t>& hops = hops_to(to);
    if (hops[at(from)] == kFar) {
      throw invalid_input("no links lead from {} to {}", device_name(topology_, topology_.first_switch + from),
          device_name(topology_, topology_.first_switch + to));
    }
    Route route;
    std::map<std::int32_t, double> front{{from, 1.0}};
    for (int left = hops[at(from)]; left > 0; --left) {
      std::map<std::int32_t, double> reached;
      for (const auto& [device, share] : front) {
        double rate = 0;
        const auto nearer = [&](const Neighbour& n) { return hops[at(n.device)] == left - 1; };
        for (const Neighbour& n : next(device))
          if (nearer(n)) rate += rate_of(n.end);
        for (const Neighbour& n : next(device)) {
          if (!nearer(n)) continue;
          const double part = rate > 0 ? share * rate_of(n.end) / rate : share;
          route.steps.push_back({n.end, part});
          route.latency += part * as_double(topology_.wires[n.end / 2].latency.nanoseconds());
          reached[n.device] += part;
        }
      }
      front = std::move(reached);
    }
    return route;
  }

  double rate_of(std::uint32_t end) const { return topology_.wires[end / 2].rate.value(); }

  const Topology& topology_;
  std::vector<std::int32_t> begin_;
  std::vector<Neighbour> neighbours_;
  std::vector<std::vector<std::uint8_t>> hops_;
  std::unordered_map<std::uint64_t, Route> routes_;
};

}
