// Which communicator a group of ranks that feed devices has.
//
//   one rank          moves nothing
//   paced             rank 0 of a plan whose other ranks are not there (PacedCollective)
//   in one process    ranks are threads that share one device: copies and sums in rank order. They
//                     read each other's memory: none may give it back before all are done
//   else              NCCL, a GPU for every rank: one communicator of the world, split per group
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "exec/comm/world.h"
#include "exec/device/accelerator.h"

namespace foreshard {

struct DeviceGroup {
  Accelerator& accelerator;  // a reference is kept
  World& world;
  std::string name;
  std::vector<int> ranks;  // of the world, ascending, this one among them
  bool paced = false;
  int max_ctas = 0;  // of NCCL's kernels; 0: its choice
};

// Of a group whose ranks are one, paced, or in one process.
std::unique_ptr<DeviceCommunicator> make_device_communicator(const DeviceGroup& group);

// Of all groups of this rank. All ranks call it with groups of the same names in the same order,
// and groups of one name hold every rank once. Throws Error(kLaunchFailure).
std::vector<std::unique_ptr<DeviceCommunicator>> make_device_communicators(const std::vector<DeviceGroup>& groups);

// How long a part's call may take: as long as a step may, for a call also waits where the device is
// so far behind that it takes no further launches. PyTorch's process groups wait as long.
inline constexpr double kCallTimeout = 600;  // s

// The groups as parts of `whole`, which holds every rank of the world. A part is aborted where a
// call of it takes longer than `call_timeout_s`, and the call throws.
std::vector<std::unique_ptr<DeviceCommunicator>> split_world(
    DeviceCommunicator& whole, const std::vector<DeviceGroup>& groups, double call_timeout_s = kCallTimeout);

// What a paced collective of no length takes between its events on a lane that the host is ahead of: admission of its
// blocks and the second event. Requests are shortened by it. Seconds, the least of several.
double paced_overhead(Accelerator& accelerator, int ctas);

}
