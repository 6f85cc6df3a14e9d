// Curves of collectives between GPUs, with the engine's own communicators: what a machine of
// several GPUs tells beside what one of them does.
#pragma once

#include <functional>
#include <string>

#include "exec/comm/world.h"
#include "exec/device/accelerator.h"
#include "sim/base/json.h"

namespace foreshard {

struct DeviceCollectivesRequest {
  std::size_t smallest = std::size_t{1} << 16;  // bytes of the whole unsharded buffer
  std::size_t largest = std::size_t{1} << 30;
  int repeats = 7;
  int ranks_per_node = 0;                            // 0: all are on one
  std::function<void(const std::string&)> progress;  // rank 0
};

// Sizes of groups of consecutive ranks: the powers of two below the world's that divide it, and the
// world itself.
std::vector<int> measured_groups(int ranks);

// Rows of kind `collective` (calibration/README.md), the same on all ranks: all_gather and
// reduce_scatter in bf16, all_reduce in fp32, for every group size, each size four times the one
// before. Seconds are the mean over the ranks, as in nccl-tests. All ranks call it at the same
// time.
Json measure_device_collectives(Accelerator& accelerator, World& world,
                                const DeviceCollectivesRequest& request);

}  // namespace foreshard
