// Gaps of the compute stream are put down to one collective each (attribution.h), so that exposed
// times of all axes add up to what the waterfall says.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "reports/view/attribution.h"
#include "reports/view/views.h"
#include "sim/base/error.h"

namespace foreshard {
namespace {

std::int64_t nodes_of(const Cluster& cluster, const GroupShape& group) {
  if (group.size > cluster.gpus) return 0;
  try {
    return group_link(cluster, group).nodes;
  } catch (const Error& error) {
    if (error.exit_code() != ExitCode::kInvalidInput) throw;
    return 0;
  }
}

}

std::vector<AxisCost> axis_costs(const Forecast& forecast, const Cluster& cluster) {
  const EventGraph& graph = forecast.graph;
  std::vector<Time> exposed(graph.rows.size());
  for (const Gap& gap : compute_gaps(graph, forecast.timeline)) {
    if (gap.collective == kNoEvent) continue;
    exposed[at(gap.collective)] += gap.end - gap.begin;
  }
  std::vector<AxisCost> costs;
  for (std::size_t i = 0; i < graph.rows.size(); ++i) {
    const Work& work = graph.works[graph.rows[i].work];
    if (!is_collective(work.kind) || work.communicator == kNoCommunicator) continue;
    const Communicator& communicator = graph.communicators[work.communicator];
    auto cost = std::ranges::find_if(costs,
        [&](const AxisCost& known) { return known.name == communicator.name && known.group == communicator.group; });
    if (cost == costs.end()) {
      cost = costs.insert(cost,
          {communicator.name, communicator.group, nodes_of(cluster, communicator.group), 0, Bytes(), Time(), Time()});
    }
    const Span& span = forecast.timeline.spans[i];
    ++cost->rows;
    cost->bytes += work.bytes;
    cost->busy += span.end - span.arrive;
    cost->exposed += exposed[i];
  }
  return costs;
}

std::string wire_words(const AxisCost& cost) {
  if (cost.nodes == 0) return "";
  return cost.nodes == 1 ? "inside a node" : fmt::format("{} nodes", cost.nodes);
}

Json to_json(const std::vector<AxisCost>& costs) {
  return json_list(
      costs,
      [&](const AxisCost& cost) -> Json {
        return {{"communicator", cost.name}, {"size", cost.group.size}, {"stride", cost.group.stride},
            {"nodes", cost.nodes}, {"rows", cost.rows}, {"bytes", cost.bytes.count()}, {"busy_s", cost.busy.seconds()},
            {"exposed_s", cost.exposed.seconds()}, {"hidden_s", cost.hidden().seconds()}};
      });
}

}
