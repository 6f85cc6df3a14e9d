// Addresses start at kBase + device * kPerDevice; ranges are handed out first-fit.
//
// Order: each stream counts what it was given and knows how far it is done; a wait keeps
// (own position, other stream, its position), and awaiting a position of a stream awaits what was
// waited for below it. Under `paced` a position has a time at which it is done.
#include "exec/null/device.h"

#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "exec/null/state.h"
#include "exec/null/stream_capture.h"

namespace foreshard::null {
namespace {

// Two small integers side by side are no such address, nor is one that Linux maps.
constexpr std::uint64_t kBase = std::uint64_t{0x6b4d} << 32;
constexpr std::uint64_t kPerDevice = std::uint64_t{1} << 39;
constexpr std::uint64_t kDevices = 16;
constexpr std::uint64_t kPage = std::uint64_t{2} << 20;  // of the driver's small allocations

std::int64_t wall_ns() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return std::int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

enum class Pace : std::uint8_t { kDone, kPending, kPaced };
Pace pace() {
  static const Pace p = [] {
    const char* said = std::getenv("FORESHARD_NULL_EVENTS");
    const std::string_view text = said == nullptr ? "" : said;
    return text == "pending" ? Pace::kPending : text == "paced" ? Pace::kPaced : Pace::kDone;
  }();
  return p;
}

struct Position {
  std::uint64_t stream = 0;
  std::int64_t place = 0;
  std::int64_t ready_ns = 0;  // on the device's own clock
};
struct Wait {
  std::int64_t place;
  Position on;
};
struct StreamState {
  std::int64_t given = 0;
  std::int64_t done = 0;
  std::int64_t ready_ns = 0;
  std::deque<Wait> waits;
};

struct Device {
  std::map<std::uint64_t, std::uint64_t> ranges;
  std::uint64_t used = 0;
};

struct State {
  std::recursive_mutex mutex;
  Device devices[kDevices];
  std::map<std::uint64_t, std::vector<char>> known;
  std::map<std::uint64_t, std::uint64_t> blocks;
  std::unordered_map<std::uint64_t, StreamState> streams;
  std::unordered_map<std::uint64_t, Position> events;
  std::uint64_t next_handle = 0x1000;
};
thread_local int current = 0;
thread_local std::deque<std::int64_t> answers;  // answer_next_read
thread_local bool is_told = false;              // begin_told_operation

std::uint64_t number(const void* pointer) { return reinterpret_cast<std::uint64_t>(pointer); }
void* pointer(std::uint64_t number) { return reinterpret_cast<void*>(number); }

std::uint64_t place_range(Device& device, std::uint64_t first, std::uint64_t bytes) {
  std::uint64_t at = first;
  for (const auto& [begin, size] : device.ranges) {
    if (begin - at >= bytes) break;
    at = begin + size;
  }
  device.ranges[at] = bytes;
  return at;
}

void finish(State& s, std::uint64_t stream, std::int64_t place) {
  StreamState& of = s.streams[stream];
  if (of.done >= place) return;
  of.done = place;
  while (!of.waits.empty() && of.waits.front().place <= place) {
    const Position on = of.waits.front().on;
    of.waits.pop_front();
    finish(s, on.stream, on.place);
  }
}

bool reached(State& s, const Position& p) {
  if (pace() == Pace::kDone || p.stream == 0) return true;
  if (s.streams[p.stream].done >= p.place) return true;
  return pace() == Pace::kPaced && wall_ns() >= p.ready_ns;
}

// A known range that holds all of it; nullptr: none.
const char* find_known(State& s, std::uint64_t at, std::uint64_t bytes) {
  auto it = s.known.upper_bound(at);
  if (it == s.known.begin()) return nullptr;
  --it;
  if (at + bytes > it->first + it->second.size()) return nullptr;
  return it->second.data() + (at - it->first);
}

void forget_range(State& s, std::uint64_t at, std::uint64_t bytes) {
  auto it = s.known.upper_bound(at);
  if (it != s.known.begin()) {
    auto before = std::prev(it);
    if (before->first + before->second.size() > at) it = before;
  }
  while (it != s.known.end() && it->first < at + bytes) it = s.known.erase(it);
}

void remember(State& s, std::uint64_t at, const char* data, std::uint64_t bytes) {
  forget_range(s, at, bytes);
  if (bytes <= kKnownBytes) s.known[at].assign(data, data + bytes);
}

}

int current_device() { return current; }

// The legacy default stream of a device is handle 0; each device has its own.
std::uint64_t stream_key(StreamHandle stream) {
  const std::uint64_t n = number(stream);
  return n < 3 ? n + 16 * static_cast<std::uint64_t>(current + 1) : n;
}

bool set_current_device(int device) {
  if (device < 0 || device >= properties().devices) return false;
  current = device;
  return true;
}

void* allocate(std::uint64_t bytes) {
  const Held<State> s;
  bytes = (std::max<std::uint64_t>(bytes, 1) + 511) / 512 * 512;
  Device& device = s->devices[current];
  if (device.used + bytes > properties().memory) return nullptr;
  device.used += bytes;
  return pointer(place_range(device, kBase + static_cast<std::uint64_t>(current) * kPerDevice, bytes));
}

void release(const void* at) {
  if (at == nullptr) return;
  const Held<State> s;
  Device& device = s->devices[(number(at) - kBase) / kPerDevice % kDevices];
  const auto it = device.ranges.find(number(at));
  if (it == device.ranges.end()) return;
  forget_range(*s, it->first, it->second);
  device.used -= it->second;
  device.ranges.erase(it);
}

FreeMemory memory_left() {
  const Held<State> s;
  return {properties().memory - s->devices[current].used, properties().memory};
}

bool is_device(const void* at) { return number(at) >= kBase && number(at) < kBase + kDevices * kPerDevice; }

void* reserve_addresses(std::uint64_t bytes) {
  const Held<State> s;
  // Beyond what allocate() hands out: addresses, no memory.
  static std::uint64_t next = kBase + kPerDevice * (kDevices / 2);
  const std::uint64_t at = next;
  next += (bytes + kPage - 1) / kPage * kPage;
  return pointer(at);
}
bool take_memory(std::uint64_t bytes) {
  const Held<State> s;
  if (s->devices[current].used + bytes > properties().memory) return false;
  s->devices[current].used += bytes;
  return true;
}
void give_memory(std::uint64_t bytes) {
  const Held<State> s;
  s->devices[current].used -= std::min(s->devices[current].used, bytes);
}

bool copy_bytes(void* to, const void* from, std::uint64_t bytes) {
  if (bytes == 0) return false;
  if (!is_device(to) && !is_device(from)) {
    std::memmove(to, from, bytes);
    return false;
  }
  const Held<State> s;
  if (!is_device(from)) {
    if (bytes <= kKnownBytes) remember(*s, number(to), static_cast<const char*>(from), bytes);
    else forget_range(*s, number(to), bytes);
    return false;
  }
  const char* const known = find_known(*s, number(from), bytes);
  if (is_device(to)) {
    if (known == nullptr) {
      forget_range(*s, number(to), bytes);
    } else {
      const std::vector<char> copy(known, known + bytes);
      remember(*s, number(to), copy.data(), bytes);
    }
    return false;
  }
  if (known != nullptr) {
    std::memcpy(to, known, bytes);
    return false;
  }
  static const bool are_ones = [] {
    const char* said = std::getenv("FORESHARD_NULL_ONES");
    return said != nullptr && *said == '1';
  }();
  std::memset(to, 0, bytes);
  // (Of a float that is the least above zero; of a truth value nothing.)
  if (are_ones && (bytes == 4 || bytes == 8)) *static_cast<char*>(to) = 1;
  if (answers.empty() || bytes > sizeof(std::int64_t)) return true;
  std::memcpy(to, &answers.front(), bytes);
  answers.pop_front();
  return false;
}

bool known_bytes(void* to, const void* device, std::uint64_t bytes) {
  const Held<State> s;
  const char* const known = find_known(*s, number(device), bytes);
  if (known != nullptr) std::memcpy(to, known, bytes);
  return known != nullptr;
}

void answer_next_read(std::int64_t value) { answers.push_back(value); }

void set_bytes(void* to, int value, std::uint64_t bytes) {
  if (!is_device(to)) {
    std::memset(to, value, bytes);
    return;
  }
  const Held<State> s;
  forget_range(*s, number(to), bytes);
  if (bytes <= kKnownBytes) s->known[number(to)].assign(bytes, static_cast<char>(value));
}

void begin_told_operation() { is_told = true; }
void end_told_operation() {
  is_told = false;
  answers.clear();
}

void forget(const void* at, std::uint64_t bytes) {
  const Held<State> s;
  forget_range(*s, number(at), bytes);
}

void add_block(const void* at, std::uint64_t bytes) {
  const Held<State> s;
  s->blocks[number(at)] = bytes;
}
void remove_block(const void* at) {
  const Held<State> s;
  const auto it = s->blocks.find(number(at));
  if (it == s->blocks.end()) return;
  forget_range(*s, it->first, it->second);
  s->blocks.erase(it);
}

Touched touch(const std::uint64_t* words, std::size_t count) {
  const Held<State> s;
  std::map<std::uint64_t, std::uint64_t> parts;  // by block: what is behind the first word in it
  for (std::size_t i = 0; i < count; ++i) {
    if (!is_device(pointer(words[i]))) continue;
    auto it = s->blocks.upper_bound(words[i]);
    if (it == s->blocks.begin() || words[i] >= std::prev(it)->first + std::prev(it)->second) {
      // Memory of cudaMalloc itself: how much of it the kernel writes is not known. In memory that
      // PyTorch's allocator cuts into blocks, the word is what was on the stack before.
      const Device& device = s->devices[(words[i] - kBase) / kPerDevice % kDevices];
      auto range = device.ranges.upper_bound(words[i]);
      if (range != device.ranges.begin()) {
        --range;
        const auto block = s->blocks.lower_bound(range->first);
        const bool is_cut = block != s->blocks.end() && block->first < range->first + range->second;
        if (!is_cut && !is_told) forget_range(*s, range->first, range->second);
      }
      continue;
    }
    --it;
    const std::uint64_t part = it->first + it->second - words[i];
    const auto [known, is_new] = parts.try_emplace(it->first, part);
    known->second = std::max(known->second, part);
    if (is_new && !is_told) forget_range(*s, it->first, it->second);
  }
  std::uint64_t most = 0;  // of the blocks that are given whole
  for (const auto& [block, part] : parts)
    if (part == s->blocks.at(block)) most = std::max(most, part);
  Touched touched;
  for (const auto& [block, part] : parts) {
    const std::uint64_t bytes = most == 0 ? part : std::min(part, most);
    touched.bytes += bytes;
    touched.largest = std::max(touched.largest, bytes);
    ++touched.blocks;
  }
  return touched;
}

void* new_handle() {
  const Held<State> s;
  return pointer(s->next_handle += 16);
}

StreamHandle new_stream() { return new_handle(); }
void delete_stream(StreamHandle stream) {
  const Held<State> s;
  s->streams.erase(stream_key(stream));
}

void enqueue(StreamHandle stream, double nominal_seconds) {
  capture_work(stream);
  const Held<State> s;
  StreamState& of = s->streams[stream_key(stream)];
  ++of.given;
  const std::int64_t now = pace() == Pace::kPaced ? wall_ns() : 0;
  of.ready_ns = std::max(of.ready_ns, now) + static_cast<std::int64_t>(nominal_seconds * 1e9);
}

EventHandle new_event() { return new_handle(); }
void delete_event(EventHandle event) {
  const Held<State> s;
  s->events.erase(number(event));
}

void record_event(EventHandle event, StreamHandle stream) {
  const Held<State> s;
  const std::uint64_t k = stream_key(stream);
  const StreamState& of = s->streams[k];
  s->events[number(event)] = {k, of.given, of.ready_ns};
}

void wait_event(StreamHandle stream, EventHandle event) {
  const Held<State> s;
  const auto it = s->events.find(number(event));
  if (it == s->events.end()) return;  // never recorded: no wait
  StreamState& of = s->streams[stream_key(stream)];
  of.ready_ns = std::max(of.ready_ns, it->second.ready_ns);
  if (pace() != Pace::kDone) of.waits.push_back({++of.given, it->second});
}

bool is_recorded(EventHandle event) {
  const Held<State> s;
  return s->events.count(number(event)) != 0;
}

bool is_done(EventHandle event) {
  const Held<State> s;
  const auto it = s->events.find(number(event));
  return it == s->events.end() || reached(*s, it->second);
}

bool is_idle(StreamHandle stream) {
  const Held<State> s;
  const std::uint64_t k = stream_key(stream);
  return reached(*s, {k, s->streams[k].given, s->streams[k].ready_ns});
}

void await(EventHandle event) {
  const Held<State> s;
  const auto it = s->events.find(number(event));
  if (it != s->events.end()) finish(*s, it->second.stream, it->second.place);
}

void await_stream(StreamHandle stream) {
  const Held<State> s;
  const std::uint64_t k = stream_key(stream);
  finish(*s, k, s->streams[k].given);
}

void await_device() {
  const Held<State> s;
  for (auto& [k, of] : s->streams) {
    of.done = of.given;
    of.waits.clear();
  }
}

double elapsed_ms(EventHandle from, EventHandle to) {
  const Held<State> s;
  const std::int64_t ns = s->events[number(to)].ready_ns - s->events[number(from)].ready_ns;
  return static_cast<double>(std::max<std::int64_t>(ns, 1000)) / 1e6;
}

}
