// Memory is cut into spans at the borders of all extents seen; each knows its last writer and who
// has read since. A writer must be ordered after both, a reader after the writer.
#include "tests/exec/device/access_log.h"

#include <iterator>

namespace foreshard {

void AccessLog::split(const std::byte* at) {
  auto after = spans_.upper_bound(at);
  if (after == spans_.begin()) return;
  const auto span = std::prev(after);
  if (span->first == at || span->second.end <= at) return;
  Span rest = span->second;
  span->second.end = at;
  spans_.emplace(at, std::move(rest));
}

std::optional<std::string> AccessLog::add(
    int lane, const VectorClock& clock, const std::string& name, const Extent& extent) {
  if (extent.bytes == 0) return std::nullopt;
  const std::byte* const end = extent.begin + extent.bytes;
  split(extent.begin);
  split(end);
  const auto is_before = [&](const Access& a) { return a.number <= clock.of(a.lane); };
  const auto sentence = [&](const Access& earlier, const char* did) {
    return name + " on lane " + std::to_string(lane) + (extent.writes ? " writes" : " reads") + " what " +
           earlier.name + " on lane " + std::to_string(earlier.lane) + " " + did + ", and no wait orders them";
  };
  const Access now{lane, clock.of(lane), name};
  const std::byte* at = extent.begin;
  for (auto it = spans_.lower_bound(extent.begin); at < end; ++it) {
    if (it == spans_.end() || it->first > at) {  // never touched
      const std::byte* until = it == spans_.end() ? end : std::min(end, it->first);
      it = spans_.emplace(at, Span{until, std::nullopt, {}}).first;
    }
    Span& span = it->second;
    at = span.end;
    if (span.writer && !is_before(*span.writer)) return sentence(*span.writer, "writes");
    if (!extent.writes) {
      std::erase_if(span.readers, [&](const Access& a) { return a.lane == lane; });
      span.readers.push_back(now);
      continue;
    }
    for (const Access& reader : span.readers) {
      if (!is_before(reader)) return sentence(reader, "reads");
    }
    span.writer = now;
    span.readers.clear();
  }
  return std::nullopt;
}

void AccessLog::forget(const std::byte* begin, std::size_t bytes) {
  split(begin);
  split(begin + bytes);
  spans_.erase(spans_.lower_bound(begin), spans_.lower_bound(begin + bytes));
}

}
