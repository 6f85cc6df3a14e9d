// Replay in host order. peak_allocated uses the swing of each layer phase (its highest point and
// its sum), which is exact for the total because a phase's actions are consecutive;
// replay_allocations walks every single action.
#include "sim/memory/memory_profile.h"

#include <algorithm>

#include "sim/base/error.h"

namespace foreshard {
namespace {

using Kind = MemoryAction::Kind;

const LayerPhaseProgram& phase_of(const EventGraph& graph, const MemoryAction& action) {
  const LayerProgram& program =
      graph.program(graph.executions[static_cast<std::size_t>(action.target)]);
  switch (action.kind) {
    case Kind::kForward:
      return program.forward;
    case Kind::kRecompute:
      return program.recompute;
    case Kind::kBackward:
      return program.backward;
    case Kind::kFreeGradients:
      return program.free_gradients;
    case Kind::kFreeLastGradient:
      return program.free_last_gradient;
    case Kind::kAllocate:
    case Kind::kFree:
      break;
  }
  FORESHARD_CHECK(false, "not a layer's action");
  return program.forward;
}

class Replay {
 public:
  explicit Replay(const EventGraph& graph)
      : graph_(graph), since_(static_cast<std::size_t>(graph.buffer_count()), kDead) {}

  MemoryProfile run() {
    for (std::int32_t buffer : graph_.persistent) allocate(buffer);
    profile_.at_start = now_;
    profile_.samples.reserve(graph_.rows.size());
    profile_.by_category.reserve(graph_.rows.size());
    for (std::size_t row = 0; row < graph_.rows.size(); ++row) {
      row_ = static_cast<EventId>(row);
      row_peak_ = now_;
      const RowDetail& detail = graph_.details[row];
      for (std::uint32_t a = detail.actions_begin; a < detail.actions_end; ++a) {
        apply(graph_.actions[a]);
      }
      profile_.samples.push_back({now_, row_peak_});
      profile_.by_category.push_back(categories_);
    }
    FORESHARD_CHECK(now_ == profile_.at_start, "a buffer outlives the step");
    return std::move(profile_);
  }

  // Stops at the action that reached the peak and lists who is alive there.
  std::vector<LiveBuffer> alive_at(std::int64_t action_number) {
    stop_after_ = action_number;
    run_until_stop();
    std::vector<LiveBuffer> alive;
    for (std::int32_t b = 0; b < graph_.buffer_count(); ++b) {
      const EventId since = since_[static_cast<std::size_t>(b)];
      if (since != kDead) alive.push_back({b, graph_.buffer(b).bytes, since});
    }
    std::stable_sort(alive.begin(), alive.end(),
                     [](const LiveBuffer& a, const LiveBuffer& b) { return a.bytes > b.bytes; });
    return alive;
  }

  std::int64_t peak_action() const { return peak_action_; }

 private:
  static constexpr EventId kDead = -2;

  void run_until_stop() {
    for (std::int32_t buffer : graph_.persistent) allocate(buffer);
    for (std::size_t row = 0; row < graph_.rows.size() && !stopped_; ++row) {
      row_ = static_cast<EventId>(row);
      const RowDetail& detail = graph_.details[row];
      for (std::uint32_t a = detail.actions_begin; a < detail.actions_end && !stopped_; ++a) {
        apply(graph_.actions[a]);
      }
    }
  }

  void apply(const MemoryAction& action) {
    if (action.kind == Kind::kAllocate) return allocate(action.target);
    if (action.kind == Kind::kFree) return free(action.target);
    const LayerExecution& e = graph_.executions[static_cast<std::size_t>(action.target)];
    for (std::int32_t step : phase_of(graph_, action).actions) {
      if (stopped_) return;
      if (step > 0) {
        allocate(e.first_buffer + step - 1);
      } else {
        free(e.first_buffer - step - 1);
      }
    }
  }

  void allocate(std::int32_t id) {
    EventId& since = since_[static_cast<std::size_t>(id)];
    FORESHARD_CHECK(since == kDead, "buffer " + std::to_string(id) + " is allocated twice");
    since = row_;
    count(id, 1);
  }

  void free(std::int32_t id) {
    EventId& since = since_[static_cast<std::size_t>(id)];
    FORESHARD_CHECK(since != kDead, "buffer " + std::to_string(id) + " is freed but not alive");
    since = kDead;
    count(id, -1);
  }

  void count(std::int32_t id, std::int64_t sign) {
    const Buffer buffer = graph_.buffer(id);
    const auto c = static_cast<std::size_t>(buffer.category);
    categories_[c] += buffer.bytes * sign;
    now_ += buffer.bytes * sign;
    profile_.own_peak[c] = std::max(profile_.own_peak[c], categories_[c]);
    row_peak_ = std::max(row_peak_, now_);
    if (now_ > profile_.peak) {
      profile_.peak = now_;
      profile_.peak_event = row_;
      profile_.at_peak = categories_;
      peak_action_ = actions_;
    }
    stopped_ = actions_++ == stop_after_;
  }

  const EventGraph& graph_;
  MemoryProfile profile_;
  std::vector<EventId> since_;  // kDead: not alive
  CategoryBytes categories_{};
  Bytes now_;
  Bytes row_peak_;
  EventId row_ = kNoEvent;
  std::int64_t actions_ = 0;
  std::int64_t peak_action_ = -1;
  std::int64_t stop_after_ = -1;
  bool stopped_ = false;
};

}  // namespace

MemoryProfile replay_allocations(const EventGraph& graph) {
  Replay replay(graph);
  MemoryProfile profile = replay.run();
  profile.alive_at_peak = Replay(graph).alive_at(replay.peak_action());
  return profile;
}

Bytes peak_allocated(const EventGraph& graph) {
  std::int64_t now = 0;
  for (std::int32_t b : graph.persistent) {
    now += graph.buffers[static_cast<std::size_t>(b - graph.first_own_buffer)].bytes.count();
  }
  std::int64_t peak = now;
  for (const MemoryAction& action : graph.actions) {
    if (action.kind == Kind::kAllocate || action.kind == Kind::kFree) {
      const std::int64_t bytes =
          graph.buffers[static_cast<std::size_t>(action.target - graph.first_own_buffer)]
              .bytes.count();
      now += action.kind == Kind::kAllocate ? bytes : -bytes;
      peak = std::max(peak, now);
    } else {
      const MemorySwing& swing = phase_of(graph, action).swing;
      peak = std::max(peak, now + swing.peak);
      now += swing.net;
    }
  }
  return Bytes(peak);
}

}  // namespace foreshard
