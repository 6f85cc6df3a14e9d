// A GPU as unkind as one may be, in the host's memory: what the host gives to its lanes is done as
// late, and in as bad an order, as lanes and events allow. It computes: work is closures.
//
// A thread per lane would find a missing wait only where the machine happens to be slow at the right moment. Here a
// seed says which lane goes on whenever the host has to wait: each seed holds some lane back as long as anything else
// can run, or draws anew every time. So what is found is found on every machine, and again with the same seed. Besides,
// every read and write is held against all earlier ones by vector clocks: what no wait orders is refused where it is
// issued, even where this seed's order would have hidden it.
//
// Device memory is mapped twice: the addresses that the host gets cannot be touched (a host that reads them ends by
// SIGSEGV, as it would with a GPU's), work is given those that can (body()). Memory that a tensor gave back may be
// written by the lane it came from as soon as that lane is given memory again: it is, with NaN.
//
// Shared by the ranks of a process; its calls may come from any thread, and work is done one piece
// at a time. Failures are std::runtime_error with one sentence.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "tests/exec/device/access_log.h"
#include "tests/exec/device/hostile_memory.h"

namespace foreshard {

using HostileLane = int;

class HostileGpu {
 public:
  using Clock = std::chrono::steady_clock;
  struct Event;
  struct Graph;
  struct Block;  // memory of a tensor

  explicit HostileGpu(std::uint64_t seed, std::size_t bytes = std::size_t{4} << 30);
  ~HostileGpu();
  HostileGpu& operator=(HostileGpu&&) = delete;  // nor is it copied

  // --- memory ---
  std::byte* allocate(std::size_t bytes);    // zeroed, 512 bytes aligned; illegal in a capture
  void release(std::byte* memory) noexcept;  // after all work, as cudaFree
  // Of a tensor that is made while `lane` is the current one; give_back() may be called whenever.
  Block* lend(std::size_t bytes, HostileLane lane);
  std::byte* memory_of(const Block* block) const;
  void give_back(Block* block) noexcept;
  // Where work finds what is at `memory`: elsewhere for device memory, there for the host's.
  std::byte* body(const void* memory) const;
  bool holds(const void* memory) const;

  // --- lanes and events ---
  HostileLane open_lane();
  void issue(HostileLane lane, const std::string& name, std::vector<Extent> extents, std::function<void()> work);
  // issue(), and the host waits until it is done; illegal in a capture.
  void issue_and_wait(
      HostileLane lane, const std::string& name, std::vector<Extent> extents, std::function<void()> work);
  Event* new_event();
  void free_event(Event* event) noexcept;
  void record(HostileLane lane, Event* event);
  void wait(HostileLane lane, Event* event);
  bool done(Event* event);
  void synchronize(Event* event);
  void synchronize();
  double seconds_between(Event* from, Event* until);

  // --- graphs ---
  Graph* capture(HostileLane lane, const std::function<void()>& work);
  void replay(HostileLane lane, Graph* graph);
  void free_graph(Graph* graph) noexcept;
  void not_in_capture(const char* what) const;

  // --- faults, for tests ---
  // Waits that lanes were given so far; number `number` of them, from 0, will be forgotten. Whether
  // that one would have ordered anything that others had not ordered before.
  std::int64_t waits() const;
  void forget_wait(std::int64_t number);
  bool was_needed() const;

 private:
  // When an event was recorded: a lane that waits waits for this, whatever is recorded later.
  struct Mark {
    bool done = false;
    Clock::time_point time;
    VectorClock clock;
  };
  struct Task {
    std::function<void()> work;          // or
    std::shared_ptr<Mark> marks, waits;  // one of these
  };
  struct LaneState {
    std::deque<Task> tasks;
    VectorClock clock;
    std::vector<Block*> given_back;
  };
  struct Capture;

  bool is_captured(HostileLane lane) const;
  void push(HostileLane lane, Task task);
  void push_work(
      HostileLane lane, const std::string& name, const std::vector<Extent>& extents, std::function<void()> work);
  std::shared_ptr<Mark> push_mark(HostileLane lane);
  void push_wait(HostileLane lane, const std::shared_ptr<Mark>& mark);
  void check_alive(HostileLane lane, const std::string& name, const std::vector<Extent>& extents) const;
  void spoil(HostileLane lane);
  std::byte* take(std::size_t bytes);
  HostileLane add_lane();

  bool is_runnable(const LaneState& lane) const;
  HostileLane next_lane();
  void run_one(HostileLane lane);
  void some_progress();
  void run_until(std::unique_lock<std::mutex>& lock, const std::function<bool()>& is_done);
  void run_all(std::unique_lock<std::mutex>& lock);

  mutable std::mutex mutex_;
  std::condition_variable issued_;
  std::mt19937_64 draw_;
  bool draws_anew_ = false;     // which lane goes on; else always the first that can, by rank
  bool goes_on_early_ = false;  // some work is done while the host still issues
  std::vector<std::uint64_t> rank_;
  HostileMemory memory_;
  std::vector<LaneState> lanes_;
  VectorClock host_;
  AccessLog accesses_;
  std::unique_ptr<Capture> capture_;
  std::int64_t waits_ = 0, forgotten_ = -1;
  bool was_needed_ = false;
};

}
