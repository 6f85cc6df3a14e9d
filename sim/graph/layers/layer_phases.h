// The phases of a layer's program, one writer after the other.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/graph/layers/layer_program_writer.h"
#include "sim/graph/layers/layer_weight_gradients.h"

namespace foreshard {

// The phases of a layer's program that run its operations forward.

// Writes LayerProgram::forward and LayerProgram::saved.
void write_forward(LayerProgramWriter& writer);

// Writes LayerProgram::recompute, of a checkpointed layer; forward is written.
void write_recompute(LayerProgramWriter& writer);

// The same for nodes that have not ended, in the phase that is being written.
void recompute_again(LayerProgramWriter& writer, const std::vector<bool>& ended);

// What is kept of a layer goes into the stack of all layers, or comes out of it
// (ModuleKernels::scan); forward is written.
void copy_stacked(LayerProgramWriter& writer, Pass pass);

// A norm whose statistics are of all ranks' samples: they travel in front of its kernels.
inline bool is_synchronized(const Operation& op) { return op.gathers.dim == MeshDim::kBatch; }
// Sums of each of its n columns and of its squares; in forward the number of rows, too.
inline std::int16_t launch_statistics(
    LayerProgramWriter& writer, const Operation& op, const LayerCollective& collective) {
  const bool counts = collective.kind == CollectiveKind::kAllGather;
  const std::int64_t bytes = (2 * op.n + (counts ? 1 : 0)) * size_of(DType::kFp32);
  TensorElement element = writer.graph().element(op.outputs.front());
  element.type = ElementType::kFp32;
  return writer.launch(collective, bytes, bytes, element);
}

// The phase of a layer's program that runs autograd's nodes.

// Writes LayerProgram::backward and LayerProgram::weight_gradients; forward and, of a checkpointed
// layer, recompute are written.
void write_backward(LayerProgramWriter& writer);

// The second half of a backward in two. `captured`: of each operation, the slot of its output's
// gradient, which was kept for its weights; kNoSlot: it has none.
void write_weight_backward(
    LayerProgramWriter& writer, WeightGradients& weights, const std::vector<std::int32_t>& captured);

// Ring attention in a layer's program: collectives, kernels and temporaries of one attention over
// the ranks of mesh.cp (Operation::ring).

// All but the operation's outputs. Returns the slots that go when those are there.
LayerProgramWriter::Slots write_ring_forward(LayerProgramWriter& writer, const Operation& op, MemoryCategory category);

// All but the gradients of q, k and v. Returns the slots that go when those are there.
LayerProgramWriter::Slots write_ring_backward(LayerProgramWriter& writer, const Operation& op);

}
