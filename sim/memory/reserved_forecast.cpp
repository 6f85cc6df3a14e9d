// Steps are replayed until one takes nothing from the driver and gives nothing back: first as if
// memory never ended, then, where that is more than there is, with what there is.
//
// What is remembered are these two series of steps, by the identity of what is replayed and by the
// memory that there is: the first serves every GPU.
#include "sim/memory/reserved_forecast.h"

#include <algorithm>
#include <utility>

#include "sim/memory/memory_actions.h"
#include "sim/memory/memory_profile.h"
#include "sim/memory/outside_allocator.h"

namespace foreshard {
namespace {

struct Settled {
  ReservedForecast forecast;  // peak: of the settled step, else of all
  bool settles = false;       // there is such a step
  bool out_of_memory = false;
};

Settled settle(ReservedReplay& replay) {
  Settled result;
  ReservedForecast& found = result.forecast;
  found.repeats = false;
  while (!replay.out_of_memory() && replay.step() < kMostReplayedSteps && !found.repeats) {
    const StepReserved step = replay.run_step();
    if (replay.step() == 1) {
      found.first = step;
      found.first_stalls = replay.stalls();
    }
    result.settles = replay.step() > 1 && step.device_allocs == 0 && step.device_frees == 0;
    found.repeats = result.settles ||
                    (replay.step() > 2 && step == found.steady && replay.stalls() == found.stalls);
    found.steady = step;
    found.stalls = replay.stalls();
    found.peak = result.settles ? step.peak_reserved : std::max(found.peak, step.peak_reserved);
  }
  result.out_of_memory = replay.out_of_memory();
  return result;
}

// `settled(memory)`: what the steps settle to on a device of so much.
template <typename SettledIn>
ReservedForecast decide(const EventGraph& graph, const Plan& plan, const Cluster& cluster,
                        const SettledIn& settled) {
  if (plan.runtime.kind == RuntimeKind::kNative || cluster.host_computes) {
    ReservedForecast laid_out;
    laid_out.peak = peak_allocated(graph);
    return laid_out;
  }
  Settled wanted = settled(DeviceMemory::unlimited());
  // What no allocator can serve (far more than any GPU has) is wanted all the same.
  const Bytes allocated = peak_allocated(graph);
  wanted.forecast.peak = std::max(wanted.forecast.peak, allocated);
  const Bytes available = cluster.gpu.memory - total(memory_outside(graph, cluster, plan.runtime));
  if (wanted.forecast.peak <= available || allocated > available) return std::move(wanted.forecast);
  Settled limited = settled(DeviceMemory{cluster.gpu.memory, available});
  if (limited.out_of_memory) return std::move(wanted.forecast);
  limited.forecast.retries_for_good = !limited.settles;
  return std::move(limited.forecast);
}

}  // namespace

ReservedForecast forecast_reserved(const EventGraph& graph, const Plan& plan,
                                   const Cluster& cluster, const RowTimes* times) {
  const ReplayInputs inputs(library_buffers(cluster, plan.runtime), times);
  return decide(graph, plan, cluster, [&](const DeviceMemory& memory) {
    ReservedReplay replay(graph, plan.allocator, memory, inputs);
    Settled settled = settle(replay);
    settled.forecast.is_lower_bound = times == nullptr && records_streams(graph);
    return settled;
  });
}

struct ReservedMemory::Known {
  std::uint64_t rows = 0;
  Settled settled;
};

ReservedMemory::ReservedMemory() = default;
ReservedMemory::~ReservedMemory() = default;

ReservedForecast ReservedMemory::recall(const EventGraph& graph, const Plan& plan,
                                        const Cluster& cluster, Rows rows) {
  const LibraryBuffers library = library_buffers(cluster, plan.runtime);
  return decide(graph, plan, cluster, [&](const DeviceMemory& memory) {
    ReservedReplay replay(graph, plan.allocator, memory, library);
    const ReservedReplay::Identity identity = replay.identity();
    const Key key(identity.log, memory.total, memory.available);
    {
      const std::lock_guard lock(mutex_);
      const auto known = known_.find(key);
      const bool serves =
          known != known_.end() && (rows == Rows::kAny || known->second->rows == identity.rows);
      if (serves) return known->second->settled;
    }
    auto made = std::make_shared<const Known>(Known{identity.rows, settle(replay)});
    const std::lock_guard lock(mutex_);
    known_.insert_or_assign(key, made);
    return made->settled;
  });
}

ReservedForecast ReservedMemory::forecast(const EventGraph& graph, const Plan& plan,
                                          const Cluster& cluster) {
  return recall(graph, plan, cluster, Rows::kSame);
}

ReservedMemory::Answer ReservedMemory::ask(const EventGraph& graph, const Plan& plan,
                                           const Cluster& cluster) {
  const ReservedForecast found = recall(graph, plan, cluster, Rows::kAny);
  return {found.peak, !found.stalls.empty()};
}

}  // namespace foreshard
