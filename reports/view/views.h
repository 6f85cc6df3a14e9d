// The views of a forecast that a user sees: text, waterfall, differences, trace, table.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "reports/report.h"
#include "reports/sizing/search_advice.h"
#include "sim/search/search.h"

namespace foreshard {

// At most 40 lines, unless warnings take more: the plan in one line, step, memory, where time and
// memory go, assumptions, warnings.
std::string to_text(const Report& report, const Forecast& forecast, Color color);

// One bar of the waterfall; the seconds of all bars add up to the step exactly (in ns).
struct WaterfallBar {
  std::string
      what;  // "forward", "backward", "exposed all_gather (backward)", "host", "optimizer" ...
  Time time;
};
std::vector<WaterfallBar> waterfall(const EventGraph& graph, const Timeline& timeline);

// Why an event started when it did: the chain of binding predecessors back to the step's begin.
enum class Cause : std::uint8_t { kStepBegin, kHost, kStream, kWait, kCommunicator };
struct ChainLink {
  EventId event = kNoEvent;
  Cause cause = Cause::kStepBegin;  // what bound its start
};
std::vector<ChainLink> cause_chain(const EventGraph& graph, const Timeline& timeline,
                                   EventId event);

std::string event_name(const Forecast& forecast,
                       EventId event);  // "all_gather layers.3 (backward)"

// The waterfall, the most exposed collectives with their chains, who is alive at the memory peak.
std::string explain_text(const Forecast& forecast, const Report& report, Color color);
Json explain_json(const Forecast& forecast, const Report& report);

// Two plans side by side: what differs in the plan, in time by waterfall bar, in memory by
// category.
std::string compare_text(const Forecast& a, const Report& ra, const Forecast& b, const Report& rb,
                         Color color);
Json compare_json(const Forecast& a, const Report& ra, const Forecast& b, const Report& rb);

// Chrome trace for Perfetto: one thread per stream and the host, memory counters by category, flows
// for waits.
std::string chrome_trace(const Forecast& forecast);
// Two timelines of one step, a process each, their steps beginning at the same moment.
std::string chrome_trace(const Forecast& predicted, const Forecast& measured);

// DESIGN section 11:
// id,kind,unit,unit_name,microbatch,stream,communicator,bytes,flops,issue_s,start_s,arrive_s,end_s
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
std::string search_text(const SearchStory& story, const Forecast* best, const Report* best_report,
                        Color color);
Json search_json(const SearchStory& story, const std::vector<Report>& pareto_reports,
                 const Report* best_report);

}  // namespace foreshard
