// One walk over the graph's memory actions, halting where the log has an event. Layer phases are walked slot by slot,
// of a segment or of the whole phase; a store action moves bytes from one category to another. Buffers made of several
// storages count part by part in the list of allocations.
#include <algorithm>
#include <string>

#include "reports/conform/conform_parts.h"
#include "sim/base/error.h"
#include "sim/base/lookup.h"
#include "sim/memory/memory_actions.h"

namespace foreshard {
namespace {

// The all-gather's stream allocates nothing of its own.
std::size_t pool_index(const Buffer& buffer) {
  if (buffer.on_host) return kHostPool;
  return value_of<Stream, std::size_t>(
      buffer.pool, {{Stream::kCopyIn, 1}, {Stream::kReduceScatter, 2}, {Stream::kAllReduce, 3}}, 0);
}

class Walk {
 public:
  Walk(const RecordedStep& step, std::int64_t constant)
      : step_(step),
        graph_(step.graph),
        category_(at(graph_.buffer_count())),
        alive_(category_.size(), false),
        padded_again_(category_.size(), false) {
    for (std::int32_t id : step.padded_again) padded_again_[at(id)] = true;
    now_.pools[0] = constant;
    now_.total = constant;
  }

  LoggedMemory run() {
    for (std::int32_t buffer : graph_.persistent) allocate(buffer);
    memory_.allocations.clear();
    begin();
    std::uint32_t action = 0;
    for (const HostEvent& event : step_.log) {
      FORESHARD_CHECK(event.actions >= action && event.actions <= graph_.actions.size(),
          "the log's events are not in the order of the memory actions");
      for (; action < event.actions; ++action) visit_action(graph_, graph_.actions[action], *this);
      memory_.levels.push_back(now_);
      now_.highest = now_.total;
    }
    memory_.end = now_.total;
    return std::move(memory_);
  }

  void allocate(std::int32_t id) {
    mark(id, true);
    const Buffer buffer = buffer_of(id);
    category_[at(id)] = buffer.category;
    const std::size_t pool = pool_index(buffer);
    count(id, buffer, pool, 1);
    raise(memory_.pool_peaks[pool], now_.pools[pool]);
    raise(memory_.category_peaks[at(buffer.category)], level(buffer.category));
    if (pool == kHostPool) return;
    raise(now_.highest, now_.total);
    if (now_.total > memory_.peak) {
      memory_.peak = now_.total;
      memory_.at_peak = now_.categories;
    }
  }

  void free(std::int32_t id) {
    mark(id, false);
    const Buffer buffer = buffer_of(id);
    count(id, buffer, pool_index(buffer), -1);
  }

  void store(std::int32_t id, MemoryCategory stored) { recount(id, stored); }

 private:
  Buffer buffer_of(std::int32_t id) const {
    Buffer buffer = graph_.buffer(id);
    if (padded_again_[at(id)]) {
      buffer.category = MemoryCategory::kActivation;
      buffer.on_host = false;
    }
    return buffer;
  }

  void begin() {
    memory_.peak = now_.total;
    memory_.at_peak = now_.categories;
    memory_.pool_peaks = now_.pools;
    memory_.category_peaks = now_.categories;
    now_.highest = now_.total;
  }

  void recount(std::int32_t id, MemoryCategory category) {
    const std::int64_t bytes = graph_.buffer(id).bytes.count();
    MemoryCategory& now = category_[at(id)];
    level(now) -= bytes;
    now = category;
    level(now) += bytes;
    raise(memory_.category_peaks[at(now)], level(now));
  }

  void mark(std::int32_t id, bool alive) {
    FORESHARD_CHECK(alive_[at(id)] != alive,
        "buffer " + std::to_string(id) + (alive ? " is allocated twice" : " is freed but not alive"));
    alive_[at(id)] = alive;
  }

  void count(std::int32_t id, const Buffer& buffer, std::size_t pool, std::int64_t sign) {
    const MemoryCategory category = category_[at(id)];
    const std::int64_t bytes = buffer.bytes.count() * sign;
    now_.pools[pool] += bytes;
    level(category) += bytes;
    if (pool != kHostPool) now_.total += bytes;
    const auto list = [&](Bytes part) {
      if (part == Bytes()) return;
      memory_.allocations.push_back({static_cast<std::uint32_t>(memory_.levels.size()), sign < 0, part.count(), pool,
          category, id < graph_.first_own_buffer ? -1 : buffer.unit});
    };
    if (buffer.parts < 0) return list(buffer.bytes);
    for (const Bytes part : graph_.parts[at(buffer.parts)]) list(part);
  }

  std::int64_t& level(MemoryCategory category) { return now_.categories[at(category)]; }
  static void raise(std::int64_t& highest, std::int64_t value) { highest = std::max(highest, value); }

  const RecordedStep& step_;
  const EventGraph& graph_;
  LoggedMemory memory_;
  LoggedMemory::Level now_;
  std::vector<MemoryCategory> category_;  // of each buffer alive
  std::vector<bool> alive_;
  std::vector<bool> padded_again_;
};

}

LoggedMemory log_memory(const RecordedStep& step, std::int64_t constant) { return Walk(step, constant).run(); }

}
