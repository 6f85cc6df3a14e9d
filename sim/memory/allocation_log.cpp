// The graph's log is flattened once (negative: freed), so that each step of a replay is a plain loop over it. Runs are
// found as those of rows are (sim/simulate/repeats.cpp): the middle micro-batch gives their size, and they go on, both
// ways, as far as every action has its like one run later.
#include "sim/memory/allocation_log.h"

#include <algorithm>

#include "sim/base/error.h"
#include "sim/memory/memory_actions.h"

namespace foreshard {
namespace {

class Flatten {
 public:
  Flatten(const EventGraph& graph, const LibraryBuffers& library, AllocationLog& log)
      : graph_(graph), log_(log), waiting_(library) {}
  // Forward and backward are two threads.
  static EventKind thread_of(MemoryAction::Kind kind) {
    return kind == MemoryAction::Kind::kForward ? EventKind::kForward : EventKind::kBackward;
  }
  bool awaits_product(MemoryAction::Kind kind) const {
    return std::ranges::any_of(
        waiting_, [&](const LibraryBuffer& buffer) { return buffer.first_event == thread_of(kind); });
  }
  void product(MemoryAction::Kind kind) {
    take_if([&](const LibraryBuffer& buffer) { return buffer.first_event == thread_of(kind); }, log_.actions.size());
  }
  // What no product was found for, before the first row of its kind.
  void take_rest() {
    for (std::size_t row = 0; row < graph_.rows.size(); ++row) {
      const EventKind kind = graph_.rows[row].kind;
      take_if([&](const LibraryBuffer& buffer) { return buffer.first_event == kind; }, log_.row_begin[row]);
    }
  }
  void row(EventId row) {
    log_.row_begin.push_back(static_cast<std::uint32_t>(log_.actions.size()));
    if (row != kNoEvent) microbatch_ = graph_.details[static_cast<std::size_t>(row)].microbatch;
  }
  void backward() {
    if (!graph_.host.empties_cache || microbatch_ == emptied_) return;
    log_.empties.push_back(static_cast<std::uint32_t>(log_.actions.size()));
    emptied_ = microbatch_;
  }
  void allocate(std::int32_t buffer) {
    const auto b = static_cast<std::size_t>(buffer);
    for (std::int32_t t = log_.first[b]; t < log_.first[b + 1]; ++t) add(t, 0);
  }
  void free(std::int32_t buffer) { free_recorded(buffer, 0); }
  void free_recorded(std::int32_t buffer, StreamSet streams) {
    const auto b = static_cast<std::size_t>(buffer);
    for (std::int32_t t = log_.first[b]; t < log_.first[b + 1]; ++t) add(~t, streams);
  }
  void store(std::int32_t, MemoryCategory) {}  // only its name changes

 private:
  void add(std::int32_t action, StreamSet streams) {
    log_.actions.push_back(action);
    log_.recorded.push_back(streams);
  }
  void take_if(auto is_meant, std::size_t action) {
    for (const LibraryBuffer& buffer : waiting_) {
      if (!is_meant(buffer)) continue;
      log_.library.push_back(
          {buffer.bytes.count(), static_cast<std::uint8_t>(buffer.stream), static_cast<std::uint32_t>(action)});
    }
    std::erase_if(waiting_, is_meant);
  }
  const EventGraph& graph_;
  AllocationLog& log_;
  LibraryBuffers waiting_;
  std::int32_t microbatch_ = 0, emptied_ = -1;
};

// Adds a tensor of the buffer that was begun last.
void add_tensor(AllocationLog& log, Bytes bytes, Stream pool) {
  log.bytes.push_back(bytes.count());
  log.stream.push_back(static_cast<std::uint8_t>(pool));
  log.buffer.push_back(static_cast<std::int32_t>(log.first.size()) - 1);
}
void begin_buffer(AllocationLog& log) { log.first.push_back(static_cast<std::int32_t>(log.bytes.size())); }

}

AllocationLog allocation_log(const EventGraph& graph, const LibraryBuffers& library, Buckets buckets) {
  AllocationLog log;
  const auto buffers = static_cast<std::size_t>(graph.buffer_count());
  for (auto* list : {&log.first, &log.buffer}) list->reserve(buffers + 1);
  log.bytes.reserve(buffers);
  log.stream.reserve(buffers);
  log.actions.reserve(2 * buffers);
  log.recorded.reserve(2 * buffers);
  for (const LayerExecution& e : graph.executions) {
    for (const Slot& slot : graph.program(e).slots) {
      begin_buffer(log);
      add_tensor(log, slot.bytes, Stream::kCompute);
    }
  }
  FORESHARD_CHECK(static_cast<std::int32_t>(log.first.size()) == graph.first_own_buffer,
      "slots of the executions follow each other");
  for (const Buffer& b : graph.buffers) {
    begin_buffer(log);
    if (b.on_host) continue;
    if (b.parts < 0) add_tensor(log, b.bytes, b.pool);
    else
      for (const Bytes part : graph.parts[static_cast<std::size_t>(b.parts)]) add_tensor(log, part, b.pool);
  }
  log.first.push_back(static_cast<std::int32_t>(log.bytes.size()));

  log.row_begin.reserve(graph.rows.size() + 1);
  Flatten visitor(graph, library, log);
  for_each_action(graph, visitor);
  visitor.row(kNoEvent);
  visitor.take_rest();
  for (std::size_t row = 0; row < graph.rows.size(); ++row) {
    const EventKind kind = graph.rows[row].kind;
    if (kind == EventKind::kOptimizer || kind == EventKind::kHostOptimizer) log.optimizer = static_cast<EventId>(row);
  }
  if (buckets == Buckets::kInArena) return log;
  for (const std::int32_t buffer : graph.persistent) {
    const MemoryCategory category = graph.buffer(buffer).category;
    const bool is_state =
        category == MemoryCategory::kOptimizerState && graph.buffer(buffer).role != BufferRole::kMaster;
    const bool is_bucket =
        category == MemoryCategory::kReduceScatterInput || category == MemoryCategory::kUnshardedGrad;
    std::vector<std::int32_t>& list = is_state && log.optimizer != kNoEvent       ? log.states
                                      : is_bucket && buckets == Buckets::kRebuilt ? log.rebuilt
                                                                                  : log.before;
    const auto b = static_cast<std::size_t>(buffer);
    for (std::int32_t t = log.first[b]; t < log.first[b + 1]; ++t) list.push_back(t);
  }
  return log;
}

AllocationLog::Runs AllocationLog::repeated(const EventGraph& graph) const {
  constexpr std::int32_t kFewest = 4;  // micro-batches, of which some can be left out
  if (graph.rows.empty() || graph.details.back().microbatch + 1 < kFewest) return {};
  // Which action allocated what an action frees; itself where it allocates.
  constexpr std::uint32_t kBefore = ~std::uint32_t{0};
  std::vector<std::uint32_t> allocated_by(bytes.size(), kBefore), partner(actions.size());
  for (std::uint32_t i = 0; i < actions.size(); ++i) {
    const std::int32_t action = actions[i];
    std::uint32_t& by = allocated_by[static_cast<std::size_t>(action >= 0 ? action : ~action)];
    if (action >= 0) by = i;
    partner[i] = by;
  }
  const std::int32_t middle = (graph.details.back().microbatch + 1) / 2;
  const auto first_of = [&](std::int32_t microbatch) {
    const auto row = std::ranges::find(graph.details, microbatch, &RowDetail::microbatch);
    return row_begin[static_cast<std::size_t>(row - graph.details.begin())];
  };
  Runs runs;
  const std::uint32_t at = first_of(middle);
  runs.size = first_of(middle + 1) - at;
  const auto is_like_later = [&](std::uint32_t i) {
    const std::uint32_t later = i + runs.size;
    const std::int32_t a = actions[i], b = actions[later];
    if ((a >= 0) != (b >= 0) || recorded[i] != recorded[later]) return false;
    const auto t = static_cast<std::size_t>(a >= 0 ? a : ~a);
    const auto u = static_cast<std::size_t>(b >= 0 ? b : ~b);
    return bytes[t] == bytes[u] && stream[t] == stream[u] && partner[i] != kBefore &&
           partner[i] + runs.size == partner[later];
  };
  if (runs.size == 0) return {};
  std::uint32_t begin = at, end = at;
  while (end + runs.size < actions.size() && is_like_later(end)) ++end;
  if (end == at) return {};
  while (begin > 0 && is_like_later(begin - 1)) --begin;
  runs.begin = at - (at - begin) / runs.size * runs.size;
  runs.count = (end + runs.size - runs.begin) / runs.size;
  for (std::uint32_t run = 0; run <= runs.count; ++run)
    if (!std::ranges::binary_search(row_begin, runs.at(run))) return {};
  return runs;
}

}
