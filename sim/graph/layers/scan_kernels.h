// The kernels of Mamba-2's convolution and scan by chunks (scan_kernels.cpp).
#pragma once

#include "sim/graph/layers/layer_kernels.h"

namespace foreshard {

void add_scan_forward(const KernelCounts& counts, const Operation& op, LayerPhaseProgram& phase);
void add_scan_backward(const KernelCounts& counts, const Operation& op, LayerPhaseProgram& phase);

}  // namespace foreshard
