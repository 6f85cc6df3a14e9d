// Steps are replayed until one takes nothing from the driver and gives nothing back: as if memory
// never ended, and, where that is more than there is, with what there is.
//
// What is remembered are these two series of steps, by the identity of what is replayed and by the
// memory that there is: the first serves every GPU.
#include "sim/memory/reserved_forecast.h"

#include <algorithm>
#include <utility>

#include "sim/memory/arena.h"
#include "sim/memory/memory_actions.h"
#include "sim/memory/memory_profile.h"
#include "sim/memory/outside_allocator.h"

namespace foreshard {
namespace {

struct Settled {
  ReservedForecast forecast;  // peak: of the settled step, else of all
  bool settles = false;       // there is such a step
  bool out_of_memory = false;
  bool ran_short = false;  // the driver had no memory for a segment, perhaps until others went back
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
    found.repeats = result.settles || (replay.step() > 2 && step == found.steady && replay.stalls() == found.stalls);
    found.steady = step;
    found.stalls = replay.stalls();
    found.peak = result.settles ? step.peak_reserved : std::max(found.peak, step.peak_reserved);
  }
  result.out_of_memory = replay.out_of_memory();
  const AllocatorStats& stats = replay.allocator().stats();
  result.ran_short = result.out_of_memory || stats.num_alloc_retries > 0;
  return result;
}

// Which series is replayed first. Both are the same steps until the driver runs short, and what an endless memory holds
// only grows: so a device's own memory, tried first, often is enough to know. kEndless serves other devices, too.
enum class Order : std::uint8_t { kEndless, kDevice };

// Whose rules do not depend on how much memory there is.
bool is_plain(const AllocatorSettings& settings) {
  return !settings.expandable_segments && !settings.per_process_memory_fraction &&
         settings.max_split_size == AllocatorSettings::kUnlimited;
}

// `settled(memory)`: what the steps settle to on a device of so much.
ReservedForecast decide(
    const EventGraph& graph, const Plan& plan, const Cluster& cluster, Order order, const auto& settled) {
  const Bytes allocated = peak_allocated(graph);
  if (cluster.host_computes) return ReservedForecast{.peak = allocated};
  // The engine's, beside which the allocator serves what layers make.
  const Bytes arena = buckets_of(plan) == Buckets::kInArena ? lay_out_arena(graph).size : Bytes(0);
  const Bytes available = cluster.gpu.memory - total(memory_outside(graph, cluster, plan.runtime)) - arena;
  const DeviceMemory device{cluster.gpu.memory, available};
  // What no allocator can serve (far more than any GPU has) is wanted all the same.
  const auto wanted = [&](Settled endless) {
    endless.forecast.peak = std::max(arena + endless.forecast.peak, allocated);
    return std::move(endless.forecast);
  };
  const auto gets_along = [&](Settled limited) {
    limited.forecast.peak += arena;
    limited.forecast.retries_for_good = !limited.settles;
    return std::move(limited.forecast);
  };
  if (order == Order::kDevice && allocated <= arena + available && is_plain(plan.allocator)) {
    Settled limited = settled(device);
    if (!limited.ran_short) return wanted(std::move(limited));
    if (!limited.out_of_memory) return gets_along(std::move(limited));
    return wanted(settled(DeviceMemory::unlimited()));
  }
  ReservedForecast endless = wanted(settled(DeviceMemory::unlimited()));
  const Bytes whole = arena + available;
  if (endless.peak <= whole || allocated > whole) return endless;
  Settled limited = settled(device);
  return limited.out_of_memory ? endless : gets_along(std::move(limited));
}

}

Buckets buckets_of(const Plan& plan) {
  if (plan.runtime.kind == RuntimeKind::kNative) return Buckets::kInArena;
  const bool rebuilds = plan.ddp.static_graph || !plan.ddp.find_unused_parameters;
  return plan.runtime.kind == RuntimeKind::kDdp && rebuilds ? Buckets::kRebuilt : Buckets::kFromTheStart;
}

ReservedForecast forecast_reserved(
    const EventGraph& graph, const Plan& plan, const Cluster& cluster, const RowTimes* times) {
  ReplayInputs inputs(library_buffers(graph, cluster, plan.runtime), times, buckets_of(plan));
  inputs.stops_when_settled = true;
  return decide(graph, plan, cluster, Order::kDevice, [&](const DeviceMemory& memory) {
    ReservedReplay replay(graph, plan.allocator, memory, inputs);
    return settle(replay);
  });
}

struct ReservedMemory::Known {
  std::uint64_t rows = 0;
  Settled settled;
};

ReservedMemory::ReservedMemory() = default;
ReservedMemory::~ReservedMemory() = default;

ReservedForecast ReservedMemory::recall(const EventGraph& graph, const Plan& plan, const Cluster& cluster, Rows rows) {
  ReplayInputs inputs(library_buffers(graph, cluster, plan.runtime), nullptr, buckets_of(plan));
  inputs.stops_when_settled = true;
  return decide(graph, plan, cluster, Order::kEndless, [&](const DeviceMemory& memory) {
    ReservedReplay replay(graph, plan.allocator, memory, inputs);
    const ReservedReplay::Identity identity = replay.identity();
    const Key key(identity.log, memory.total, memory.available);
    {
      const std::lock_guard lock(mutex_);
      const auto known = known_.find(key);
      const bool serves = known != known_.end() && (rows == Rows::kAny || known->second->rows == identity.rows);
      if (serves) return known->second->settled;
    }
    auto made = std::make_shared<const Known>(Known{identity.rows, settle(replay)});
    const std::lock_guard lock(mutex_);
    known_.insert_or_assign(key, made);
    return made->settled;
  });
}

ReservedForecast ReservedMemory::forecast(const EventGraph& graph, const Plan& plan, const Cluster& cluster) {
  return recall(graph, plan, cluster, Rows::kSame);
}

ReservedMemory::Answer ReservedMemory::ask(const EventGraph& graph, const Plan& plan, const Cluster& cluster) {
  const ReservedForecast found = recall(graph, plan, cluster, Rows::kAny);
  return {found.peak, !found.stalls.empty()};
}

}
