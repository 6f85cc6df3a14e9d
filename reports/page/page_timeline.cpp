// Columns of whole numbers, so that 20,000 events take less than a megabyte as JSON. Times are nanoseconds. Per event:
// `sort` indexes sorts (kind, stream, communicator, bytes, flops), `place` and `tail` index names, so that its name is
// kind + " " + place + tail; `issue` is the difference from the issue before; `start` the difference from the end of
// the event before it on its stream (or from 0); `arrive` counts from start, `length` from arrive; `host` is what the
// host does while it issues; `cause` indexes causes, `by` is how many events back the predecessor lies that bound the
// start (0: none).
//
// Memory stands in host order, where the allocator acts. Long steps are thinned: of each run of
// events the one with the highest peak stays, so the step's peak always does.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <tuple>

#include "reports/page/page.h"
#include "reports/view/event_names.h"
#include "reports/view/findings.h"

namespace foreshard {
namespace {

constexpr std::size_t kMostSamples = 1500;

// Values by the index of their first appearance.
template <typename Key>
class Table {
 public:
  std::size_t index(const Key& key) {
    const auto [at, is_new] = indices_.try_emplace(key, keys_.size());
    if (is_new) keys_.push_back(key);
    return at->second;
  }
  const std::vector<Key>& keys() const { return keys_; }

 private:
  std::map<Key, std::size_t> indices_;
  std::vector<Key> keys_;
};

using Sort = std::tuple<std::uint16_t, EventKind, Stream, std::string>;

// Kind, place and the rest of an event's name.
struct NameParts {
  std::string place, tail;
};
NameParts parts_of(const EventNames& names, EventKind kind, EventId id) {
  const std::string name = names.of(id);
  const std::string head = to_string(kind);
  NameParts parts{names.place(id), name.substr(head.size())};
  if (!parts.place.empty() && parts.tail.starts_with(" " + parts.place)) parts.tail.erase(0, parts.place.size() + 1);
  else parts.place.clear();
  return parts;
}

Json sort_json(const Sort& sort, const EventGraph& graph) {
  const auto& [work_index, kind, stream, communicator] = sort;
  const Work& work = graph.works[work_index];
  Json json = {{"kind", to_string(kind)}, {"stream", to_string(stream)}, {"bytes", work.bytes.count()},
      {"flops", work.flops.count()}};
  if (work.communicator != kNoCommunicator) {
    json["communicator"] = communicator;
    json["group"] = graph.communicators[work.communicator].group.size;
  }
  return json;
}

Json critical_path(const EventGraph& graph, const Timeline& timeline) {
  EventId last = kNoEvent;
  for (std::size_t i = 0; i < graph.rows.size(); ++i) {
    if (!computes(graph.rows[i])) continue;
    const bool later = last == kNoEvent || timeline.spans[i].end >= timeline.spans[at(last)].end;
    if (later) last = static_cast<EventId>(i);
  }
  Json path = Json::array();
  if (last == kNoEvent) return path;
  for (const ChainLink& link : cause_chain(graph, timeline, last)) path.push_back(link.event);
  std::ranges::reverse(path);
  return path;
}

Json gaps_json(const EventGraph& graph, const Timeline& timeline) {
  return json_list(
      compute_gaps(graph, timeline),
      [&](const Gap& gap) -> Json {
        return {gap.begin.nanoseconds(), (gap.end - gap.begin).nanoseconds(), gap.collective,
            gap.otherwise == Cause::kHost ? 1 : 0, gap.held_up};
      });
}

std::vector<std::size_t> sampled_rows(const MemoryProfile& memory) {
  const std::size_t rows = memory.samples.size();
  const std::size_t stride = (rows + kMostSamples - 1) / kMostSamples;
  std::vector<std::size_t> kept;
  for (std::size_t begin = 0; begin < rows; begin += stride) {
    std::size_t highest = begin;
    for (std::size_t i = begin; i < std::min(rows, begin + stride); ++i)
      if (memory.samples[i].peak > memory.samples[highest].peak) highest = i;
    kept.push_back(highest);
  }
  return kept;
}

// Differences in units of `granule`.
Json differences(const std::vector<std::int64_t>& values, std::int64_t granule) {
  Json list = Json::array();
  std::int64_t before = 0;
  for (std::int64_t value : values) {
    list.push_back((value - before) / granule);
    before = value;
  }
  return list;
}

Json memory_json(const Forecast& forecast) {
  const MemoryProfile& memory = forecast.memory;
  if (memory.samples.empty()) return nullptr;
  const std::vector<std::size_t> rows = sampled_rows(memory);
  std::vector<std::int64_t> ids, peaks;
  std::int64_t granule = 0;
  for (std::size_t row : rows) {
    ids.push_back(static_cast<std::int64_t>(row));
    peaks.push_back(memory.samples[row].peak.count());
    granule = std::gcd(granule, peaks.back());
    for (const Bytes& bytes : memory.by_category[row]) granule = std::gcd(granule, bytes.count());
  }
  granule = std::max<std::int64_t>(granule, 1);
  Json categories = Json::array();
  for (std::size_t c = 0; c < kMemoryCategories; ++c) {
    if (memory.own_peak[c] == Bytes()) continue;
    auto values = list_of<std::int64_t>(rows, [&](std::size_t row) { return memory.by_category[row][c].count(); });
    categories.push_back(
        {{"name", to_string(static_cast<MemoryCategory>(c))}, {"peak_bytes", memory.own_peak[c].count()},
            {"at_peak_bytes", memory.at_peak[c].count()}, {"now", differences(values, granule)}});
  }
  return {{"granule", granule}, {"peak_event", memory.peak_event}, {"peak_bytes", memory.peak.count()},
      {"rows", differences(ids, 1)}, {"peak", differences(peaks, granule)}, {"categories", std::move(categories)}};
}

}

Json timeline_json(const Forecast& forecast) {
  const EventGraph& graph = forecast.graph;
  const EventNames names(graph, forecast.model);
  const Causes causes(graph, forecast.timeline);
  const bool has_costs = forecast.costs.works.size() == graph.works.size();
  Table<Sort> sorts;
  Table<std::string> places, tails;
  std::vector<std::int64_t> sort, place, tail, issue, start, arrive, length, host, cause, by, phase;
  std::array<Time, kStreams> stream_end{};
  Time last_issue;
  for (std::size_t i = 0; i < graph.rows.size(); ++i) {
    const auto id = static_cast<EventId>(i);
    const Row& row = graph.rows[i];
    const Span& span = forecast.timeline.spans[i];
    const NameParts parts = parts_of(names, row.kind, id);
    const auto number = [](std::size_t index) { return static_cast<std::int64_t>(index); };
    sort.push_back(number(sorts.index({row.work, row.kind, row.stream, communicator_name(graph, id)})));
    place.push_back(number(places.index(parts.place)));
    tail.push_back(number(tails.index(parts.tail)));
    phase.push_back(static_cast<std::int64_t>(names.phase(id)));
    issue.push_back((span.issue - last_issue).nanoseconds());
    last_issue = span.issue;
    Time& end = stream_end[at(row.stream)];
    start.push_back((span.start - end).nanoseconds());
    end = span.end;
    arrive.push_back((span.arrive - span.start).nanoseconds());
    length.push_back((span.end - span.arrive).nanoseconds());
    host.push_back(has_costs ? forecast.costs.works[row.work].during.nanoseconds() : 0);
    const Causes::Binding binding = causes.of(id);
    cause.push_back(static_cast<std::int64_t>(binding.cause));
    by.push_back(binding.predecessor == kNoEvent ? 0 : id - binding.predecessor);
  }
  Json sort_list = json_list(sorts.keys(), [&](const Sort& s) -> Json { return sort_json(s, graph); });
  Json cause_list = Json::array();
  for (Cause c : {Cause::kStepBegin, Cause::kHost, Cause::kStream, Cause::kWait, Cause::kCommunicator})
    cause_list.push_back(to_string(c));
  Json stream_list = Json::array();
  for (std::size_t s = 0; s < kStreams; ++s) stream_list.push_back(to_string(static_cast<Stream>(s)));
  return {{"events", graph.rows.size()}, {"period_ns", forecast.timeline.period.nanoseconds()},
      {"streams", std::move(stream_list)}, {"sorts", std::move(sort_list)}, {"places", places.keys()},
      {"tails", tails.keys()}, {"causes", std::move(cause_list)}, {"phases", {"forward", "backward", "optimizer"}},
      {"columns",
          {{"sort", sort}, {"place", place}, {"tail", tail}, {"phase", phase}, {"issue", issue}, {"start", start},
              {"arrive", arrive}, {"length", length}, {"host", host}, {"cause", cause}, {"by", by}}},
      {"gaps", gaps_json(graph, forecast.timeline)}, {"critical_path", critical_path(graph, forecast.timeline)},
      {"memory", memory_json(forecast)}};
}

Json scatter_json(const Forecast& forecast, const Forecast& measured) {
  const EventNames names(forecast.graph, forecast.model);
  Json kinds = Json::array(), labels = Json::array(), predicted = Json::array(), found = Json::array();
  for (std::size_t i = 0; i < forecast.graph.rows.size(); ++i) {
    const Span& p = forecast.timeline.spans[i];
    const Span& m = measured.timeline.spans[i];
    kinds.push_back(to_string(forecast.graph.rows[i].kind));
    labels.push_back(names.of(static_cast<EventId>(i)));
    predicted.push_back((p.end - p.arrive).seconds());
    found.push_back((m.end - m.arrive).seconds());
  }
  return {{"kind", std::move(kinds)}, {"name", std::move(labels)}, {"predicted_s", std::move(predicted)},
      {"measured_s", std::move(found)}};
}

}
