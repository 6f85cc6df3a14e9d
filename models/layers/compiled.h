// torch.compile of a layer: which operations become one kernel, and what is then saved.
#pragma once

#include "sim/spec/model_spec.h"

namespace foreshard {

// Precondition: the layer's operations are those that the compiler sees (module kernels, attention
// and float8 are rewritten already). The rules and their sources stand in compiled.cpp.
void compile(LayerSpec& layer);

// silu(a) * b in one pass; in_place: its gradients take the places of a and b.
void fuse_silu(LayerSpec& layer, bool in_place = false);

// Of a layer in which nothing else is compiled that its kernels are not already (the head).
void pad_products(LayerSpec& layer);

}
