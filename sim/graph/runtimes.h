// The builders behind build_training_step, one per runtime.
#pragma once

#include "sim/graph/event_graph.h"
#include "sim/graph/host_log.h"
#include "sim/graph/training_step.h"

namespace foreshard {

using BuildStep = EventGraph(
    const ModelSpec& model, const Plan& plan, const LayerPrograms& programs, EventGraph recycled);
BuildStep build_fsdp2, build_fsdp1, build_ddp, build_zero12, build_zero3, build_megatron, build_native;

// Of a plan of one micro-batch that evaluates: the pass behind it, alone.
EventGraph build_native_evaluation(const ModelSpec& model, const Plan& plan, const LayerPrograms& programs);

// The same with the host's log, steps 1 to watch.steps.
using RecordSteps = LibraryRun(
    const ModelSpec& model, const Plan& plan, const LayerPrograms& programs, const LibraryWatch& watch);
RecordSteps record_fsdp1, record_ddp, record_zero12, record_zero3;

}
