// A gap that no collective fills may still be waiting for one: then the gap is cut where the
// collective's wait for its peers begins and ends.
#include "reports/validate/slower.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "reports/view/attribution.h"
#include "reports/view/layout.h"
#include "sim/base/unit_strings.h"

namespace foreshard {
namespace {

using Key = std::tuple<SlowCause, EventKind, std::int32_t>;  // unit, -1: the whole step
using Shares = std::map<Key, Time>;

class Cut {
 public:
  Cut(const EventGraph& graph, const Timeline& timeline) : graph_(graph), timeline_(timeline) {
    for (std::size_t i = 0; i < graph.rows.size(); ++i) {
      const Span& span = timeline.spans[i];
      if (is_collective(graph.rows[i].kind) && span.arrive > span.start) waiting_.push_back(i);
    }
  }

  Shares shares() {
    Time now;
    for (std::size_t i = 0; i < graph_.rows.size(); ++i) {
      if (!computes(graph_.rows[i])) continue;
      const Time begin = std::max(now, timeline_.spans[i].start);
      const Time end = std::min(timeline_.spans[i].end, timeline_.period);
      if (end <= begin) continue;
      add(SlowCause::kCompute, i, end - begin);
      now = end;
    }
    for (const Gap& gap : compute_gaps(graph_, timeline_)) take(gap);
    return std::move(shares_);
  }

 private:
  void add(SlowCause cause, std::size_t row, Time time) {
    shares_[{cause, graph_.rows[row].kind, graph_.details[row].unit}] += time;
  }

  void take(const Gap& gap) {
    if (gap.collective != kNoEvent) return add(SlowCause::kExposed, at(gap.collective), gap.end - gap.begin);
    const SlowCause other = gap.otherwise == Cause::kHost ? SlowCause::kHost : SlowCause::kStream;
    // What stands behind the last compute row is put down to the step's last row.
    const std::size_t held = gap.held_up == kNoEvent ? graph_.rows.size() - 1 : at(gap.held_up);
    Time now = gap.begin;
    for (const std::size_t i : waiting_) {
      const Time begin = std::max(now, timeline_.spans[i].start);
      const Time end = std::min(timeline_.spans[i].arrive, gap.end);
      if (end <= begin) continue;
      if (begin > now) add(other, held, begin - now);
      add(SlowCause::kPeers, i, end - begin);
      now = end;
    }
    if (gap.end > now) add(other, held, gap.end - now);
  }

  const EventGraph& graph_;
  const Timeline& timeline_;
  std::vector<std::size_t> waiting_;
  Shares shares_;
};

std::string sentence(const SlowPart& part) {
  std::string what = fmt::format("{}{}{}", to_string(part.kind), part.where.empty() ? "" : " ", part.where);
  switch (part.cause) {
    case SlowCause::kCompute: return what;
    case SlowCause::kExposed: return "exposed " + what;
    case SlowCause::kPeers: return "waiting for peers in " + what;
    case SlowCause::kHost: return "host late for " + what;
    case SlowCause::kStream: return what + " waits for another stream";
  }
  return what;
}

const char* advice(SlowCause cause) {
  switch (cause) {
    case SlowCause::kCompute:
      return "kernels are slower than priced: look at clocks, power and other jobs; calibrate anew on this machine";
    case SlowCause::kExposed:
      return "collectives take longer or hide less: hold nccl-tests against the profile, then try "
             "deeper prefetch or fewer layers per unit";
    case SlowCause::kPeers:
      return "another rank comes late: compare the ranks' traces, and look at data loading and at the slowest GPU";
    case SlowCause::kHost:
      return "the GPU waits for launches: look for host synchronisations (.item(), print), Python's garbage collector "
             "and slow hooks; larger micro-batches or torch.compile launch less";
    case SlowCause::kStream: return "streams wait for copies: look at copy-in and copy-out, and at the order of issue";
  }
  return "";
}

}

SlowStep why_slower(const EventGraph& graph, const Timeline& predicted, const Timeline& measured) {
  std::map<Key, SlowPart> parts;
  const auto part_of = [&](const Key& key) -> SlowPart& {
    SlowPart& part = parts[key];
    const std::int32_t unit = std::get<std::int32_t>(key);
    part.cause = std::get<SlowCause>(key);
    part.kind = std::get<EventKind>(key);
    if (unit >= 0) part.where = graph.units[at(unit)].name;
    return part;
  };
  for (const auto& [key, time] : Cut(graph, predicted).shares()) part_of(key).predicted = time;
  for (const auto& [key, time] : Cut(graph, measured).shares()) part_of(key).measured = time;
  SlowStep step = {.predicted = predicted.period, .measured = measured.period};
  for (auto& [key, part] : parts)
    if (part.difference() != Time()) step.parts.push_back(std::move(part));
  std::ranges::stable_sort(step.parts, std::greater(), &SlowPart::difference);
  return step;
}

std::string slower_text(const SlowStep& step, std::string_view what, Color color) {
  constexpr std::size_t kMost = 12;
  const Paint paint(color);
  const Time difference = step.measured - step.predicted;
  std::vector<std::string> lines = {paint.bold(fmt::format("{}: {} measured, {} forecast: {}", what,
      format_time(step.measured), format_time(step.predicted), signed_seconds(difference.seconds())))};
  std::map<SlowCause, Time> causes;
  for (const SlowPart& part : step.parts) causes[part.cause] += part.difference();
  std::vector<std::pair<SlowCause, Time>> order(causes.begin(), causes.end());
  std::ranges::stable_sort(order, [](const auto& a, const auto& b) { return a.second > b.second; });
  std::vector<std::vector<std::string>> table;
  for (const auto& [cause, time] : order)
    table.push_back({std::string("  ") + to_string(cause), signed_seconds(time.seconds())});
  table.push_back({"  sum", signed_seconds(difference.seconds())});
  for (std::string& line : aligned(table)) lines.push_back(std::move(line));
  lines.emplace_back();
  lines.push_back(paint.bold("what differs most (measured - forecast)"));
  // Ends of the list: what costs most, and what the run saves.
  auto shown = list_of<const SlowPart*>(
      step.parts, [&](const SlowPart& part) { return &part; });
  std::ranges::stable_sort(shown, [](const SlowPart* a, const SlowPart* b) {
    const auto size = [](const SlowPart* part) { return std::max(part->difference(), Time() - part->difference()); };
    return size(a) > size(b);
  });
  Time rest;
  for (std::size_t i = kMost; i < shown.size(); ++i) rest += shown[i]->difference();
  std::vector<std::vector<std::string>> rows;
  for (std::size_t i = 0; i < std::min(kMost, shown.size()); ++i) {
    const SlowPart& part = *shown[i];
    rows.push_back({"  " + sentence(part), signed_seconds(part.difference().seconds()), format_time(part.measured),
        "forecast " + format_time(part.predicted)});
  }
  if (shown.size() > kMost)
    rows.push_back({fmt::format("  {} more", shown.size() - kMost), signed_seconds(rest.seconds()), "", ""});
  for (std::string& line : aligned(rows)) lines.push_back(std::move(line));
  if (!order.empty() && order.front().second > Time()) {
    lines.emplace_back();
    for (std::string& line :
        wrapped(fmt::format("{}: {}", to_string(order.front().first), advice(order.front().first)), kTextWidth, 2))
      lines.push_back(std::move(line));
  }
  return fmt::format("{}\n", fmt::join(lines, "\n"));
}

Json to_json(const SlowStep& step) {
  Json parts = json_list(step.parts, [&](const SlowPart& part) -> Json {
    return {{"cause", to_string(part.cause)}, {"kind", to_string(part.kind)},
        {"unit", part.where.empty() ? Json(nullptr) : Json(part.where)}, {"predicted_s", part.predicted.seconds()},
        {"measured_s", part.measured.seconds()}, {"difference_s", part.difference().seconds()},
        {"difference_ns", part.difference().nanoseconds()},
        {"advice", part.difference() > Time() ? Json(advice(part.cause)) : Json(nullptr)}};
  });
  const Time difference = step.measured - step.predicted;
  return {{"predicted_s", step.predicted.seconds()}, {"measured_s", step.measured.seconds()},
      {"difference_s", difference.seconds()}, {"difference_ns", difference.nanoseconds()}, {"parts", std::move(parts)}};
}

}
