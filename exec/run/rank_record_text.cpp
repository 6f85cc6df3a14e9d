// 64-bit integers one after the other; both sides are the same program on the same kind of machine.
#include "exec/run/rank_record_text.h"

#include <cstring>

#include "sim/base/error.h"

namespace foreshard {
namespace {

class Writer {
 public:
  Writer& add(std::int64_t value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  Writer& add(Time time) { return add(time.nanoseconds()); }
  Writer& add(Bytes bytes) { return add(bytes.count()); }
  Writer& add(const std::vector<Time>& times) {
    add(std::ssize(times));
    for (const Time time : times) add(time);
    return *this;
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}
  std::int64_t number() {
    std::int64_t value = 0;
    FORESHARD_CHECK(bytes_.size() >= sizeof value, "a rank's record is cut off");
    std::memcpy(&value, bytes_.data(), sizeof value);
    bytes_.remove_prefix(sizeof value);
    return value;
  }
  Time time() { return Time::ns(number()); }
  Bytes bytes() { return Bytes(number()); }
  std::vector<Time> times() {
    std::vector<Time> list(at(number()));
    for (Time& t : list) t = time();
    return list;
  }

 private:
  std::string_view bytes_;
};

}  // namespace

std::string to_bytes(const RankRecord& r) {
  Writer out;
  out.add(r.rank).add(std::int64_t{r.clocks_shared}).add(r.step_durations);
  out.add(std::ssize(r.timelines));
  for (const MeasuredStep& step : r.timelines) {
    out.add(step.step).add(step.begin).add(step.duration);
    out.add(std::ssize(step.spans));
    for (const Span& s : step.spans) out.add(s.issue).add(s.start).add(s.arrive).add(s.end);
  }
  out.add(r.rss_before_init).add(r.rss_after_init).add(r.peak_rss);
  out.add(r.arena).add(r.activations_peak).add(r.device_reserved).add(r.device_used);
  return out.take();
}

RankRecord rank_record_of(std::string_view bytes) {
  Reader in(bytes);
  RankRecord r;
  r.rank = static_cast<int>(in.number());
  r.clocks_shared = in.number() != 0;
  r.step_durations = in.times();
  r.timelines.resize(at(in.number()));
  for (MeasuredStep& step : r.timelines) {
    step.step = in.number();
    step.begin = in.time();
    step.duration = in.time();
    step.spans.resize(at(in.number()));
    for (Span& s : step.spans) {
      s.issue = in.time();
      s.start = in.time();
      s.arrive = in.time();
      s.end = in.time();
    }
  }
  r.rss_before_init = in.bytes();
  r.rss_after_init = in.bytes();
  r.peak_rss = in.bytes();
  r.arena = in.bytes();
  r.activations_peak = in.bytes();
  r.device_reserved = in.bytes();
  r.device_used = in.bytes();
  return r;
}

}  // namespace foreshard
