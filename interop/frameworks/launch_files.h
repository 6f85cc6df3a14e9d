// How a plan's ranks are started: the line to type, and the file to hand to a scheduler.
#pragma once

#include <cstdint>
#include <string>

#include "interop/export/export_ledger.h"
#include "sim/spec/cluster.h"
#include "sim/spec/plan.h"

namespace foreshard {

enum class Launcher : std::uint8_t { kTorchrun, kSlurm, kOpenMpi };

struct LaunchLine {
  std::int64_t nodes = 1, ranks_per_node = 1;
  std::string line;  // of a shell on the first node (Slurm: of the login node)
};

// `program`: a Python script ("train.py"), or "" for the default: train.py, and foreshard-exec with
// plan.yaml for runtime native. Ranks fill the cluster's nodes; a world that they do not divide
// into has the last node half filled, which only Slurm and Open MPI can start: then
// Error(kMissingCapability) for torchrun.
LaunchLine launch_of(const Plan& plan, const Cluster& cluster, Launcher launcher,
                     const std::string& program);

// torchrun: a shell script to run on every node; slurm: for sbatch; openmpi: a shell script.
Exported launch_file(const Plan& plan, const Cluster& cluster, Launcher launcher,
                     const std::string& program);

}  // namespace foreshard
