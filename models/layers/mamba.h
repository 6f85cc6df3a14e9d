// Mamba-2's mixer as Megatron-Core runs it (mamba.cpp); mixers without their kernels' packages (torch_mixers.cpp).
#pragma once

#include <cstdint>

#include "sim/spec/model_spec.h"

namespace foreshard {

// Of a layer without one, nothing.
void use_megatron_mixer(LayerSpec& layer);
void use_torch_mixer(LayerSpec& layer, std::int64_t sequence);

}
