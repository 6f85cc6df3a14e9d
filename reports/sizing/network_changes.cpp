// Where only prices change, the graph of the step is priced anew (reports/sizing/machine_changes.h). Without some nodes
// the mesh is another and the step is built anew.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "calibration/profile_store.h"
#include "reports/sizing/machine_changes.h"
#include "sim/base/unit_strings.h"
#include "sim/simulate/cost_choices.h"
#include "sim/simulate/simulate.h"
#include "sim/spec/checks/plan_check.h"
#include "sim/spec/network/cluster_layout.h"
#include "sim/spec/network/routes.h"

namespace foreshard {
namespace {

class Changes {
 public:
  Changes(const Forecast& made, const CostModel& costs)
      : made_(made), costs_(costs), routes_(*costs.cluster().routes) {}

  std::vector<NetworkChange> list() {
    const double now = seconds_on(costs_.cluster(), made_.graph);
    add("", now);
    try_wires();
    try_repairs();
    try_rail();
    try_placements();
    try_move();
    try_leaving_out();
    std::erase_if(
        found_,
        [&](const NetworkChange& change) {
          return !change.what.empty() && change.tokens_per_s < found_.front().tokens_per_s * kWorthIt &&
                 !change.what.starts_with("without ");
        });
    std::stable_sort(found_.begin() + 1, found_.end(),
        [](const NetworkChange& a, const NetworkChange& b) { return a.tokens_per_s > b.tokens_per_s; });
    return std::move(found_);
  }

 private:
  static constexpr double kWorthIt = 1.001;

  void add(std::string what, double seconds) { add(std::move(what), seconds, made_.plan.mesh); }
  void add(std::string what, double seconds, const Mesh& mesh) {
    const auto& batch = made_.plan.batch;
    const double tokens = as_double(mesh.data_parallel()) * as_double(batch.sequence) * as_double(batch.micro_batch) *
                          as_double(batch.accumulation);
    found_.push_back({std::move(what), seconds, mesh.world(), tokens / seconds});
  }

  double seconds_on(const Cluster& cluster, const EventGraph& graph) const {
    const CostModel costs(cluster, costs_.calibration(), cost_choices(made_.plan));
    CostTable table = costs.price(graph);
    table.delays = made_.costs.delays;
    return Simulator().period(graph, table).seconds();
  }

  void try_cluster(const std::string& what, const Cluster& cluster) { add(what, seconds_on(cluster, made_.graph)); }

  // The narrowest wire of every communicator that is a link between switches.
  void try_wires() {
    std::set<std::int32_t> wires;
    for (const Communicator& communicator : made_.graph.communicators) {
      if (communicator.group.size < 2) continue;
      const AxisRoute& axis = routes_.axis(communicator.group);
      const std::int32_t wire = axis.groups[axis.slowest_group].narrowest_network.wire;
      if (wire >= 0) wires.insert(wire);
    }
    const Topology& topology = routes_.topology();
    for (const std::int32_t wire : wires) {
      const Wire& w = topology.wires[at(wire)];
      if (w.a < topology.first_switch || w.b < topology.first_switch) continue;
      const std::int32_t a = w.a - topology.first_switch;
      const std::int32_t b = w.b - topology.first_switch;
      const Cluster wider = with_links(costs_.cluster(), [&](SwitchLink& link) {
        if (link.a == a && link.b == b) link.rate = BytesPerSecond(link.rate.value() * 2);
      });
      try_cluster(wire_name(topology, wire) + " twice as wide", wider);
    }
    const Cluster all =
        with_links(costs_.cluster(), [](SwitchLink& link) { link.rate = BytesPerSecond(link.rate.value() * 2); });
    try_cluster("all links between switches twice as wide", all);
    const bool is_shared =
        std::ranges::any_of(topology.layout.links, [](const SwitchLink& link) { return link.background > 0; });
    if (!is_shared) return;
    try_cluster("links to ourselves", with_links(costs_.cluster(), [](SwitchLink& link) { link.background = 0; }));
  }

  void try_repairs() {
    if (costs_.cluster().degraded.empty()) return;
    Cluster whole = costs_.cluster();
    whole.degraded.clear();
    try_cluster("degraded and missing links repaired", with_routes(std::move(whole)));
  }

  void try_rail() {
    if (costs_.cluster().nodes() < 2) return;
    Cluster twice = costs_.cluster();
    for (DegradedLink& link : twice.degraded)
      if (link.part == DegradedLink::Part::kNic) link.index *= 2;  // its twin is whole
    try_cluster("twice the rails", with_nodes(std::move(twice), [](NodeKind& n) { n.nics *= 2; }));
  }

  void try_placements() {
    for (std::size_t p = 0; p < kPlacements; ++p) {
      const auto placement = static_cast<RankPlacement>(p);
      if (placement == made_.plan.placement) continue;
      EventGraph graph = made_.graph;
      for (Communicator& c : graph.communicators) c.group.placement = placement;
      add(fmt::format("placement: {}", to_string(placement)), seconds_on(costs_.cluster(), graph));
    }
  }

  // A node of the switch with the fewest to that with the most.
  void try_move() {
    const std::shared_ptr<const ClusterLayout>& layout = costs_.cluster().layout;
    if (!layout) return;
    std::map<std::vector<std::int32_t>, std::int64_t> nodes;
    for (const NodeGroup& group : layout->groups) nodes[group.leaves] += group.count;
    if (nodes.size() < 2) return;
    const auto by_count = [](const auto& a, const auto& b) { return a.second < b.second; };
    const auto fewest = std::ranges::min_element(nodes, by_count);
    const auto most = std::ranges::max_element(nodes, by_count);
    if (fewest->first == most->first) return;
    ClusterLayout moved = *layout;
    for (std::size_t g = 0; g < moved.groups.size(); ++g) {
      NodeGroup& group = moved.groups[g];
      if (group.leaves != fewest->first) continue;
      NodeGroup one = group;
      one.count = 1;
      if (!one.names.empty()) one.names.resize(1);
      one.leaves = most->first;
      if (--group.count == 0) {
        group = one;
      } else {
        if (!group.names.empty()) group.names.erase(group.names.begin());
        group.first_in_domain += 1;
        moved.groups.insert(moved.groups.begin() + g, one);
      }
      const std::string name = one.names.empty() ? "a node" : one.names.front();
      const auto to = at(most->first.front());
      Cluster cluster = costs_.cluster();
      const std::string leaf = moved.switches[to].name;
      cluster.layout = std::make_shared<const ClusterLayout>(std::move(moved));
      try_cluster(
          fmt::format("{} moved to {}", name, leaf.empty() ? "the other leaf" : leaf), with_routes(std::move(cluster)));
      return;
    }
  }

  // Without the nodes that may hold the others back: those whose GPU sets the pace or whose memory
  // is the least, those with degraded links, those of the switch with the fewest.
  void try_leaving_out() {
    const Topology& topology = routes_.topology();
    const Cluster& cluster = costs_.cluster();
    std::map<std::vector<std::int32_t>, std::int64_t> by_leaves;
    for (const NodeGroup& group : topology.layout.groups) by_leaves[group.leaves] += group.count;
    const auto [fewest, most] = std::minmax_element(
        by_leaves.begin(), by_leaves.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
    std::set<std::int64_t> degraded;
    for (const DegradedLink& link : cluster.degraded) degraded.insert(link.node);
    std::vector<std::int64_t> slow;
    std::vector<std::int64_t> small;
    std::vector<std::int64_t> few;
    std::int64_t node = 0;
    for (const NodeGroup& group : topology.layout.groups) {
      for (std::int64_t i = 0; i < group.count; ++i, ++node) {
        if (group.gpu.key == cluster.gpu.key) slow.push_back(node);
        if (group.gpu.memory <= cluster.gpu.memory) small.push_back(node);
        if (group.leaves == fewest->first) few.push_back(node);
      }
    }
    leave_out("of " + cluster.gpu.key, slow);
    leave_out("with the least memory", small);
    leave_out("with degraded links", {degraded.begin(), degraded.end()});
    if (fewest->second == most->second || fewest->first.empty()) return;
    leave_out("of " + device_name(topology, topology.first_switch + fewest->first.front()), few);
  }

  // The shard group stays where it divides the ranks that are left, else all of them are one.
  void leave_out(const std::string& which, const std::vector<std::int64_t>& left_out) {
    std::vector<std::int64_t> kept;
    for (std::int64_t node = 0; node < costs_.cluster().nodes(); ++node)
      if (!std::ranges::binary_search(left_out, node)) kept.push_back(node);
    if (left_out.empty() || kept.empty() || !tried_.insert(kept).second) return;
    const Cluster rest = on_nodes(costs_.cluster(), kept);
    Plan plan = made_.plan;
    Mesh& mesh = plan.mesh;
    const std::int64_t inner = mesh.sharing();
    if (rest.gpus % inner != 0) return;
    const std::int64_t ranks = rest.gpus / inner;
    if (mesh.replicate == 1 || ranks % mesh.shard != 0) mesh.shard = ranks;
    mesh.replicate = ranks / mesh.shard;
    if (find_problem(plan, made_.model, rest)) return;
    const bool is_same_gpu = rest.gpu.key == costs_.cluster().gpu.key;
    const CostModel costs(rest, is_same_gpu ? costs_.calibration() : load_profile(rest.gpu.key), cost_choices(plan));
    const Forecast without = forecast(made_.model, plan, costs);
    add(fmt::format("without the {} {} {}", left_out.size(), left_out.size() == 1 ? "node" : "nodes", which),
        without.timeline.period.seconds(), mesh);
  }

  const Forecast& made_;
  const CostModel& costs_;
  const Routes& routes_;
  std::vector<NetworkChange> found_;
  std::set<std::vector<std::int64_t>> tried_;  // nodes that were kept
};

}

std::vector<NetworkChange> network_changes(const Forecast& forecast, const CostModel& costs) {
  if (!costs.cluster().routes) return {};
  return Changes(forecast, costs).list();
}

Json to_json(const std::vector<NetworkChange>& changes) {
  Json list = Json::array();
  for (const NetworkChange& change : changes) {
    if (change.what.empty()) continue;
    list.push_back({{"change", change.what}, {"step_s", change.seconds}, {"gpus", change.gpus},
        {"tokens_per_s", change.tokens_per_s}});
  }
  return list;
}

std::vector<std::string> network_change_lines(const std::vector<NetworkChange>& changes) {
  std::vector<std::string> lines;
  for (const NetworkChange& change : changes) {
    if (change.what.empty()) continue;
    const double gain = change.tokens_per_s / changes.front().tokens_per_s - 1;
    lines.push_back(fmt::format("{}: {} a step on {} GPUs, {:+.1f} % tokens/s", change.what,
        format_time(Time::seconds(change.seconds)), change.gpus, 100 * gain));
  }
  return lines;
}

}
