// Collectives of NCCL over one group, raw: no process group, no hidden stream.
#pragma once

#include <memory>

#include "exec/device/accelerator.h"

namespace foreshard::cuda {

std::string nccl_unique_id();
std::string nccl_version();

// Non-blocking initialisation, polled until `group.timeout_s`; then the communicator is aborted and
// the call throws. It is there to be split: its own collectives cost the host a thread each. All
// calls of one communicator come from the thread that made it, but abort().
std::unique_ptr<DeviceCommunicator> make_nccl_communicator(const NcclGroup& group);

}
