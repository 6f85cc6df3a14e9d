// Replay in host order. peak_allocated uses the swing of each layer phase (its highest point and its sum), which is
// exact for the total because a phase's actions are consecutive; replay_allocations walks every single action.
#include "sim/memory/memory_profile.h"

#include <algorithm>

#include "sim/base/error.h"
#include "sim/base/lookup.h"
#include "sim/memory/memory_actions.h"

namespace foreshard {
namespace {

class Replay {
 public:
  explicit Replay(const EventGraph& graph) : graph_(graph), alive_(at(graph.buffer_count())) {
    // All by id: an execution's slots have no table of their own.
    buffers_.reserve(alive_.size());
    for (const LayerExecution& e : graph.executions)
      for (const Slot& slot : graph.program(e).slots)
        buffers_.push_back({slot.category, Stream::kCompute, e.unit, slot.bytes, -1, false});
    append(buffers_, graph.buffers);
  }

  void allocate(std::int32_t id) {
    if (stopped_) return;
    Alive& alive = alive_[at(id)];
    FORESHARD_CHECK(alive.since == kDead, "buffer " + std::to_string(id) + " is allocated twice");
    const Buffer& buffer = buffers_[at(id)];
    alive = {row_, buffer.category};
    count(buffer, buffer.category, 1);
  }

  void free(std::int32_t id) {
    if (stopped_) return;
    Alive& alive = alive_[at(id)];
    FORESHARD_CHECK(alive.since != kDead, "buffer " + std::to_string(id) + " is freed but not alive");
    alive.since = kDead;
    count(buffers_[at(id)], alive.category, -1);
  }

  void store(std::int32_t id, MemoryCategory stored) {
    if (stopped_) return;
    Alive& alive = alive_[at(id)];
    FORESHARD_CHECK(alive.since != kDead, "a buffer is stored that is not alive");
    const Buffer& buffer = buffers_[at(id)];
    if (buffer.on_host || stored == alive.category) return;
    categories_[at(alive.category)] -= buffer.bytes;
    alive.category = stored;
    const auto c = at(stored);
    categories_[c] += buffer.bytes;
    profile_.own_peak[c] = std::max(profile_.own_peak[c], categories_[c]);
  }

  MemoryProfile run() {
    for (std::int32_t buffer : graph_.persistent) allocate(buffer);
    profile_.at_start = now_;
    profile_.samples.reserve(graph_.rows.size());
    profile_.by_category.reserve(graph_.rows.size());
    for_each_action(graph_, *this);
    end_row();
    FORESHARD_CHECK(now_ == profile_.at_start, "outlives the step: " + left_alive());
    return std::move(profile_);
  }

  void row(EventId id) {
    if (row_ != kNoEvent) end_row();
    row_ = id;
    row_peak_ = now_;
  }

  // Stops at the action that reached the peak, one of `row`'s, and lists who is alive there.
  std::vector<LiveBuffer> alive_at(std::int64_t action_number, EventId row) {
    stop_after_ = action_number;
    for (std::int32_t buffer : graph_.persistent) allocate(buffer);
    for_each_action(graph_, *this, at(row + 1));
    std::vector<LiveBuffer> alive;
    for (std::int32_t b = 0; b < graph_.buffer_count(); ++b) {
      const EventId since = alive_[at(b)].since;
      if (since == kDead || graph_.buffer(b).on_host) continue;
      alive.push_back({b, graph_.buffer(b).bytes, since});
    }
    std::ranges::stable_sort(alive, std::greater(), &LiveBuffer::bytes);
    return alive;
  }

  std::int64_t peak_action() const { return peak_action_; }

 private:
  static constexpr EventId kDead = -2;

  std::string left_alive() const {
    for (std::int32_t b = 0; b < graph_.buffer_count(); ++b)
      if (alive_[at(b)].since >= 0) return graph_.buffer_name(b);
    return "nothing, but something was freed that lived before it";
  }

  void end_row() {
    if (row_ == kNoEvent) return;
    profile_.samples.push_back({now_, row_peak_});
    profile_.by_category.push_back(categories_);
  }

  void count(const Buffer& buffer, MemoryCategory category, std::int64_t sign) {
    if (buffer.on_host) {
      host_ += buffer.bytes * sign;
      profile_.host_peak = std::max(profile_.host_peak, host_);
      return;
    }
    const auto c = at(category);
    const auto pool = at(buffer.pool);
    categories_[c] += buffer.bytes * sign;
    pools_[pool] += buffer.bytes * sign;
    now_ += buffer.bytes * sign;
    profile_.own_peak[c] = std::max(profile_.own_peak[c], categories_[c]);
    profile_.pool_peak[pool] = std::max(profile_.pool_peak[pool], pools_[pool]);
    row_peak_ = std::max(row_peak_, now_);
    if (now_ > profile_.peak) {
      profile_.peak = now_;
      profile_.peak_event = row_;
      profile_.at_peak = categories_;
      peak_action_ = actions_;
    }
    stopped_ = actions_++ == stop_after_;
  }

  struct Alive {
    EventId since = kDead;
    MemoryCategory category = MemoryCategory::kActivation;
  };
  const EventGraph& graph_;
  MemoryProfile profile_;
  std::vector<Buffer> buffers_;
  std::vector<Alive> alive_;
  std::array<Bytes, kStreams> pools_{};
  Bytes host_;
  CategoryBytes categories_{};
  Bytes now_;
  Bytes row_peak_;
  EventId row_ = kNoEvent;
  std::int64_t actions_ = 0;
  std::int64_t peak_action_ = -1;
  std::int64_t stop_after_ = -1;
  bool stopped_ = false;
};

}

MemoryProfile replay_allocations(const EventGraph& graph) {
  Replay replay(graph);
  MemoryProfile profile = replay.run();
  profile.alive_at_peak = Replay(graph).alive_at(replay.peak_action(), profile.peak_event);
  return profile;
}

Bytes peak_allocated(const EventGraph& graph) {
  std::int64_t now = 0;
  for (std::int32_t b : graph.persistent) {
    const Buffer& buffer = graph.buffers[at(b - graph.first_own_buffer)];
    if (!buffer.on_host) now += buffer.bytes.count();
  }
  std::int64_t peak = now;
  const Buffer* const own = graph.buffers.data();
  const auto size = [&](std::int32_t id) {
    const std::int32_t i = id - graph.first_own_buffer;
    if (i < 0) return graph.buffer(id).bytes.count();  // a layer's, on the device
    return own[i].on_host ? 0 : own[i].bytes.count();
  };
  using Kind = MemoryAction::Kind;
  for (const MemoryAction& action : graph.actions) {
    if (action.kind == Kind::kAllocate) {
      now += size(action.target);
      peak = std::max(peak, now);
    } else if (action.kind == Kind::kFree) {
      now -= size(action.target);
    } else if (action.kind != Kind::kStore && action.kind != Kind::kKeep) {
      const LayerProgram& program = graph.program(graph.executions[at(action.target)]);
      const LayerPhaseProgram& phase = phase_of(program, action);
      const MemorySwing swing = swing_of(phase, action);
      peak = std::max(peak, now + swing.peak);
      now += swing.net;
    }
  }
  return Bytes(peak);
}

}
