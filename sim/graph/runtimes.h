// The builders behind build_training_step, one per runtime.
#pragma once

#include "sim/graph/event_graph.h"
#include "sim/graph/training_step.h"

namespace foreshard {

EventGraph build_fsdp2(const ModelSpec& model, const Plan& plan, const LayerPrograms& programs,
                       EventGraph recycled);
EventGraph build_native(const ModelSpec& model, const Plan& plan, const LayerPrograms& programs,
                        EventGraph recycled);

}  // namespace foreshard
