// Graphs of a few rows whose times are written down by hand, in nanoseconds.
#pragma once

#include <initializer_list>

#include "sim/simulate/forecast.h"

namespace foreshard {

struct HandMadeSpan {
  std::int64_t issue = 0;
  std::int64_t start = 0;
  std::int64_t arrive = 0;
  std::int64_t end = 0;
};

class HandMade {
 public:
  HandMade() {
    graph.communicators = {{"shard", {8, 1}, false}};
    graph.units.resize(2);
    graph.units[0].name = "layers.0";
    graph.units[1].name = "layers.1";
    Work work = {.communicator = 0, .bytes = Bytes(1024)};
    graph.works = {work};
  }

  EventId add(EventKind kind, Stream stream, HandMadeSpan span, std::initializer_list<EventId> waits = {},
      std::int32_t unit = 0) {
    Row row;
    row.kind = kind;
    row.stream = stream;
    row.communicator = is_collective(kind) ? std::uint8_t{0} : kNoCommunicator;
    row.waits_begin = static_cast<std::uint32_t>(graph.waits.size());
    row.wait_count = static_cast<std::uint8_t>(waits.size());
    graph.waits.insert(graph.waits.end(), waits);
    graph.rows.push_back(row);
    graph.details.push_back({unit, -1, 0, 0, 0});
    timeline.spans.push_back({Time::ns(span.issue), Time::ns(span.start), Time::ns(span.arrive), Time::ns(span.end)});
    if (stream == Stream::kCompute) timeline.period = Time::ns(span.end);
    return static_cast<EventId>(graph.rows.size()) - 1;
  }
  EventId compute(EventKind kind, std::int64_t start, std::int64_t end, std::initializer_list<EventId> waits = {}) {
    return add(kind, Stream::kCompute, {-1000, start, start, end}, waits);
  }
  EventId gather(std::int64_t start, std::int64_t arrive, std::int64_t end, std::initializer_list<EventId> waits = {}) {
    return add(EventKind::kAllGather, Stream::kAllGather, {-1000, start, arrive, end}, waits);
  }

  EventGraph graph;
  Timeline timeline;
};

}
