// Tensor parallel's collectives beside the products they belong to (TensorParallel::async).
#pragma once

#include "sim/graph/layers/layer_program.h"
#include "sim/spec/model_spec.h"

namespace foreshard {

// `phase` of `layer` with its waits for gathers behind the products that read what is gathered, and its reduce-scatters
// launched with the product whose summands they add. What is allocated and when stays as it is.
void pipeline_products(const LayerSpec& layer, LayerPhaseProgram& phase);

}
