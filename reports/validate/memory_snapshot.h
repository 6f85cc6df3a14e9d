// The predicted step as a PyTorch memory snapshot, the pickle that torch.cuda.memory._dump_snapshot
// writes: drop it on pytorch.org/memory_viz, or read it with torch.cuda._memory_viz.
//
// It shows the steady step: every allocation and free in host order, what they ask of the driver,
// and all segments after it. Frames name the tensor, then the event that the host was issuing.
#pragma once

#include <string>

#include "sim/memory/caching_allocator.h"
#include "sim/memory/outside_allocator.h"
#include "sim/simulate/forecast.h"

namespace foreshard {

std::string memory_snapshot(const Forecast& forecast, const AllocatorSettings& settings,
                            const DeviceMemory& memory, const LibraryBuffers& library = {});

}  // namespace foreshard
