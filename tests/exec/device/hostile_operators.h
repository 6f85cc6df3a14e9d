// ATen's operators on a HostileGpu: see tests/exec/device/hostile_accelerator.h.
#pragma once

#include <memory>

#include "tests/exec/device/hostile_gpu.h"

namespace foreshard {

// What this thread's operators on `privateuseone:0` are given to; {nullptr, 0}: they fail.
struct HostilePlace {
  std::shared_ptr<HostileGpu> gpu;
  HostileLane lane = 0;
};
HostilePlace& hostile_place();

}
