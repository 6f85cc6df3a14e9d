// The views of a forecast that a user sees: text, waterfall, differences, trace, table.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "reports/report.h"
#include "reports/sizing/search_advice.h"
#include "sim/base/json.h"
#include "sim/graph/event_graph.h"
#include "sim/search/search.h"
#include "sim/simulate/forecast.h"
#include "sim/spec/cluster.h"
#include "sim/spec/plan_translate.h"

namespace foreshard {

// At most 40 lines, unless warnings take more: the plan in one line, step, memory, where time and
// memory go, assumptions, warnings.
std::string to_text(const Report& report, const Forecast& forecast, Color color);

// One bar of the waterfall; the seconds of all bars add up to the step exactly (in ns).
struct WaterfallBar {
  std::string what;  // "forward", "backward", "exposed all_gather (backward)", "host", "optimizer" ...
  Time time;
};
std::vector<WaterfallBar> waterfall(const EventGraph& graph, const Timeline& timeline);

// Why an event started when it did: the chain of binding predecessors back to the step's begin.
enum class Cause : std::uint8_t { kStepBegin, kHost, kStream, kWait, kCommunicator };
struct ChainLink {
  EventId event = kNoEvent;
  Cause cause = Cause::kStepBegin;  // what bound its start
};
std::vector<ChainLink> cause_chain(const EventGraph& graph, const Timeline& timeline, EventId event);

std::string event_name(const Forecast& forecast,
    EventId event);  // "all_gather layers.3 (backward)"

// The waterfall, the most exposed collectives with their chains, who is alive at the memory peak.
std::string explain_text(const Forecast& forecast, const Report& report, Color color);
Json explain_json(const Forecast& forecast, const Report& report);

// Two plans side by side: what differs in the plan, in time by waterfall bar, in memory by category.
std::string compare_text(const Forecast& a, const Report& ra, const Forecast& b, const Report& rb, Color color);
Json compare_json(const Forecast& a, const Report& ra, const Forecast& b, const Report& rb);

// Chrome trace for Perfetto: one thread per stream and the host, memory counters by category, flows for waits.
std::string chrome_trace(const Forecast& forecast);
// Two timelines of one step, a process each, their steps beginning at the same moment.
std::string chrome_trace(const Forecast& predicted, const Forecast& measured);

// DESIGN section 11: id,kind,unit,unit_name,microbatch,stream,communicator,bytes,flops,issue_s,start_s,arrive_s,end_s
std::string schedule_csv(const EventGraph& graph, const Timeline& timeline);

// A search and what its answer is told with.
struct SearchStory {
  const SearchResult& result;
  const ModelSpec& model;
  const Cluster& cluster;
  const Plan& base;  // around which was searched
  double seconds = 0;
  double confidence = kConfidence;
  std::vector<Alternative> alternatives = {};
  std::optional<Report> riskier = {};
  std::vector<PipelineStep> pipelines = {};
};
// Best plan with its odds, what is riskier, heatmap shard group x prefetch, Pareto, why it won in
// numbers. `best`: its forecast and report; null where nothing holds.
std::string search_text(const SearchStory& story, const Forecast* best, const Report* best_report, Color color);
Json prefetch_json(const Prefetch& prefetch);
Json search_json(const SearchStory& story, const std::vector<Report>& pareto_reports, const Report* best_report);

// What each communicator of a step costs: an axis of the mesh, or several that share one.
struct AxisCost {
  std::string name;  // of the communicator: "shard", "tp", "ep"
  GroupShape group;
  std::int64_t nodes = 0;  // that a group spans (domains of NVLink where those join nodes); 0: the
                           // group is none of the cluster's
  int rows = 0;
  Bytes bytes;   // whole unsharded buffers, as of a row
  Time busy;     // sum of [arrive, end]
  Time exposed;  // of it, in gaps of the compute stream that are put down to it
  Time hidden() const { return busy - exposed; }
};

// In the order of their first rows. Empty where a step has no collectives.
std::vector<AxisCost> axis_costs(const Forecast& forecast, const Cluster& cluster);

// "inside a node", "4 nodes"
std::string wire_words(const AxisCost& cost);
Json to_json(const std::vector<AxisCost>& costs);

// One job under several runtimes, side by side: time, memory, what travels, which events differ and
// what that costs, and what became of the plan.
struct RuntimeForecast {
  std::string name;  // "zero3@0.19"
  Forecast forecast;
  Report report;
  std::vector<LedgerEntry> ledger;  // against the first of the list
  std::string refused;              // why there is no forecast; "": there is one
};

// Bytes that each rank sends in a step, by collective: of a buffer of B bytes over n ranks
// B (n-1)/n, all-reduces twice that (ring algorithms; NCCL tests' bus bandwidth counts the same).
struct WireBytes {
  std::string collective;  // "all_gather"
  std::int64_t calls = 0;
  double bytes = 0;
};
std::vector<WireBytes> wire_bytes(const EventGraph& graph);

// At least one. The first is what the others are held against.
std::string runtimes_text(const std::vector<RuntimeForecast>& forecasts, Color color);
Json runtimes_json(const std::vector<RuntimeForecast>& forecasts);

// What the cluster's graph gives the communicators of a plan, and which wire binds each.

// Communicators that a cluster is looked at with before there is a plan: all ranks, the ranks of a
// node, and one rank of every node.
std::vector<Communicator> usual_communicators(const Cluster& cluster);

// {communicators: [{name, size, stride, placement, nodes, ranks_per_node, link_bytes_per_s,
// network_bytes_per_s, tree_bytes_per_s, hop_s, narrowest: {from, to, bytes_per_s, used}}],
//  nodes: [{name, gpus, machine, ports, leaves}],
//  links: [{from, to, bytes_per_s, latency_s, background, used}]}: the links between switches and
// the ports that bind, `used` by the busiest communicator, by falling share.
Json network_json(const Cluster& cluster, const std::vector<Communicator>& communicators);

// A line for every communicator: its bandwidths and its narrowest wire.
std::vector<std::string> network_lines(const Cluster& cluster, const std::vector<Communicator>& communicators);

// The graph for Graphviz, its wires coloured by the load of the first communicator.
std::string network_dot(const Cluster& cluster, const std::vector<Communicator>& communicators);

}
