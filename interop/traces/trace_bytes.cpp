#include "interop/traces/trace_bytes.h"

#include <fmt/format.h>

#include <algorithm>

namespace foreshard {
namespace {

bool is_compared(const EventGraph& graph, std::size_t row) {
  const EventKind kind = graph.rows[row].kind;
  return graph.details[row].unit >= 0 &&
         (kind == EventKind::kAllGather || kind == EventKind::kReduceScatter ||
          kind == EventKind::kAllReduce);
}

}  // namespace

std::vector<std::string> collective_differences(const EventGraph& graph, const EventNames& names,
                                                const std::vector<TracedCollectiveCall>& calls) {
  std::vector<std::string> sentences;
  std::size_t next = 0, different = 0, rows = 0;
  for (std::size_t i = 0; i < graph.rows.size(); ++i) {
    if (!is_compared(graph, i)) continue;
    ++rows;
    const std::string planned = fmt::format("{} of {} bytes ({})", to_string(graph.rows[i].kind),
                                            graph.works[graph.rows[i].work].bytes.count(),
                                            names.of(static_cast<EventId>(i)));
    if (next >= calls.size()) continue;
    const TracedCollectiveCall& call = calls[next++];
    const bool same = call.kind == to_string(graph.rows[i].kind) &&
                      call.bytes == graph.works[graph.rows[i].work].bytes.count();
    if (same) continue;
    if (++different == 1) {
      sentences.push_back(fmt::format("collective {} of the step is {} of {} bytes, the plan's {}",
                                      next, call.kind, call.bytes, planned));
    }
  }
  if (different > 1) sentences.push_back(fmt::format("{} collectives differ in all", different));
  if (rows != calls.size()) {
    sentences.push_back(
        fmt::format("the job issues {} collectives in a step, the plan {}", calls.size(), rows));
  }
  return sentences;
}

}  // namespace foreshard
