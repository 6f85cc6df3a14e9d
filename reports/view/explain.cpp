#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "reports/view/findings.h"
#include "reports/view/layout.h"
#include "reports/view/views.h"
#include "sim/base/unit_strings.h"

namespace foreshard {
namespace {

constexpr std::size_t kMostShown = 5;
constexpr std::size_t kMostTextLinks = 4;
constexpr std::size_t kMostJsonLinks = 32;
constexpr std::size_t kMostBuffers = 12;
constexpr std::size_t kNarrowBar = 36;

const Span& span_of(const Forecast& forecast, EventId event) { return forecast.timeline.spans[at(event)]; }

Lines waterfall_lines(const Findings& findings, Time step, const Paint& paint) {
  Lines lines = {paint.bold(fmt::format("where the step of {} goes", format_time(step)))};
  std::vector<std::vector<std::string>> table;
  Time sum;
  for (const WaterfallBar& b : findings.bars) {
    const double share = b.time.seconds() / step.seconds();
    table.push_back({"  " + b.what, fmt::format("{:.6f} ms", b.time.seconds() * 1e3), percent_text(share),
        left(bar(share, kNarrowBar), kNarrowBar)});
    sum += b.time;
  }
  table.push_back({"  sum", fmt::format("{:.6f} ms", sum.seconds() * 1e3), percent_text(1)});
  append(lines, aligned(table));
  return lines;
}

Lines group_lines(const Findings& findings, const Report& report, const Paint& paint) {
  Lines lines = {paint.bold(fmt::format("communication: {}, of which {} exposed",
                     seconds_text(report.communication.value), seconds_text(report.exposed_communication.value))),
      "  exposed: a collective moves data and no compute row runs"};
  std::vector<std::vector<std::string>> table = {{"  kind", "rows", "busy", "exposed", "in rows"}};
  for (const ExposedGroup& g : findings.groups) {
    table.push_back({"  " + g.what, std::to_string(g.rows), format_time(g.busy), format_time(g.exposed),
        std::to_string(g.exposed_rows)});
  }
  if (table.size() > 1) append(lines, aligned(table));
  if (findings.overlap_slowdown > Time()) {
    lines.push_back(fmt::format(
        "  compute takes {} longer because collectives run beside it", format_time(findings.overlap_slowdown)));
  }
  if (findings.launch_bound > Time()) {
    lines.push_back(fmt::format(
        "  compute takes {} longer because the host launches too slowly", format_time(findings.launch_bound)));
  }
  return lines;
}

// Of steps that communicate over several groups.
Lines axis_lines(const std::vector<AxisCost>& costs, const Paint& paint) {
  if (costs.size() < 2) return {};
  Lines lines = {"", paint.bold("communication by axis of the mesh")};
  std::vector<std::vector<std::string>> table = {
      {"  communicator", "wire", "ranks", "rows", "bytes", "busy", "exposed", "hidden"}};
  for (const AxisCost& c : costs) {
    table.push_back({"  " + c.name, wire_words(c),
        c.group.stride == 1 ? std::to_string(c.group.size) : fmt::format("{} by {}", c.group.size, c.group.stride),
        std::to_string(c.rows), format_bytes(c.bytes), format_time(c.busy), format_time(c.exposed),
        format_time(c.hidden())});
  }
  append(lines, aligned(table, 2));
  return lines;
}

Lines host_lines(const HostFindings& host, Time step, const Paint& paint) {
  Lines lines = {paint.bold(fmt::format(
      "host: busy for {} (forward {}, backward {}, optimizer {}); the GPU waits {} for it", format_time(host.all()),
      format_time(host.busy[0]), format_time(host.busy[1]), format_time(host.busy[2]), format_time(host.held_up)))};
  if (!host.binds(step)) return lines;
  lines.push_back("  the host binds this step; what would help:");
  for (const std::string& remedy : host.remedies) lines.push_back("    " + remedy);
  return lines;
}

// The chain of one event, one link per line, its tail in one line.
Lines chain_lines(const Forecast& forecast, const EventNames& names, const ExposedEvent& e) {
  Lines lines;
  const std::size_t shown = std::min(e.chain.size(), kMostTextLinks);
  for (std::size_t i = 0; i < shown; ++i) {
    const ChainLink& link = e.chain[i];
    const ChainLink* next = i + 1 < e.chain.size() ? &e.chain[i + 1] : nullptr;
    const Span& span = span_of(forecast, link.event);
    const Time begin = link.cause == Cause::kCommunicator ? span.arrive : span.start;
    const std::string text = fmt::format("{} at {}: {}", i == 0 ? "it began" : names.of(link.event) + " began",
        format_time(begin), cause_words(forecast.graph, names, link, next));
    lines.push_back("     " + text);
  }
  if (e.chain.size() > shown) {
    const bool host = e.chain.back().cause == Cause::kHost;
    lines.push_back(fmt::format("     ... {} events further back: {}", e.chain.size() - shown,
        host ? names.of(e.chain.back().event) + " waited for the host" : std::string("the step's begin")));
  }
  return lines;
}

Lines event_lines(const Forecast& forecast, const Findings& findings, const EventNames& names, const Paint& paint) {
  Lines lines;
  if (findings.exposed.empty()) return lines;
  lines = {"", paint.bold("the most exposed collectives and why they came so late")};
  for (std::size_t i = 0; i < std::min(findings.exposed.size(), kMostShown); ++i) {
    const ExposedEvent& e = findings.exposed[i];
    const Span& span = span_of(forecast, e.event);
    lines.push_back(
        fmt::format("  {}  {}: {} exposed of {}; held up {}", i + 1, names.of(e.event), format_time(e.exposed),
            format_time(span.end - span.arrive), e.held_up == kNoEvent ? "the step's end" : names.of(e.held_up)));
    append(lines, chain_lines(forecast, names, e));
  }
  return lines;
}

Lines memory_lines(const Forecast& forecast, const Findings& findings, const EventNames& names, const Paint& paint) {
  Lines lines = {"", paint.bold(fmt::format("alive at the memory peak of {}: {}", format_bytes(forecast.memory.peak),
                         names.of(forecast.memory.peak_event)))};
  std::vector<std::vector<std::string>> table = {{"  category", "buffer", "where", "buffers", "bytes", "of the peak"}};
  const auto peak = as_double(forecast.memory.peak.count());
  LiveGroup rest;
  const auto add = [&](const std::string& category, const LiveGroup& g) {
    const auto bytes = as_double(g.bytes.count());
    table.push_back({"  " + category, g.name, g.where, std::to_string(g.buffers), format_bytes(g.bytes),
        percent_text(peak > 0 ? bytes / peak : 0)});
  };
  for (std::size_t i = 0; i < findings.alive.size(); ++i) {
    const LiveGroup& g = findings.alive[i];
    if (i < kMostBuffers) {
      add(to_string(g.category), g);
    } else {
      rest.buffers += g.buffers;
      rest.bytes += g.bytes;
    }
  }
  if (rest.buffers > 0) add("others", rest);
  append(lines, aligned(table, 3));
  return lines;
}

Json chain_json(const EventNames& names, const std::vector<ChainLink>& chain) {
  Json links = Json::array();
  for (std::size_t i = 0; i < std::min(chain.size(), kMostJsonLinks); ++i)
    links.push_back({{"id", chain[i].event}, {"name", names.of(chain[i].event)}, {"cause", to_string(chain[i].cause)}});
  return links;
}

}

std::string explain_text(const Forecast& forecast, const Report& report, Color color) {
  const Paint paint(color);
  const Findings findings = find_causes(forecast);
  const EventNames names(forecast.graph, forecast.model);
  Lines lines = waterfall_lines(findings, forecast.timeline.period, paint);
  lines.emplace_back();
  append(lines, group_lines(findings, report, paint));
  append(lines, axis_lines(axis_costs(forecast, report.cluster), paint));
  lines.emplace_back();
  append(lines, host_lines(findings.host, forecast.timeline.period, paint));
  append(lines, event_lines(forecast, findings, names, paint));
  append(lines, memory_lines(forecast, findings, names, paint));
  return fmt::format("{}\n", fmt::join(lines, "\n"));
}

Json explain_json(const Forecast& forecast, const Report& report) {
  const Findings findings = find_causes(forecast);
  const EventNames names(forecast.graph, forecast.model);
  Json json;
  json["schema"] = "foreshard.explain/1";
  json["report"] = to_json(report);
  json["waterfall"] = waterfall_json(findings);
  json["overlap_slowdown_s"] = findings.overlap_slowdown.seconds();
  json["launch_bound_s"] = findings.launch_bound.seconds();
  json["host_work"] = host_json(findings.host, forecast.timeline.period);
  json["communication"] = communication_json(findings);
  json["axes"] = to_json(axis_costs(forecast, report.cluster));
  Json& exposed = json["exposed"] = Json::array();
  for (const ExposedEvent& e : findings.exposed) {
    const Span& span = span_of(forecast, e.event);
    Json entry = {{"id", e.event}, {"name", names.of(e.event)}, {"exposed_s", e.exposed.seconds()},
        {"start_s", span.start.seconds()}, {"arrive_s", span.arrive.seconds()}, {"end_s", span.end.seconds()}};
    entry["held_up"] = e.held_up == kNoEvent ? Json(nullptr) : Json(names.of(e.held_up));
    entry["chain_length"] = e.chain.size();
    entry["chain_end"] = to_string(e.chain.back().cause);
    entry["chain"] = chain_json(names, e.chain);
    exposed.push_back(std::move(entry));
  }
  Json alive = json_list(findings.alive, [&](const LiveGroup& g) -> Json { return to_json(g, names); });
  json["memory_peak"] = {{"event", names.of(forecast.memory.peak_event)}, {"bytes", forecast.memory.peak.count()},
      {"alive", std::move(alive)}};
  return json;
}

}
