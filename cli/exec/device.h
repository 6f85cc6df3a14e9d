// Which device a rank of foreshard-exec feeds, and how long the collectives of a paced rank last.
#pragma once

#include <memory>
#include <string>

#include "exec/device/accelerator.h"
#include "exec/engine/backend.h"
#include "exec/launch/launch.h"
#include "planner/job.h"

namespace foreshard {

// --device of a job on this cluster: auto is a GPU where the cluster is of GPUs; cpu needs cluster
// `local`; standin runs plans of GPUs on the CPU, in order and without overlap, to try things out.
// nullptr: a CPU rank. Throws Error(kMissingCapability), Error(kUsage).
std::unique_ptr<Accelerator> open_device(const std::string& choice, const Cluster& cluster,
                                         const Launch& launch);

// Of the plan's forecast: how long every collective takes, and the multiprocessors that NCCL's
// kernel would hold.
Pacing pacing_of(const Job& job, const EventGraph& graph);

}  // namespace foreshard
