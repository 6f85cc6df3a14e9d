// The phases of a layer's program that run its operations forward.
#pragma once

#include "sim/graph/layers/layer_program_writer.h"

namespace foreshard {

// Writes LayerProgram::forward and LayerProgram::saved.
void write_forward(LayerProgramWriter& writer);

// Writes LayerProgram::recompute, of a checkpointed layer; forward is written.
void write_recompute(LayerProgramWriter& writer);

// What is kept of a layer goes into the stack of all layers, or comes out of it
// (ModuleKernels::scan); forward is written.
void copy_stacked(LayerProgramWriter& writer, Pass pass);

}  // namespace foreshard
