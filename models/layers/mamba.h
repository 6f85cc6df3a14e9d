// Mamba-2's mixer as Megatron-Core runs it (mamba.cpp).
#pragma once

#include "sim/spec/model_spec.h"

namespace foreshard {

// Of a layer without one, nothing.
void use_megatron_mixer(LayerSpec& layer);

}
