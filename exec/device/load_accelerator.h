// Finds a GPU: loads LibTorch's CUDA half and the plugin libforeshard_cuda.so.
//
// The plugin lies beside the program or in ../lib of it, or where FORESHARD_CUDA_PLUGIN says. The
// CUDA half (libtorch_cuda, NCCL, cuBLAS, ...) lies beside the libtorch_cpu that runs; the wheel
// for CPU builds (cmake/torch_wheel.py) lacks it, a Python environment's torch has it.
#pragma once

#include <memory>
#include <string>

#include "exec/device/accelerator.h"

namespace foreshard {

enum class DeviceChoice { kAutomatic, kCpu, kCuda };
DeviceChoice parse_device_choice(const std::string& text);  // auto, cpu, cuda; else Error(kUsage)

// Throws Error(kMissingCapability): what was tried, and which step failed.
std::unique_ptr<Accelerator> load_accelerator(int device);

// Why there is none on this machine; empty where the driver shows a GPU. Loads nothing big.
std::string why_no_gpu();

}
