// A stand-in as hostile as a GPU (tests/exec/device/hostile_gpu.h): the engine's device half runs
// on it with its own operators, and what host_accelerator.h forgives fails.
//
// Tensors are of the device `privateuseone:0`; every operator of ATen that is given such tensors
// goes to the current lane of the thread's accelerator, where it is computed by ATen's own CPU
// kernel, some time. Reading a value (item, a copy to the host) waits for the lane, as with a GPU.
#pragma once

#include <memory>

#include "exec/device/accelerator.h"
#include "tests/exec/device/hostile_gpu.h"

namespace foreshard {

// Ranks that share the device give the same one. The thread that calls this uses it from then on.
std::unique_ptr<Accelerator> hostile_accelerator(std::shared_ptr<HostileGpu> gpu);

}
