// Three small readable fixtures: a tiny model, a plan for it, a machine that can be worked out by hand.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sim/cost/cost_model.h"
#include "sim/cost/cost_table.h"
#include "sim/graph/event_graph.h"
#include "sim/spec/model_spec.h"
#include "sim/spec/plan.h"

namespace foreshard {

// A Llama of `blocks` layers: hidden 512, 8 heads, 4 of keys, FFN 1536, vocabulary 4096. The model of tests/recordings.
ModelSpec tiny_model(int blocks);

// Sequence 128, micro-batch 2, 8 ranks in one shard group, AdamW without clipping, norm and head in one unit.
Plan tiny_plan();

// Costs by row kind and unit, everything else free.
CostTable table_costs(const EventGraph& graph, const std::function<Cost(const Work&, int unit)>& of);

// A round machine: 100 TFLOP/s, 1 TB/s, 8 GPUs a node with 100 GB/s links, one 10 GB/s NIC each;
// curves without overheads.
Cluster round_cluster(std::int64_t gpus);
Calibration round_calibration();
CostModel round_costs(std::int64_t gpus = 16);

std::int64_t count(const EventGraph& graph, EventKind kind);
std::vector<std::string> text_lines(const std::string& text);

}
