// One capture at a time, as the log has it. Of each of its streams it is known how much of every
// other one is done where its next work begins; the capture may end once its first stream is
// behind all work of all others.
#include "exec/null/stream_capture.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "exec/null/device.h"
#include "exec/null/log.h"
#include "exec/null/races.h"
#include "exec/null/record.h"
#include "exec/null/state.h"

namespace foreshard::null {
namespace {

enum CaptureMode : int { kGlobal = 0, kThread = 1, kRelaxed = 2 };

using Clock = std::map<std::uint64_t, std::int64_t>;  // work done, by stream

struct State {
  std::mutex mutex;
  std::uint64_t first = 0;
  int mode = kGlobal;
  bool is_valid = true;
  std::map<std::uint64_t, Clock> streams;
  std::map<EventHandle, Clock> events;
};
std::atomic<bool> captures{false};
thread_local bool is_own = false;  // this thread began the capture
thread_local int thread_mode = kGlobal;

void join(Clock& into, const Clock& other) {
  for (const auto& [stream, work] : other) into[stream] = std::max(into[stream], work);
}

Status fault(Status status, std::string_view what) {
  const std::string place = python_place();
  report_fault(std::string(what) + (place.empty() ? "" : " (" + place + ")"));
  const Held<State> s;
  s->is_valid = false;
  return status;
}

}

Status begin_capture(StreamHandle stream, int mode) {
  if (captures) return fault(kCaptureUnmatched, "a capture begins inside a capture");
  if (reinterpret_cast<std::uint64_t>(stream) < 3)
    return fault(kCaptureUnsupported, "the default stream cannot be captured");
  State& s = state<State>();
  {
    const std::lock_guard lock(s.mutex);
    s.first = stream_key(stream);
    s.mode = mode;
    s.is_valid = true;
    s.streams = {{s.first, {}}};
    s.events.clear();
  }
  is_own = true;
  captures = true;
  begin_graph(stream);
  return kSuccess;
}

Status end_capture(StreamHandle stream, void** graph) {
  State& s = state<State>();
  *graph = nullptr;
  if (!captures || stream_key(stream) != s.first)
    return fault(kCaptureUnmatched, "a capture ends on a stream where none began");
  captures = false;
  is_own = false;
  const std::int64_t made = end_graph();
  check_captured(made);
  std::size_t apart = 0;
  {
    const std::lock_guard lock(s.mutex);
    for (const auto& [of, clock] : s.streams) {
      const auto own = clock.find(of);
      const std::int64_t work = own == clock.end() ? 0 : own->second;
      apart += s.streams[s.first][of] < work ? 1 : 0;
    }
    if (!s.is_valid) return kCaptureInvalidated;
  }
  if (apart > 0) {
    return fault(kCaptureUnjoined, "a capture ends while work of " + std::to_string(apart) +
                                       " of its streams is not joined: an event of each must be "
                                       "waited for by the stream on which it began");
  }
  *graph = reinterpret_cast<void*>(made + 1);
  return kSuccess;
}

bool is_captured(StreamHandle stream) {
  if (!captures) return false;
  return Held<State>()->streams.count(stream_key(stream)) != 0;
}

void exchange_capture_mode(int* mode) { std::swap(*mode, thread_mode); }

void capture_work(StreamHandle stream) {
  if (!captures) return;
  const Held<State> s;
  const auto it = s->streams.find(stream_key(stream));
  if (it != s->streams.end()) ++it->second[it->first];
}

void capture_record(EventHandle event, StreamHandle stream) {
  if (!captures) return;
  const Held<State> s;
  const auto it = s->streams.find(stream_key(stream));
  if (it == s->streams.end()) s->events.erase(event);
  else s->events[event] = it->second;
}

Status capture_wait(StreamHandle stream, EventHandle event) {
  if (!captures) return kSuccess;
  State& s = state<State>();
  bool is_outside = false, is_legacy = false;
  {
    const std::lock_guard lock(s.mutex);
    const std::uint64_t key = stream_key(stream);
    const auto of = s.events.find(event);
    is_outside = of == s.events.end() && s.streams.count(key) != 0 && is_recorded(event);
    is_legacy = of != s.events.end() && reinterpret_cast<std::uint64_t>(stream) < 3;
    if (of != s.events.end() && !is_legacy) join(s.streams[key], of->second);
  }
  if (is_outside)
    return fault(kCaptureIsolation, "a stream that is captured waits for an event from outside of the capture");
  if (is_legacy) return fault(kCaptureImplicit, "the default stream waits for an event of a capture");
  return kSuccess;
}

Status refuse_unsafe(std::string_view call) {
  if (!captures || thread_mode == kRelaxed) return kSuccess;
  const bool own = is_own && state<State>().mode != kRelaxed;
  const bool others = thread_mode == kGlobal && state<State>().mode == kGlobal;
  if (!own && !others) return kSuccess;
  return fault(kCaptureUnsupported, std::string(call) + " is called inside a capture");
}

Status refuse_on_captured(std::string_view call, StreamHandle stream) {
  if (!is_captured(stream)) return kSuccess;
  return fault(kCaptureUnsupported, std::string(call) + " is called on a stream that is captured");
}

Status refuse_on_captured_event(std::string_view call, EventHandle event) {
  if (!captures) return kSuccess;
  bool is_of_capture = false;
  {
    const Held<State> s;
    is_of_capture = s->events.count(event) != 0;
  }
  return is_of_capture ? fault(kCaptureUnsupported, std::string(call) + " asks an event of a capture")
                       : refuse_unsafe(call);
}

}
