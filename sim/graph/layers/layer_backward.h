// The phase of a layer's program that runs autograd's nodes.
#pragma once

#include "sim/graph/layers/layer_program_writer.h"

namespace foreshard {

// Writes LayerProgram::backward and LayerProgram::weight_gradients; forward and, of a checkpointed
// layer, recompute are written.
void write_backward(LayerProgramWriter& writer);

}  // namespace foreshard
