// What a plan's ranks reserve, by whoever allocates there.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "sim/memory/reserved.h"

namespace foreshard {

// What a plan's ranks take from the driver, and what asking for it costs them.
struct ReservedForecast {
  Bytes peak;
  StepReserved first, steady;
  std::vector<HostStall> first_stalls, stalls;  // of step 1 and of a steady step
  // Memory is so short that every step gives cached segments back and asks for others; `steady` is
  // then the last of kMostReplayedSteps, or one that the next repeats.
  bool retries_for_good = false;
  bool repeats = true;
};

// By whoever allocates there:
//   Native plans, whose buffers are laid out once, and CPU ranks, which have no such cache: what is
//     allocated.
//   PyTorch's runtimes: the caching allocator's segments with the plan's settings, cuBLAS'
//     workspaces among them. Where they would outgrow the GPU, but the allocator gives cached
//     segments back and gets along: what it holds then, which fits. Else what it would like to
//     have.
ReservedForecast forecast_reserved(
    const EventGraph& graph, const Plan& plan, const Cluster& cluster, const RowTimes* times = nullptr);

// DDP's, unless it looks for unused parameters.
Buckets buckets_of(const Plan& plan);

// The same, remembered by what is replayed: plans that differ in prefetch or communicators alone,
// and clusters whose memory is not short, often allocate the same in the same order. For graphs
// that record no streams, from any thread; the answers do not depend on what was asked before.
class ReservedMemory {
 public:
  ReservedMemory();
  ~ReservedMemory();

  ReservedForecast forecast(const EventGraph& graph, const Plan& plan, const Cluster& cluster);

  // What of it a choice asks for.
  struct Answer {
    Bytes peak;
    bool stalls = false;  // in a steady step the driver is asked
  };
  Answer ask(const EventGraph& graph, const Plan& plan, const Cluster& cluster);

 private:
  struct Known;
  using Key = std::tuple<std::uint64_t, Bytes, Bytes>;  // log, memory in all and available
  // Whether stalls have to be at the rows of this graph.
  enum class Rows : std::uint8_t { kAny, kSame };
  ReservedForecast recall(const EventGraph& graph, const Plan& plan, const Cluster& cluster, Rows rows);

  std::mutex mutex_;
  std::map<Key, std::shared_ptr<const Known>> known_;
};

}
