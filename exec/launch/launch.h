// Which rank this process is, from the environment its launcher gave it.
//
// Looked at in this order (section 2.5 of the engine's research note):
//   torchrun, --spawn, by hand   RANK WORLD_SIZE MASTER_ADDR MASTER_PORT [LOCAL_RANK
//   LOCAL_WORLD_SIZE] Open MPI OMPI_COMM_WORLD_{RANK,SIZE,LOCAL_RANK,LOCAL_SIZE} Slurm (srun)
//   SLURM_PROCID SLURM_STEP_NUM_TASKS|SLURM_NTASKS SLURM_LOCALID
//                                SLURM_STEP_NODELIST
//   PMI, PMIx                    PMI_RANK|PMIX_RANK PMI_SIZE [MPI_LOCALRANKID MPI_LOCALNRANKS]
// PMI comes before Slurm where both are there and differ: srun then started a launcher, not a rank. Where a launcher
// names no address, MASTER_ADDR does; without it, the loopback when all ranks are on one machine, and the first host of
// the node list under Slurm. Where it names no port, MASTER_PORT does; without it, the port is 20000 + FNV-1a(run id)
// mod 10000, so that two jobs of one machine seldom meet: a run id is the launcher's job id.
#pragma once

#include <string>

#include "exec/comm/launched.h"

namespace foreshard {

Environment process_environment();

// One rank, launcher "none", when no launcher shows. Throws Error(kLaunchFailure), naming the
// variable, when the environment is incomplete or contradicts itself.
Launch resolve_launch(const Environment& environment);

// The first host of a Slurm node list: "gpu[07-09,12],login1" gives "gpu07". Throws
// Error(kLaunchFailure) when it is malformed.
std::string first_host(const std::string& node_list);

}
