// Vector clocks: of each stream, how far every stream is known to be done where its next work
// begins. Recording an event keeps its stream's clock, a wait joins it; what the host knows joins
// every work that it gives out later. Host threads share one clock, for queues order them; threads
// that never give out work (watchdogs that ask events) do not add to it.
//
// A block is what an allocator handed out. It keeps who used it, by range; once it is taken back
// its users are kept by address until the memory's next holder is first used, which must be
// ordered behind all of them. Memory of cudaMalloc itself is a block until an allocator hands out
// parts of it; its layout is the program's own, so that of a range without a known end no more
// than its first byte is looked at.
//
// Work that is captured is looked at as it is captured, and again at every launch of its graph, all
// of it on the launching stream, with the waits and records of events from outside.
#include "exec/null/races.h"

#include <cxxabi.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "exec/null/device.h"
#include "exec/null/log.h"
#include "exec/null/record.h"
#include "exec/null/state.h"
#include "exec/null/stream_capture.h"

namespace foreshard::null {
namespace {

constexpr unsigned kNonBlocking = 1;  // cudaStreamNonBlocking
constexpr std::size_t kMostTold = 100;

using Clock = std::map<std::uint64_t, std::int64_t>;  // by stream

void join(Clock& into, const Clock& other) {
  for (const auto& [stream, place] : other) {
    std::int64_t& known = into[stream];
    known = std::max(known, place);
  }
}

struct Access {
  std::uint64_t begin = 0, end = 0;
  std::uint64_t stream = 0;
  std::int64_t place = 0;   // in the stream
  std::int64_t name = 0;    // of the kernel
  std::int64_t source = 0;  // name_id of python_place
  bool writes = false;
};

struct Block {
  std::uint64_t end = 0;
  bool is_plain = false;  // of cudaMalloc
  bool is_used = false;
  std::vector<Access> before;  // of the memory's holders before, until it is used
  std::vector<Access> users;
};

struct Left {
  std::uint64_t end = 0;
  std::vector<Access> users;
};

// What a graph does at every launch.
struct Node {
  std::int64_t name = 0;
  std::vector<Use> uses;
  EventHandle waits = nullptr, records = nullptr;  // from outside
};

struct State {
  std::mutex mutex;
  std::map<std::int64_t, std::vector<Node>> graphs;
  std::vector<Node> captured;  // of the graph that is
  std::unordered_map<std::uint64_t, Clock> streams;
  std::unordered_map<std::uint64_t, Clock> events;
  std::set<std::uint64_t> blocking;  // streams that the legacy default stream waits for
  Clock host;
  std::map<std::uint64_t, Block> blocks;
  std::map<std::uint64_t, Left> left;  // of memory that nobody holds, by its begin
  std::set<std::string> told;
};
thread_local bool gives_work = false;

std::uint64_t number(const void* pointer) { return reinterpret_cast<std::uint64_t>(pointer); }

bool is_legacy(std::uint64_t stream) { return stream < 0x1000; }

// The clock of a stream for work that is given to it now.
Clock& clock_of(State& s, std::uint64_t stream) {
  Clock& clock = s.streams[stream];
  if (is_legacy(stream)) {
    for (const std::uint64_t other : s.blocking) join(clock, s.streams[other]);
  } else if (s.blocking.count(stream) != 0) {
    for (const auto& [other, of] : s.streams)
      if (is_legacy(other)) join(clock, of);
  }
  join(clock, s.host);
  return clock;
}

bool is_before(const Access& access, const Clock& clock) {
  const auto it = clock.find(access.stream);
  return it != clock.end() && it->second >= access.place;
}

bool overlap(const Access& a, const Access& b) { return a.begin < b.end && b.begin < a.end; }

// The first of `earlier` that is in conflict with `now`.
const Access* conflict(const std::vector<Access>& earlier, const Access& now, const Clock& clock) {
  for (const Access& access : earlier)
    if ((access.writes || now.writes) && overlap(access, now) && !is_before(access, clock)) return &access;
  return nullptr;
}

// Whoever must be ordered behind `now` is then behind what it makes superfluous.
void keep(std::vector<Access>& users, const Access& now, const Clock& clock) {
  users.erase(std::remove_if(users.begin(), users.end(),
                  [&](const Access& old) {
                    return is_before(old, clock) && old.writes <= now.writes && old.begin >= now.begin &&
                           old.end <= now.end;
                  }),
      users.end());
  users.push_back(now);
}

// Adds what `users` did within the range: pieces of memory that are split and joined over and over
// keep each access once.
void add_within(std::vector<Access>& to, const std::vector<Access>& users, std::uint64_t begin, std::uint64_t end) {
  for (Access part : users) {
    part.begin = std::max(part.begin, begin);
    part.end = std::min(part.end, end);
    if (part.begin >= part.end) continue;
    const auto rest = std::find_if(to.begin(), to.end(), [&](const Access& a) {
      return a.stream == part.stream && a.place == part.place && a.writes == part.writes && a.begin <= part.end &&
             part.begin <= a.end;
    });
    if (rest == to.end()) {
      to.push_back(part);
    } else {
      rest->begin = std::min(rest->begin, part.begin);
      rest->end = std::max(rest->end, part.end);
    }
  }
}

struct Fault {
  const char* what;
  Access earlier, now;
  std::uint64_t bytes;
};

// Readable, without arguments, and not endless.
std::string kernel_words(std::int64_t name) {
  constexpr std::size_t kMost = 100;
  std::string text = name_text(name);
  if (text.rfind("_Z", 0) == 0) {
    int status = 0;
    const std::unique_ptr<char, void (*)(void*)> readable(
        abi::__cxa_demangle(text.c_str(), nullptr, nullptr, &status), std::free);
    if (status == 0) text = readable.get();
  }
  return text.size() > kMost ? text.substr(0, kMost) + "..." : text;
}

std::string words_of(const Access& access) {
  const std::string source = name_text(access.source);
  return kernel_words(access.name) + " on stream " +
         std::to_string(handle_id(reinterpret_cast<void*>(is_legacy(access.stream) ? 0 : access.stream))) +
         (source.empty() ? " (a thread of autograd or of a library)" : " (" + source + ")");
}

constexpr const char* kGone = "memory is used after it was given back";

void tell(const Fault& fault) {
  std::string key = fault.what;
  for (const std::int64_t part : {fault.earlier.name, fault.earlier.source, fault.now.name, fault.now.source})
    key += ' ' + std::to_string(part);
  {
    const Held<State> s;
    if (s->told.size() >= kMostTold || !s->told.insert(key).second) return;
  }
  report_fault(std::string(fault.what) + ", " + std::to_string(fault.bytes) + " bytes: " + words_of(fault.now) +
               (fault.what == kGone ? "; used before by " : " is not ordered behind ") + words_of(fault.earlier));
}

Block* block_of(State& s, std::uint64_t at) {
  auto it = s.blocks.upper_bound(at);
  if (it == s.blocks.begin()) return nullptr;
  --it;
  return at < it->second.end ? &it->second : nullptr;
}

// Who used memory of the device last that nobody holds now.
const Access* last_of_gone(const State& s, std::uint64_t at) {
  if (!is_device(reinterpret_cast<const void*>(at))) return nullptr;
  auto it = s.left.upper_bound(at);
  if (it == s.left.begin()) return nullptr;
  --it;
  const Left& left = it->second;
  return at < left.end && !left.users.empty() ? &left.users.back() : nullptr;
}

std::vector<Fault> faults_of(State& s, const Access& work, const std::vector<Use>& uses) {
  std::vector<Fault> faults;
  const Clock& clock = s.streams[work.stream];
  // One work may use a block several times: it is judged by what was there before it.
  std::vector<std::pair<Block*, Access>> made;
  for (const Use& use : uses) {
    Access now = work;
    now.begin = use.at;
    now.writes = use.kind == Use::Kind::kWrites;
    Block* const block = block_of(s, use.at);
    if (block == nullptr) {
      // Of kernels' lists of tensors, the places behind the last hold what was there before.
      const Access* const last = use.bytes > 0 ? last_of_gone(s, use.at) : nullptr;
      if (last != nullptr) faults.push_back({kGone, *last, now, use.bytes});
      continue;
    }
    if (!use.is_sure) {
      // Somebody may have made it.
      block->is_used = true;
      block->before.clear();
      continue;
    }
    const std::uint64_t bytes = use.bytes > 0 ? use.bytes : block->is_plain ? 1 : block->end;
    now.end = std::min(block->end, use.at + bytes);
    if (!block->is_used) {
      now.writes = use.kind != Use::Kind::kReads;
      Access any = now;
      any.writes = true;
      if (const Access* const with = conflict(block->before, any, clock))
        faults.push_back({"memory is handed out while a stream still needs it", *with, now, now.end - now.begin});
    } else if (const Access* const with = conflict(block->users, now, clock)) {
      const char* const what = !with->writes ? "memory is written while it is still read"
                               : now.writes  ? "memory is written twice at once"
                                             : "a tensor is used before it is made";
      faults.push_back({what, *with, now, now.end - now.begin});
    }
    made.emplace_back(block, now);
  }
  for (const auto& [block, now] : made) {
    block->is_used = true;
    block->before.clear();
    keep(block->users, now, clock);
  }
  return faults;
}

// The stream's next work.
Access next_work(State& s, std::uint64_t stream, std::int64_t name, std::int64_t source) {
  Access work;
  work.stream = stream;
  work.place = ++clock_of(s, stream)[stream];
  work.name = name;
  work.source = source;
  return work;
}

}

bool checks_races() {
  static const bool checks = [] {
    const char* said = std::getenv("FORESHARD_NULL_CHECK");
    return said != nullptr && std::string_view(said) == "1";
  }();
  return checks;
}

Use reads(const void* at, std::uint64_t bytes) { return {number(at), bytes, Use::Kind::kReads}; }
Use writes(const void* at, std::uint64_t bytes) { return {number(at), bytes, Use::Kind::kWrites}; }

void check_work(StreamHandle stream, std::int64_t name, const std::vector<Use>& uses) {
  if (!checks_races()) return;
  gives_work = true;
  // Before the lock: asking Python may wait for a thread that waits for the lock.
  const std::int64_t source = note_place();
  const bool is_of_graph = is_captured(stream);
  std::vector<Fault> faults;
  State& s = state<State>();
  {
    const std::lock_guard lock(s.mutex);
    faults = faults_of(s, next_work(s, stream_key(stream), name, source), uses);
    if (is_of_graph) s.captured.push_back({name, uses, nullptr, nullptr});
  }
  for (const Fault& fault : faults) tell(fault);
}

void check_captured(std::int64_t graph) {
  if (!checks_races()) return;
  const Held<State> s;
  s->graphs[graph] = std::exchange(s->captured, {});
}

void check_graph(std::int64_t graph, StreamHandle stream) {
  if (!checks_races()) return;
  gives_work = true;
  const std::int64_t source = note_place();
  std::vector<Fault> faults;
  State& s = state<State>();
  {
    const std::lock_guard lock(s.mutex);
    const std::uint64_t key = stream_key(stream);
    for (const Node& node : s.graphs[graph]) {
      if (node.waits != nullptr) {
        const auto it = s.events.find(number(node.waits));
        if (it != s.events.end()) join(s.streams[key], it->second);
        continue;
      }
      if (node.records != nullptr) {
        s.events[number(node.records)] = clock_of(s, key);
        continue;
      }
      // What was freed within the capture is the graph's own.
      std::vector<Use> held;
      std::copy_if(node.uses.begin(), node.uses.end(), std::back_inserter(held),
          [&](const Use& use) { return block_of(s, use.at) != nullptr; });
      std::vector<Fault> more = faults_of(s, next_work(s, key, node.name, source), held);
      faults.insert(faults.end(), more.begin(), more.end());
    }
  }
  for (const Fault& fault : faults) tell(fault);
}

void order_stream(StreamHandle stream, unsigned flags) {
  if (!checks_races() || (flags & kNonBlocking) != 0) return;
  const Held<State> s;
  s->blocking.insert(stream_key(stream));
}

void order_record(EventHandle event, StreamHandle stream) {
  if (!checks_races()) return;
  const Held<State> s;
  s->events[number(event)] = clock_of(*s, stream_key(stream));
}

void order_outside(StreamHandle stream, EventHandle event, Outside what) {
  if (!checks_races() || !is_captured(stream)) return;
  const Held<State> s;
  Node node;
  (what == Outside::kWaits ? node.waits : node.records) = event;
  s->captured.push_back(std::move(node));
}

void order_wait(StreamHandle stream, EventHandle event) {
  if (!checks_races()) return;
  const Held<State> s;
  const auto it = s->events.find(number(event));
  if (it != s->events.end()) join(s->streams[stream_key(stream)], it->second);
}

void order_host_event(EventHandle event) {
  if (!checks_races() || !gives_work) return;
  const Held<State> s;
  const auto it = s->events.find(number(event));
  if (it != s->events.end()) join(s->host, it->second);
}

void order_host_stream(StreamHandle stream) {
  if (!checks_races() || !gives_work) return;
  const Held<State> s;
  join(s->host, clock_of(*s, stream_key(stream)));
}

void order_host_all() {
  if (!checks_races()) return;
  const Held<State> s;
  for (const auto& [stream, clock] : s->streams) join(s->host, clock);
}

void hand_out(const void* at, std::uint64_t bytes, Holder holder) {
  if (!checks_races()) return;
  const Held<State> s;
  const std::uint64_t begin = number(at);
  if (holder == Holder::kAllocator) {
    const Block* const around = block_of(*s, begin);
    if (around != nullptr && around->is_plain) s->blocks.erase(std::prev(s->blocks.upper_bound(begin)));
  }
  Block block;
  block.end = begin + bytes;
  // Nothing is known of who writes first in a layout that is not known.
  block.is_plain = block.is_used = holder == Holder::kProgram;
  auto it = s->left.upper_bound(begin);
  if (it != s->left.begin() && std::prev(it)->second.end > begin) --it;
  while (it != s->left.end() && it->first < block.end) {
    const std::uint64_t from = it->first;
    Left left = std::move(it->second);
    it = s->left.erase(it);
    add_within(block.before, left.users, begin, block.end);
    // What lies beside the block stays.
    const auto keep_part = [&](std::uint64_t part, std::uint64_t end) {
      Left& beside = s->left[part] = {end, {}};
      add_within(beside.users, left.users, part, end);
    };
    if (from < begin) keep_part(from, begin);
    if (left.end > block.end) keep_part(block.end, left.end);
  }
  s->blocks[begin] = std::move(block);
}

void take_back(const void* at) {
  if (!checks_races()) return;
  const Held<State> s;
  const auto it = s->blocks.find(number(at));
  if (it == s->blocks.end()) return;
  Block& block = it->second;
  s->left[it->first] = {block.end, std::move(block.is_used ? block.users : block.before)};
  s->blocks.erase(it);
}

void report_fault(std::string_view what) {
  log_fault(what);
  const std::string text = "foreshard-null: " + std::string(what) + "\n";
  if (::write(STDERR_FILENO, text.data(), text.size()) < 0) return;
}

}
