// Every lane is a queue of work, marks and waits. A host that has to wait takes heads of queues off, one after another,
// in the order that the seed says, until what it waits for is done; nothing else runs them. Orders are held twice: by
// the queues, for what is computed, and by vector clocks, for what is refused.
#include "tests/exec/device/hostile_gpu.h"

#include <cstring>
#include <stdexcept>
#include <thread>
#include <utility>

#include "tests/exec/device/hostile_parts.h"

namespace foreshard {
namespace {

constexpr auto kIssuePatience = std::chrono::seconds(60);  // for what another thread issues

std::size_t index(HostileLane lane) { return static_cast<std::size_t>(lane); }

[[noreturn]] void fault(const std::string& what) { throw std::runtime_error(what); }

}

HostileGpu::HostileGpu(std::uint64_t seed, std::size_t bytes)
    : draw_(seed), draws_anew_(seed % 3 == 2), goes_on_early_(seed % 4 == 3), memory_(bytes) {}

HostileGpu::~HostileGpu() = default;

// --- memory ---

bool HostileGpu::holds(const void* memory) const { return memory_.holds(memory); }
std::byte* HostileGpu::body(const void* memory) const { return memory_.body(memory); }
std::byte* HostileGpu::memory_of(const Block* block) const { return block->memory; }

// What another had there is forgotten.
std::byte* HostileGpu::take(std::size_t bytes) {
  std::byte* const memory = memory_.take(bytes);
  accesses_.forget(memory, bytes);
  return memory;
}

std::byte* HostileGpu::allocate(std::size_t bytes) {
  not_in_capture("an allocation");
  if (bytes == 0) return nullptr;
  const std::lock_guard lock(mutex_);
  std::byte* const memory = take(bytes);
  std::memset(body(memory), 0, bytes);
  return memory;
}

void HostileGpu::release(std::byte* memory) noexcept {
  std::unique_lock lock(mutex_);
  try {
    run_all(lock);
  } catch (...) {  // whoever waits for that work is told
  }
  memory_.put(memory);
}

HostileGpu::Block* HostileGpu::lend(std::size_t bytes, HostileLane lane) {
  const std::lock_guard lock(mutex_);
  auto block = std::make_unique<Block>();
  block->lane = lane;
  block->bytes = bytes;
  block->in_graph = is_captured(lane);
  if (bytes > 0) {
    spoil(lane);
    block->memory = take(bytes);
    std::memset(body(block->memory), 0xFF, bytes);
  }
  if (block->in_graph) capture_->graph->blocks.push_back(block.get());
  return block.release();
}

void HostileGpu::give_back(Block* block) noexcept {
  const std::lock_guard lock(mutex_);
  block->returned = true;
  if (block->memory != nullptr) memory_.mark_freed(block->memory, block->bytes);
  if (block->in_graph) {
    if (capture_ != nullptr && is_captured(block->lane)) capture_->given_back[block->lane].push_back(block);
    return;
  }
  if (block->memory == nullptr) {
    delete block;
    return;
  }
  lanes_[index(block->lane)].given_back.push_back(block);
}

// The lane may be given again whatever came from it: so it writes there now.
void HostileGpu::spoil(HostileLane lane) {
  const bool captured = is_captured(lane);
  auto blocks = std::exchange(captured ? capture_->given_back[lane] : lanes_[index(lane)].given_back, {});
  for (Block* block : blocks) {
    memory_.unmark_freed(block->memory);
    std::byte* const at = body(block->memory);
    const Extent extent{block->memory, block->bytes, true};
    const auto work = [this, block, at, captured] {
      std::memset(at, 0xFF, block->bytes);
      if (captured) return;
      memory_.put(block->memory);
      delete block;
    };
    const std::string name = "memory that was freed and given again";
    if (captured) {
      capture_->graph->calls.push_back(
          {HostileCall::Kind::kWork, capture_->lanes.at(lane), name, {extent}, work, nullptr});
      capture_->clocks[lane].count(lane);
    } else {
      push_work(lane, name, {extent}, work);
    }
  }
}

// --- lanes and events ---

HostileLane HostileGpu::add_lane() {
  lanes_.emplace_back();
  rank_.push_back(draw_());
  return static_cast<HostileLane>(lanes_.size()) - 1;
}

HostileLane HostileGpu::open_lane() {
  const std::lock_guard lock(mutex_);
  return add_lane();
}

bool HostileGpu::is_captured(HostileLane lane) const { return capture_ != nullptr && capture_->lanes.contains(lane); }

void HostileGpu::not_in_capture(const char* what) const {
  const std::lock_guard lock(mutex_);
  if (capture_ != nullptr && capture_->thread == std::this_thread::get_id()) {
    fault(std::string(what) + " is not permitted while work is captured");
  }
}

void HostileGpu::push(HostileLane lane, Task task) {
  lanes_[index(lane)].tasks.push_back(std::move(task));
  issued_.notify_all();
}

void HostileGpu::push_work(
    HostileLane lane, const std::string& name, const std::vector<Extent>& extents, std::function<void()> work) {
  VectorClock& clock = lanes_[index(lane)].clock;
  clock.join(host_);
  clock.count(lane);
  for (const Extent& extent : extents) {
    if (const auto problem = accesses_.add(lane, clock, name, extent)) fault(*problem);
  }
  push(lane, {std::move(work), nullptr, nullptr});
}

std::shared_ptr<HostileGpu::Mark> HostileGpu::push_mark(HostileLane lane) {
  auto mark = std::make_shared<Mark>();
  lanes_[index(lane)].clock.join(host_);
  mark->clock = lanes_[index(lane)].clock;
  push(lane, {nullptr, mark, nullptr});
  return mark;
}

void HostileGpu::push_wait(HostileLane lane, const std::shared_ptr<Mark>& mark) {
  if (mark == nullptr) fault("a lane waits for an event that was not recorded");
  lanes_[index(lane)].clock.join(mark->clock);
  push(lane, {nullptr, nullptr, mark});
}

// Work that is given memory which nobody holds any more.
void HostileGpu::check_alive(HostileLane lane, const std::string& name, const std::vector<Extent>& extents) const {
  for (const Extent& extent : extents) {
    if (extent.bytes > 0 && memory_.is_freed(extent.begin, extent.bytes)) {
      fault(name + " on lane " + std::to_string(lane) + (extent.writes ? " writes" : " reads") +
            " memory that was freed");
    }
  }
}

void HostileGpu::issue(
    HostileLane lane, const std::string& name, std::vector<Extent> extents, std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  check_alive(lane, name, extents);
  if (is_captured(lane)) {
    capture_->clocks[lane].count(lane);
    capture_->graph->calls.push_back(
        {HostileCall::Kind::kWork, capture_->lanes.at(lane), name, std::move(extents), std::move(work), nullptr});
    return;
  }
  push_work(lane, name, extents, std::move(work));
  some_progress();
}

void HostileGpu::issue_and_wait(
    HostileLane lane, const std::string& name, std::vector<Extent> extents, std::function<void()> work) {
  not_in_capture(("a host that waits (" + name + ")").c_str());
  std::unique_lock lock(mutex_);
  check_alive(lane, name, extents);
  push_work(lane, name, extents, std::move(work));
  const auto mark = push_mark(lane);
  run_until(lock, [&] { return mark->done; });
  host_.join(mark->clock);
}

HostileGpu::Event* HostileGpu::new_event() { return new Event; }
void HostileGpu::free_event(Event* event) noexcept { delete event; }

void HostileGpu::record(HostileLane lane, Event* event) {
  const std::lock_guard lock(mutex_);
  if (is_captured(lane)) {
    capture_->events[event] = capture_->clocks[lane];
    capture_->graph->calls.push_back({HostileCall::Kind::kRecord, capture_->lanes.at(lane), "", {}, nullptr, event});
    return;
  }
  event->mark = push_mark(lane);
}

void HostileGpu::wait(HostileLane lane, Event* event) {
  const std::lock_guard lock(mutex_);
  if (waits_++ == forgotten_) {
    VectorClock known = lanes_[index(lane)].clock;
    known.join(host_);
    was_needed_ = event->mark == nullptr || !event->mark->clock.is_within(known);
    return;
  }
  const bool of_capture = capture_ != nullptr && capture_->events.contains(event);
  if (!of_capture && !is_captured(lane)) return push_wait(lane, event->mark);
  if (of_capture) {
    if (!is_captured(lane)) capture_->lanes[lane] = add_lane();
    capture_->clocks[lane].join(capture_->events[event]);
  } else if (event->mark == nullptr) {
    fault("a lane waits for an event that was not recorded");
  }
  capture_->graph->calls.push_back({HostileCall::Kind::kWait, capture_->lanes.at(lane), "", {}, nullptr, event});
}

bool HostileGpu::done(Event* event) {
  not_in_capture("asking whether an event is done");
  const std::lock_guard lock(mutex_);
  if (event->mark == nullptr) return true;  // as cudaEventQuery
  const HostileLane lane = event->mark->done ? -1 : next_lane();
  if (lane >= 0) run_one(lane);
  if (event->mark->done) host_.join(event->mark->clock);
  return event->mark->done;
}

void HostileGpu::synchronize(Event* event) {
  not_in_capture("a host that waits for an event");
  std::unique_lock lock(mutex_);
  const std::shared_ptr<Mark> mark = event->mark;
  if (mark == nullptr) return;
  run_until(lock, [&] { return mark->done; });
  host_.join(mark->clock);
}

void HostileGpu::synchronize() {
  not_in_capture("a host that waits for the device");
  std::unique_lock lock(mutex_);
  run_all(lock);
}

double HostileGpu::seconds_between(Event* from, Event* until) {
  const std::lock_guard lock(mutex_);
  for (const Event* event : {from, until}) {
    if (event->mark == nullptr || !event->mark->done) fault("the time of an event that is not done");
  }
  return std::chrono::duration<double>(until->mark->time - from->mark->time).count();
}

std::int64_t HostileGpu::waits() const {
  const std::lock_guard lock(mutex_);
  return waits_;
}

void HostileGpu::forget_wait(std::int64_t number) {
  const std::lock_guard lock(mutex_);
  forgotten_ = number;
}

bool HostileGpu::was_needed() const {
  const std::lock_guard lock(mutex_);
  return was_needed_;
}

// --- what runs when ---

bool HostileGpu::is_runnable(const LaneState& lane) const {
  return !lane.tasks.empty() && (lane.tasks.front().waits == nullptr || lane.tasks.front().waits->done);
}

HostileLane HostileGpu::next_lane() {
  std::vector<HostileLane> able;
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    if (is_runnable(lanes_[i])) able.push_back(static_cast<HostileLane>(i));
  }
  if (able.empty()) return -1;
  if (draws_anew_) return able[draw_() % able.size()];
  return *std::ranges::min_element(
      able, [&](HostileLane a, HostileLane b) { return rank_[index(a)] < rank_[index(b)]; });
}

void HostileGpu::run_one(HostileLane lane) {
  const Task task = std::move(lanes_[index(lane)].tasks.front());
  lanes_[index(lane)].tasks.pop_front();
  if (task.work) task.work();
  if (task.marks == nullptr) return;
  task.marks->time = Clock::now();
  task.marks->done = true;
  issued_.notify_all();
}

void HostileGpu::some_progress() {
  if (!goes_on_early_) return;
  for (auto pieces = draw_() % 3; pieces > 0; --pieces) {
    const HostileLane lane = next_lane();
    if (lane >= 0) run_one(lane);
  }
}

void HostileGpu::run_until(std::unique_lock<std::mutex>& lock, const std::function<bool()>& is_done) {
  while (!is_done()) {
    const HostileLane lane = next_lane();
    if (lane >= 0) {
      run_one(lane);
    } else if (issued_.wait_for(lock, kIssuePatience) == std::cv_status::timeout && next_lane() < 0 && !is_done()) {
      fault("every lane waits for an event that nothing will record");
    }
  }
}

void HostileGpu::run_all(std::unique_lock<std::mutex>& lock) {
  run_until(lock, [&] {
    for (const LaneState& lane : lanes_) {
      if (!lane.tasks.empty()) return false;
    }
    return true;
  });
  for (const LaneState& lane : lanes_) host_.join(lane.clock);
}

}
