// The order of things, the same on every rank: kernels model by model, then collectives, then
// contention.
#include "calibration/measure/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "calibration/measure/bench.h"
#include "calibration/measure/collectives.h"
#include "calibration/measure/kernels.h"
#include "exec/memory/allocator.h"

namespace foreshard {
namespace {

std::int64_t resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) return std::strtoll(line.c_str() + 6, nullptr, 10) * 1024;
  }
  return 0;
}

// The largest unit's bytes in fp32, as a unit of one block each.
std::size_t largest_unit(const std::vector<MeasuredJob>& jobs) {
  std::int64_t largest = 1 << 20;
  for (const MeasuredJob& job : jobs) {
    for (const LayerSpec& kind : job.model.kinds) largest = std::max(largest, kind.numel());
  }
  return at(largest) * sizeof(float);
}

}  // namespace

Json measure_machine(World& world, const MeasureRequest& request) {
  install_allocator();
  const int ranks = world.size();
  Json rows = Json::array();
  rows.push_back({{"kind", "memory_outside"}, {"ranks", ranks}, {"bytes", resident_bytes()}});
  Bench bench(world, request.seconds);
  const auto progress = [&](const std::string& what) {
    if (world.rank() == 0 && request.progress) {
      request.progress(fmt::format("{} rank{}: {}", ranks, ranks == 1 ? "" : "s", what));
    }
  };
  for (const MeasuredJob& whole : request.jobs) {
    for (const MeasuredJob& job : over_tp(whole, request.dtype, ranks)) {
      progress(fmt::format("layers of {} over tp {} at {} x {} tokens", job.model.name, job.tp,
                           job.micro_batch, job.sequence));
      measure_kernels(job, request, bench, world, rows);
    }
  }
  if (ranks > 1) progress("collectives, and computation beside them");
  measure_collectives(
      world, request,
      request.largest_bytes > 0 ? request.largest_bytes : largest_unit(request.jobs), bench, rows);
  return rows;
}

}  // namespace foreshard
