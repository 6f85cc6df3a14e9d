// The order in which a block's parameters are packed, gathered and freed.
#pragma once

#include "sim/spec/model_spec.h"

namespace foreshard {

// As modules register them, with fully_shard.
void order_as_registered(LayerSpec& layer);
// As Megatron-Core's layers compute with them.
void order_as_executed(LayerSpec& layer);

}
