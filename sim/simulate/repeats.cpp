// The rows of the middle micro-batch give the length of a run; runs go on, both ways, as far as
// every row has its like one run later.
#include "sim/simulate/repeats.h"

#include <algorithm>

namespace foreshard {
namespace {

bool is_like_later(const EventGraph& graph, EventId row, std::int32_t distance) {
  const Row& a = graph.rows[at(row)];
  const Row& b = graph.rows[at(row + distance)];
  if (a.kind != b.kind || a.stream != b.stream || a.communicator != b.communicator ||
      a.work != b.work || a.wait_count != b.wait_count) {
    return false;
  }
  const auto is_later = [&](EventId before, EventId after) { return after - before == distance; };
  if (a.host_wait != b.host_wait && !is_later(a.host_wait, b.host_wait)) return false;
  const auto waits = graph.waits_of(row), later = graph.waits_of(row + distance);
  return std::equal(waits.begin(), waits.end(), later.begin(), is_later);
}

}  // namespace

RepeatedRows find_repeats(const EventGraph& graph) {
  if (graph.rows.empty() || !graph.pipeline.empty()) return {};
  const std::int32_t last = graph.details.back().microbatch;
  const std::int32_t middle = (last + 1) / 2;
  const auto is_of = [](std::int32_t m) {
    return [m](const RowDetail& detail) { return detail.microbatch == m; };
  };
  const auto count = std::ranges::count_if(graph.details, is_of(middle));
  const auto distance = static_cast<std::int32_t>(count);
  const auto size = static_cast<EventId>(graph.rows.size());
  const auto first = static_cast<EventId>(std::ranges::find_if(graph.details, is_of(middle)) -
                                          graph.details.begin());
  if (distance == 0 || first + distance >= size) return {};
  EventId begin = first, end = first;
  while (end + distance < size && is_like_later(graph, end, distance)) ++end;
  while (begin > 0 && is_like_later(graph, begin - 1, distance)) --begin;
  if (end == begin) return {};
  return {begin, distance, (end - begin) / distance + 1};
}

}  // namespace foreshard
