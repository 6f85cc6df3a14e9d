#include "cli/exec/device.h"

#include <fmt/format.h>

#include "exec/device/host_accelerator.h"
#include "exec/device/load_accelerator.h"
#include "sim/simulate/forecast.h"

namespace foreshard {

std::unique_ptr<Accelerator> open_device(const std::string& choice, const Cluster& cluster,
                                         const Launch& launch) {
  if (choice == "standin") {
    if (!cluster.host_computes) return host_accelerator();
    throw Error(ExitCode::kUsage,
                "--device standin stands for a GPU; name a cluster of GPUs, for example 8xh100");
  }
  const DeviceChoice wanted = parse_device_choice(choice);
  if (cluster.host_computes) {
    if (wanted != DeviceChoice::kCuda) return nullptr;
    throw Error(ExitCode::kMissingCapability,
                "the plan's cluster is local (CPU ranks); nearest plan: the same with a cluster of "
                "GPUs, for example cluster: 1xh100");
  }
  if (wanted == DeviceChoice::kCpu) {
    throw Error(ExitCode::kMissingCapability,
                fmt::format("the plan is for GPUs ({}), CPU ranks run plans of this machine; "
                            "nearest plan: the same with cluster: local",
                            cluster.spec));
  }
  try {
    return load_accelerator(launch.local_rank);
  } catch (const Error& error) {
    throw Error(error.exit_code(), fmt::format("{}; nearest plan for CPU ranks: the same with "
                                               "cluster: local",
                                               error.what()));
  }
}

Pacing pacing_of(const Job& job, const EventGraph& graph) {
  const CostModel costs = cost_model(job);
  const Forecast predicted = forecast(job.model, job.resolved.plan, costs);
  FORESHARD_CHECK(predicted.graph.fingerprint() == graph.fingerprint(),
                  "the forecast is of another step");
  Pacing pacing;
  pacing.durations.resize(graph.rows.size());
  pacing.ctas.assign(graph.rows.size(), 1);
  for (std::size_t i = 0; i < graph.rows.size(); ++i) {
    const Work& work = graph.works[graph.rows[i].work];
    if (!is_collective(work.kind) || work.communicator == kNoCommunicator) continue;
    const Span& span = predicted.timeline.spans[i];
    pacing.durations[i] = span.end - span.arrive;
    const auto price =
        costs.collective(work.kind, work.bytes, graph.communicators[work.communicator].group);
    if (price) pacing.ctas[i] = std::max(1, price->ctas);
  }
  return pacing;
}

}  // namespace foreshard
