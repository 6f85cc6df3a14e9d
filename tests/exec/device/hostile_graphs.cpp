// A capture keeps what lanes are given instead of queueing it. A replay queues it on lanes of the
// graph's own, behind what the replaying lane has, and before what it gets next: as a graph on a
// GPU, it is ordered with no other lane's work.
#include <exception>
#include <mutex>
#include <stdexcept>

#include "tests/exec/device/hostile_parts.h"

namespace foreshard {

HostileGpu::Graph* HostileGpu::capture(HostileLane lane, const std::function<void()>& work) {
  synchronize();
  {
    const std::lock_guard lock(mutex_);
    if (capture_ != nullptr) throw std::runtime_error("work is captured already");
    capture_ = std::make_unique<Capture>();
    capture_->thread = std::this_thread::get_id();
    capture_->origin = lane;
    capture_->graph = std::make_unique<Graph>();
    capture_->graph->first = capture_->lanes[lane] = add_lane();
  }
  std::exception_ptr failure;
  try {
    work();
  } catch (...) {
    failure = std::current_exception();
  }
  const std::lock_guard lock(mutex_);
  const std::unique_ptr<Capture> capture = std::move(capture_);
  for (const auto& [joined, clock] : capture->clocks) {
    if (failure == nullptr && clock.of(joined) > capture->clocks[lane].of(joined)) {
      failure = std::make_exception_ptr(
          std::runtime_error("a capture ends while its work on lane " + std::to_string(joined) + " is not waited for"));
    }
  }
  if (failure == nullptr) return capture->graph.release();
  for (Block* block : capture->graph->blocks) {
    block->in_graph = false;
    if (block->returned) lanes_[static_cast<std::size_t>(block->lane)].given_back.push_back(block);
  }
  std::rethrow_exception(failure);
}

void HostileGpu::replay(HostileLane lane, Graph* graph) {
  not_in_capture("a replay");
  const std::lock_guard lock(mutex_);
  push_wait(graph->first, push_mark(lane));
  for (const HostileCall& call : graph->calls) {
    switch (call.kind) {
      case HostileCall::Kind::kWork: push_work(call.lane, call.name, call.extents, call.work); break;
      case HostileCall::Kind::kRecord: call.event->mark = push_mark(call.lane); break;
      case HostileCall::Kind::kWait: push_wait(call.lane, call.event->mark); break;
    }
  }
  push_wait(lane, push_mark(graph->first));
  some_progress();
}

void HostileGpu::free_graph(Graph* graph) noexcept {
  std::unique_lock lock(mutex_);
  try {
    run_all(lock);
  } catch (...) {  // whoever waits for that work is told
  }
  for (Block* block : graph->blocks) {
    block->in_graph = false;
    if (block->returned) {
      memory_.unmark_freed(block->memory);
      memory_.put(block->memory);
      delete block;
    }
  }
  delete graph;
}

}
