// The rows of the middle micro-batch give the length of a run; runs go on, both ways, as far as
// every row has its like one run later.
#include "sim/simulate/repeats.h"

#include <algorithm>

namespace foreshard {
namespace {

bool is_like_later(const EventGraph& graph, EventId row, std::int32_t distance) {
  const Row& a = graph.rows[at(row)];
  const Row& b = graph.rows[at(row + distance)];
  if (a.kind != b.kind || a.stream != b.stream || a.communicator != b.communicator || a.work != b.work ||
      a.wait_count != b.wait_count)
    return false;
  const auto is_later = [&](EventId before, EventId after) { return after - before == distance; };
  if (a.host_wait != b.host_wait && !is_later(a.host_wait, b.host_wait)) return false;
  const auto waits = graph.waits_of(row), later = graph.waits_of(row + distance);
  return std::equal(waits.begin(), waits.end(), later.begin(), is_later);
}

}

RepeatedRows find_repeats(const EventGraph& graph) {
  if (graph.rows.empty() || !graph.pipeline.empty()) return {};
  const std::int32_t last = graph.details.back().microbatch;
  const std::int32_t middle = (last + 1) / 2;
  const auto is_of = [](std::int32_t m) { return [m](const RowDetail& detail) { return detail.microbatch == m; }; };
  const auto count = std::ranges::count_if(graph.details, is_of(middle));
  const auto distance = static_cast<std::int32_t>(count);
  const auto size = static_cast<EventId>(graph.rows.size());
  const auto first = static_cast<EventId>(std::ranges::find_if(graph.details, is_of(middle)) - graph.details.begin());
  if (distance == 0 || first + distance >= size) return {};
  EventId begin = first, end = first;
  while (end + distance < size && is_like_later(graph, end, distance)) ++end;
  while (begin > 0 && is_like_later(graph, begin - 1, distance)) --begin;
  if (end == begin) return {};
  return {begin, distance, (end - begin) / distance + 1};
}

// A simulation goes on as it stands (repeats.h), and where it stands is what the rows of the last
// two runs do: no older one is at work any more. So where these are the same before and after what
// is cut, relative to the time that a run takes, what follows is.
namespace {

constexpr std::int32_t kRunsBefore = 2;

// Whether the host, whose work is `host_less` less, holds nothing up behind what is cut.
bool host_is_ahead(
    const EventGraph& graph, const CostTable& costs, const Timeline& timeline, const CutRuns& cut, Time host_less) {
  const bool waits = std::ranges::any_of(graph.rows, [](const Row& row) { return row.host_wait != kNoEvent; });
  if (waits || !costs.delays.empty()) return false;
  const std::vector<Span>& spans = timeline.spans;
  const auto cost_of = [&](std::size_t row) { return costs.works[graph.rows[row].work]; };
  const Time host_began = spans.front().issue - cost_of(0).before;
  if (graph.final_host_wait == kNoEvent) {
    // A whole step ahead (Note [The steady step] in simulate.cpp), and at least its own work.
    return spans.back().issue <= Time() && timeline.period - cut.time >= Time() - host_began - host_less;
  }
  const Time later = cut.time - host_less;  // the host, against the streams
  if (later < Time() || graph.final_host_wait < cut.end) return false;
  for (auto row = at(cut.end); row < spans.size(); ++row) {
    const Cost cost = cost_of(row);
    const Time host = spans[row].issue + later;
    if (spans[row].start < host || spans[row].end < host + cost.during + cost.last_kernel) return false;
  }
  // Every step begins where the host stands after one, and so does the first, from an idle machine.
  const Time awaited = spans[at(graph.final_host_wait)].end;
  const Time host_ends = spans.back().issue + cost_of(spans.size() - 1).during + later;
  return awaited - timeline.period == host_began && awaited - host_ends >= std::max(Time(), Time() - host_began);
}

}

std::optional<CutRuns> cut_runs(const EventGraph& graph, const CostTable& costs, const Timeline& timeline,
    const RepeatedRows& repeats, std::int32_t runs) {
  const std::vector<Span>& spans = timeline.spans;
  const auto at = [&](EventId row) -> const Span& { return spans[static_cast<std::size_t>(row)]; };
  for (std::int32_t run = 0; run + kRunsBefore + runs < repeats.count; ++run) {
    const EventId first = repeats.begin + run * repeats.rows;
    const Time time = at(first + repeats.rows).end - at(first).end;
    const CutRuns cut{first + kRunsBefore * repeats.rows, first + (kRunsBefore + runs) * repeats.rows, runs * time};
    bool is_shown = true;
    for (EventId row = first; row < cut.end - repeats.rows && is_shown; ++row) {
      const Span &a = at(row), &b = at(row + repeats.rows);
      is_shown = b.start - a.start == time && b.arrive - a.arrive == time && b.end - a.end == time;
    }
    if (!is_shown) continue;
    Time begins = at(first).start, ends = at(first).end;
    for (EventId row = first; row < first + repeats.rows; ++row) {
      begins = std::min(begins, at(row).start);
      ends = std::max(ends, at(row).end);
    }
    // Nor does anything behind what is cut begin before it does.
    const bool is_apart = ends - begins <= kRunsBefore * time &&
                          std::all_of(spans.begin() + cut.end, spans.end(),
                              [&](const Span& span) { return span.start >= begins + (kRunsBefore + runs) * time; });
    if (!is_apart) continue;
    const Time host_less = at(cut.end).issue - at(cut.begin).issue;
    return host_is_ahead(graph, costs, timeline, cut, host_less) ? std::optional(cut) : std::nullopt;
  }
  return std::nullopt;
}

}
