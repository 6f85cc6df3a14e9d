// Products of one input that a library runs as one: Megatron-Core's linear_qkv and linear_fc1
// (core/transformer/attention.py, mlp.py).
#pragma once

#include "sim/spec/model_spec.h"

namespace foreshard {

// The products of a layer that read the same tensor become one, whose weight is theirs below each
// other and whose result is split into theirs (views).
LayerSpec fuse_columns(LayerSpec layer);

// An attention that reads its packed projection reads three views of it instead, which ranks of cp
// send round apart.
LayerSpec unpack_attention(LayerSpec layer);

}  // namespace foreshard
