#include "reports/view/findings.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "sim/base/integers.h"

namespace foreshard {
namespace {

std::vector<ExposedEvent> exposed_events(const EventGraph& graph, const Timeline& timeline) {
  struct Sum {
    Time exposed, longest;
    EventId held_up = kNoEvent;
  };
  std::map<EventId, Sum> sums;
  for (const Gap& gap : compute_gaps(graph, timeline)) {
    if (gap.collective == kNoEvent) continue;
    Sum& sum = sums[gap.collective];
    const Time length = gap.end - gap.begin;
    sum.exposed += length;
    if (length > sum.longest) {
      sum.longest = length;
      sum.held_up = gap.held_up;
    }
  }
  std::vector<ExposedEvent> events;
  for (const auto& [event, sum] : sums) events.push_back({event, sum.exposed, sum.held_up, {}});
  std::ranges::stable_sort(events, std::greater(), &ExposedEvent::exposed);
  for (ExposedEvent& event : events) event.chain = cause_chain(graph, timeline, event.event);
  return events;
}

std::vector<ExposedGroup> group(
    const Forecast& forecast, const std::vector<ExposedEvent>& exposed, const EventNames& names) {
  std::vector<ExposedGroup> groups;
  std::vector<Time> of_row(forecast.graph.rows.size());
  for (const ExposedEvent& e : exposed) of_row[at(e.event)] = e.exposed;
  for (std::size_t i = 0; i < forecast.graph.rows.size(); ++i) {
    const EventKind kind = forecast.graph.rows[i].kind;
    if (!is_collective(kind)) continue;
    const std::string what = fmt::format("{} ({})", to_string(kind), to_string(names.phase(static_cast<EventId>(i))));
    auto it = std::ranges::find(groups, what, &ExposedGroup::what);
    if (it == groups.end()) {
      it = groups.insert(groups.end(), ExposedGroup{});
      it->what = what;
    }
    const Span& span = forecast.timeline.spans[i];
    ++it->rows;
    it->exposed_rows += of_row[i] > Time() ? 1 : 0;
    it->busy += span.end - span.arrive;
    it->exposed += of_row[i];
  }
  return groups;
}

std::vector<LiveGroup> live_groups(const Forecast& forecast) {
  const EventGraph& graph = forecast.graph;
  std::map<std::pair<MemoryCategory, std::string>, std::pair<LiveGroup, std::set<std::int32_t>>> by_name;
  for (const LiveBuffer& live : forecast.memory.alive_at_peak) {
    const Buffer buffer = graph.buffer(live.buffer);
    const std::string name = graph.buffer_name(live.buffer);
    auto& [sum, units] = by_name[{buffer.category, name}];
    if (sum.buffers == 0) sum.since = live.since;
    sum.category = buffer.category;
    sum.name = name;
    sum.bytes += live.bytes;
    sum.since = std::min(sum.since, live.since);
    ++sum.buffers;
    if (buffer.unit >= 0) units.insert(buffer.unit);
  }
  std::vector<LiveGroup> groups;
  for (auto& [key, entry] : by_name) {
    auto& [sum, units] = entry;
    if (units.size() == 1) sum.where = graph.units[at(*units.begin())].name;
    if (units.size() > 1) sum.where = fmt::format("{} units", units.size());
    groups.push_back(std::move(sum));
  }
  std::ranges::stable_sort(groups, std::greater(), &LiveGroup::bytes);
  return groups;
}

void add_excess(const Forecast& forecast, Findings& findings) {
  if (forecast.costs.works.size() != forecast.graph.works.size()) return;
  for (std::size_t i = 0; i < forecast.graph.rows.size(); ++i) {
    const Row& row = forecast.graph.rows[i];
    if (!computes(row)) continue;
    const Excess excess = excess_of(forecast.timeline.spans[i], forecast.costs.works[row.work]);
    findings.overlap_slowdown += excess.overlap;
    findings.launch_bound += excess.launches;
  }
}

}

Findings find_causes(const Forecast& forecast) {
  const EventNames names(forecast.graph, forecast.model);
  Findings findings = {.bars = waterfall(forecast.graph, forecast.timeline),
      .exposed = exposed_events(forecast.graph, forecast.timeline)};
  findings.groups = group(forecast, findings.exposed, names);
  findings.alive = live_groups(forecast);
  add_excess(forecast, findings);
  findings.host = host_findings(forecast);
  return findings;
}

std::string cause_words(
    const EventGraph& graph, const EventNames& names, const ChainLink& link, const ChainLink* next) {
  const std::string predecessor = next == nullptr ? "" : names.of(next->event);
  switch (link.cause) {
    case Cause::kStepBegin: return "ready when the step began";
    case Cause::kHost: return "the host issued it only then";
    case Cause::kStream: return fmt::format("behind {} on its stream", predecessor);
    case Cause::kWait: return "waited for " + predecessor;
    case Cause::kCommunicator:
      return fmt::format("communicator {} was busy with {}", communicator_name(graph, link.event), predecessor);
  }
  return "";
}

Json waterfall_json(const Findings& findings) {
  return json_list(
      findings.bars,
      [&](const WaterfallBar& b) -> Json {
        return {{"what", b.what}, {"seconds", b.time.seconds()}, {"nanoseconds", b.time.nanoseconds()}};
      });
}

Json communication_json(const Findings& findings) {
  return json_list(
      findings.groups,
      [&](const ExposedGroup& g) -> Json {
        return {{"what", g.what}, {"rows", g.rows}, {"exposed_rows", g.exposed_rows}, {"busy_s", g.busy.seconds()},
            {"exposed_s", g.exposed.seconds()}};
      });
}

Json to_json(const LiveGroup& group, const EventNames& names) {
  return {{"category", to_string(group.category)}, {"name", group.name}, {"where", group.where},
      {"buffers", group.buffers}, {"bytes", group.bytes.count()}, {"since", names.of(group.since)}};
}

}
