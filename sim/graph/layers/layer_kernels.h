// Which kernels an operation of a layer runs, in counts: bytes moved and FLOPs.
//
// Sources: a matrix product is 2*m*n*k FLOPs; attention's backward does five products of the size
// of forward's two (FlashAttention-2 paper, section 4.1).
#pragma once

#include <cstdint>
#include <vector>

#include "sim/graph/layers/layer_program.h"

namespace foreshard {

// `bytes` of every tensor of the layer.
struct KernelCounts {
  const LayerSpec& layer;
  const ProgramOptions& options;
  const std::vector<std::int64_t>& bytes;
};

// What backward computes of an operation: frozen weights and inputs without gradient leave their kernels out.
struct BackwardParts {
  bool weights = true;
  bool inputs = true;
};

// A product with all of a weight of more than two extents, which is cuDNN's.
bool convolves(const LayerSpec& layer, const Operation& op);
void add_memory_kernel(LayerPhaseProgram& phase, Function function, Pass pass, std::int64_t bytes);
void add_forward_kernels(const KernelCounts& counts, const Operation& op, LayerPhaseProgram& phase);
void add_backward_kernels(
    const KernelCounts& counts, const Operation& op, BackwardParts parts, LayerPhaseProgram& phase);
// Kernels from `begin` on are those of a norm written as several operations, if `op` is one of
// them: broadcast products, reductions along rows and changes of dtype, one after the other, stream
// slower than what one kernel does (calibration/fit/fit_memory.cpp).
void mark_eager_norm(const Operation& op, std::size_t begin, LayerPhaseProgram& phase);

// The kernels of Mamba-2's convolution and scan by chunks (scan_kernels.cpp).
void add_scan_forward(const KernelCounts& counts, const Operation& op, LayerPhaseProgram& phase);
void add_scan_backward(const KernelCounts& counts, const Operation& op, LayerPhaseProgram& phase);

}
