// The builders behind build_training_step, one per runtime.
#pragma once

#include "sim/graph/event_graph.h"
#include "sim/graph/host_log.h"
#include "sim/graph/training_step.h"

namespace foreshard {

EventGraph build_fsdp2(const ModelSpec& model, const Plan& plan, const LayerPrograms& programs, EventGraph recycled);
EventGraph build_fsdp1(const ModelSpec& model, const Plan& plan, const LayerPrograms& programs, EventGraph recycled);
EventGraph build_ddp(const ModelSpec& model, const Plan& plan, const LayerPrograms& programs, EventGraph recycled);
EventGraph build_zero12(const ModelSpec& model, const Plan& plan, const LayerPrograms& programs, EventGraph recycled);
EventGraph build_zero3(const ModelSpec& model, const Plan& plan, const LayerPrograms& programs, EventGraph recycled);
EventGraph build_megatron(const ModelSpec& model, const Plan& plan, const LayerPrograms& programs, EventGraph recycled);
EventGraph build_native(const ModelSpec& model, const Plan& plan, const LayerPrograms& programs, EventGraph recycled);

// Of a plan of one micro-batch that evaluates: the pass behind it, alone.
EventGraph build_native_evaluation(const ModelSpec& model, const Plan& plan, const LayerPrograms& programs);

// The same with the host's log, steps 1 to watch.steps.
LibraryRun record_fsdp1(const ModelSpec& model, const Plan& plan, const LayerPrograms& programs,
                        const LibraryWatch& watch);
LibraryRun record_ddp(const ModelSpec& model, const Plan& plan, const LayerPrograms& programs,
                      const LibraryWatch& watch);
LibraryRun record_zero12(const ModelSpec& model, const Plan& plan, const LayerPrograms& programs,
                         const LibraryWatch& watch);
LibraryRun record_zero3(const ModelSpec& model, const Plan& plan, const LayerPrograms& programs,
                        const LibraryWatch& watch);

}
