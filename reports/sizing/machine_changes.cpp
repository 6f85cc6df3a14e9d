// The graph of a step does not depend on the machine's rates, so the step is priced anew and not
// built anew; what it allocates stays.
#include "reports/sizing/machine_changes.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "sim/memory/capacity.h"
#include "sim/memory/outside_allocator.h"
#include "sim/simulate/cost_choices.h"
#include "sim/simulate/simulate.h"
#include "sim/spec/network/cluster_layout.h"
#include "sim/spec/network/routes.h"

namespace foreshard {
namespace {

BytesPerSecond times(BytesPerSecond rate, double factor) { return BytesPerSecond(rate.value() * factor); }

// Of every kind of node there is.
void nodes(Cluster& c, auto change) { c = with_nodes(std::move(c), change); }

void links(Cluster& c, double factor) {
  c = with_links(
      std::move(c), [&](SwitchLink& link) { link.rate = times(link.rate, factor); });
}

// A rate of the nodes, times a factor.
template <auto rate>
void scale(Cluster& c, double factor) {
  nodes(
      c, [&](NodeKind& n) { n.*rate = times(n.*rate, factor); });
}

bool always(const Cluster&) { return true; }
bool has_network(const Cluster& c) { return c.nodes() > 1; }
bool has_rails(const Cluster& c) { return has_network(c) && c.node.nics > 1; }
bool has_spine(const Cluster& c) { return has_network(c) && !c.layout; }
bool is_tapered(const Cluster& c) { return has_spine(c) && c.network.oversubscription > 1; }
bool has_links(const Cluster& c) { return c.layout && !c.layout->links.empty(); }

}

const std::vector<MachineChange>& machine_changes() {
  static const std::vector<MachineChange> kChanges = {
      {"node.nic_rate", "x2", has_network, [](Cluster& c) { scale<&NodeKind::nic_rate>(c, 2); }},
      {"node.nic_rate", "x0.5", has_network, [](Cluster& c) { scale<&NodeKind::nic_rate>(c, 0.5); }},
      {"node.nics", "twice the rails", has_network, [](Cluster& c) { nodes(c, [](NodeKind& n) { n.nics *= 2; }); }},
      {"node.nics", "half the rails", has_rails,
          [](Cluster& c) { nodes(c, [](NodeKind& n) { n.nics = std::max<std::int64_t>(1, n.nics / 2); }); }},
      {"network.oversubscription", "none", is_tapered, [](Cluster& c) { c.network.oversubscription = 1; }},
      {"network.oversubscription", "x2", has_spine, [](Cluster& c) { c.network.oversubscription *= 2; }},
      {"network.oversubscription", "x4", has_spine, [](Cluster& c) { c.network.oversubscription *= 4; }},
      {"links.rate", "x2", has_links, [](Cluster& c) { links(c, 2); }},
      {"links.rate", "x0.5", has_links, [](Cluster& c) { links(c, 0.5); }},
      {"node.gpu_link", "x2", always, [](Cluster& c) { scale<&NodeKind::gpu_link>(c, 2); }},
      {"node.gpu_link", "x0.5", always, [](Cluster& c) { scale<&NodeKind::gpu_link>(c, 0.5); }},
      {"gpu.memory", "x2", always, [](Cluster& c) { c.gpu.memory = c.gpu.memory * 2; }},
      {"gpu.memory", "x1.5", always, [](Cluster& c) { c.gpu.memory = c.gpu.memory * 3 / 2; }},
      {"gpu.memory", "x0.75", always, [](Cluster& c) { c.gpu.memory = c.gpu.memory * 3 / 4; }},
      {"gpu.memory_bandwidth", "x1.5", always,
          [](Cluster& c) { c.gpu.memory_bandwidth = times(c.gpu.memory_bandwidth, 1.5); }},
      {"gpu.peak_bf16", "x1.25", always,
          [](Cluster& c) { c.gpu.peak_bf16 = FlopsPerSecond(c.gpu.peak_bf16.value() * 1.25); }},
  };
  return kChanges;
}

CostModel changed_costs(const MachineChange& change, const CostModel& costs, const Plan& plan) {
  Cluster cluster = costs.cluster();
  change.apply(cluster);
  cluster = with_routes(std::move(cluster));
  return {cluster, costs.calibration(), cost_choices(plan)};
}

Json changes_json(const Forecast& made, const CostModel& costs) {
  Json list = Json::array();
  for (const MachineChange& change : machine_changes()) {
    if (!change.matters(costs.cluster())) continue;
    const CostModel other = changed_costs(change, costs, made.plan);
    CostTable table = other.price(made.graph);
    table.delays = made.costs.delays;
    const Fit fit = fit_in(other.cluster(), made.memory.peak, made.reserved.peak,
        total(memory_outside(made.graph, other.cluster(), made.plan.runtime)));
    list.push_back({{"property", change.property}, {"change", change.change},
        {"seconds", Simulator().period(made.graph, table).seconds()}, {"fits", fit.fits()},
        {"margin_bytes", fit.margin().count()}});
  }
  return list;
}

}
