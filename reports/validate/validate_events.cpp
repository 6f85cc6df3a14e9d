// An event is ready when the rows it waits for, the row before it on its stream, the host's last issue, what the host
// waits for, and, where the host itself computes, the last compute row have all ended. Counted from there its time is
// its own: a slow event does not make those behind it late.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "reports/accuracy/intervals.h"
#include "reports/validate/validate.h"
#include "reports/view/attribution.h"
#include "reports/view/layout.h"
#include "sim/base/quantile.h"

namespace foreshard {
namespace {

// Of one interval, in seconds.
double covered(const Interval& interval, const std::vector<Interval>& disjoint) {
  auto it = std::partition_point(
      disjoint.begin(), disjoint.end(), [&](const Interval& other) { return other.end <= interval.begin; });
  Time sum;
  for (; it != disjoint.end() && it->begin < interval.end; ++it)
    sum += std::min(it->end, interval.end) - std::max(it->begin, interval.begin);
  return sum.seconds();
}

double positive(Time time) { return std::max(time, Time()).seconds(); }

// Walks the rows in host order.
class Readiness {
 public:
  Readiness(const EventGraph& graph, const Timeline& timeline, HostKind host)
      : graph_(graph), timeline_(timeline), host_(host) {
    on_stream_.fill(kNoEvent);
    on_communicator_.fill(kNoEvent);
  }

  // Of the next row.
  Time ready(std::size_t i) const {
    const Row& row = graph_.rows[i];
    Time ready = std::min(Time(), timeline_.spans[i].start);
    const auto after = [&](EventId event) {
      if (event != kNoEvent) ready = std::max(ready, span(event).end);
    };
    for (EventId awaited : graph_.waits_of(static_cast<EventId>(i))) after(awaited);
    after(row.host_wait);
    after(on_stream_[at(row.stream)]);
    if (host_ == HostKind::kComputes) after(computed_);
    if (i > 0) ready = std::max(ready, timeline_.spans[i - 1].issue);
    return ready;
  }
  // When its communicator is free.
  Time free(std::size_t i) const {
    const EventId before = on_communicator_[graph_.rows[i].communicator];
    return graph_.rows[i].communicator == kNoCommunicator || before == kNoEvent ? timeline_.spans[i].start
                                                                                : span(before).end;
  }
  void pass(std::size_t i) {
    const auto id = static_cast<EventId>(i);
    on_stream_[at(graph_.rows[i].stream)] = id;
    on_communicator_[graph_.rows[i].communicator] = id;
    if (computes(graph_.rows[i])) computed_ = id;
  }

 private:
  const Span& span(EventId event) const { return timeline_.spans[at(event)]; }

  const EventGraph& graph_;
  const Timeline& timeline_;
  HostKind host_;
  std::array<EventId, kStreams> on_stream_;
  std::array<EventId, kNoCommunicator + std::size_t{1}> on_communicator_;
  EventId computed_ = kNoEvent;
};

std::string against(const char* what, double measured, double predicted) {
  return fmt::format("{} {}, forecast {}", what, seconds_text(measured), seconds_text(predicted));
}

}

std::vector<EventParts> event_parts(const EventGraph& graph, const Timeline& timeline, HostKind host) {
  std::vector<Interval> compute, communication;
  for (std::size_t i = 0; i < graph.rows.size(); ++i) {
    const Span& span = timeline.spans[i];
    if (is_collective(graph.rows[i].kind)) communication.push_back({span.arrive, span.end});
    else if (computes(graph.rows[i])) compute.push_back({span.start, span.end});
  }
  compute = united(std::move(compute));
  communication = united(std::move(communication));

  std::vector<EventParts> parts(graph.rows.size());
  Readiness readiness(graph, timeline, host);
  for (std::size_t i = 0; i < graph.rows.size(); ++i) {
    const Row& row = graph.rows[i];
    const Span& span = timeline.spans[i];
    const bool collective = is_collective(row.kind);
    const Time arrive = collective ? std::clamp(span.arrive, span.start, span.end) : span.start;
    const Time free = std::clamp(readiness.free(i), span.start, arrive);
    parts[i].host = positive(span.start - readiness.ready(i));
    parts[i].queue = (free - span.start).seconds();
    parts[i].peers = (arrive - free).seconds();
    parts[i].duration = (span.end - arrive).seconds();
    if (collective || computes(row))
      parts[i].beside = covered({arrive, span.end}, collective ? compute : communication);
    readiness.pass(i);
  }
  return parts;
}

std::vector<EventParts> median_parts(const std::vector<std::vector<EventParts>>& samples) {
  std::vector<EventParts> medians(samples.front().size());
  std::vector<double> values(samples.size());
  for (std::size_t i = 0; i < medians.size(); ++i) {
    for (double EventParts::*part :
        {&EventParts::host, &EventParts::queue, &EventParts::peers, &EventParts::duration, &EventParts::beside}) {
      for (std::size_t s = 0; s < samples.size(); ++s) values[s] = samples[s][i].*part;
      medians[i].*part = quartiles(values).median;
    }
  }
  return medians;
}

std::string cause_of_difference(const EventParts& predicted, const EventParts& measured, EventKind kind) {
  struct Part {
    double EventParts::*value;
    const char* words;
  };
  static constexpr std::array<Part, 4> kParts = {{
      {&EventParts::duration, "duration differs:"},
      {&EventParts::peers, "waited for its peers"},
      {&EventParts::queue, "queued for its communicator"},
      {&EventParts::host, "host late by"},
  }};
  const double sign = measured.total() < predicted.total() ? -1 : 1;
  const auto difference = [&](double EventParts::*part) { return sign * (measured.*part - predicted.*part); };
  const Part* most = kParts.data();
  for (const Part& part : kParts)
    if (difference(part.value) > difference(most->value)) most = &part;
  const bool is_duration = most == kParts.data();
  // Contention explains a duration where the time side by side differs by as much as half of it.
  if (is_duration && difference(&EventParts::beside) >= 0.5 * difference(&EventParts::duration)) {
    const char* words = is_collective(kind) ? "contention: beside compute for" : "contention: beside communication for";
    return against(words, measured.beside, predicted.beside);
  }
  return against(most->words, measured.*(most->value), predicted.*(most->value));
}

}
