// Ring attention in a layer's program: collectives, kernels and temporaries of one attention over
// the ranks of mesh.cp (Operation::ring).
#pragma once

#include "sim/graph/layers/layer_program_writer.h"

namespace foreshard {

// All but the operation's outputs. Returns the slots that go when those are there.
LayerProgramWriter::Slots write_ring_forward(LayerProgramWriter& writer, const Operation& op,
                                             MemoryCategory category);

// All but the gradients of q, k and v. Returns the slots that go when those are there.
LayerProgramWriter::Slots write_ring_backward(LayerProgramWriter& writer, const Operation& op);

}  // namespace foreshard
