// Which layers of a model each stage of a pipeline has, and each rank's part of the model.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/graph/pipeline/pipeline.h"
#include "sim/spec/model_spec.h"
#include "sim/spec/plan.h"

namespace foreshard {

StagePipeline stage_pipeline(const Plan& plan);

// Layers [begin, end) of ModelSpec::order.
struct StageLayers {
  std::int32_t stage = 0;
  std::int32_t begin = 0, end = 0;
};

// Of all stages: what is in front of the blocks is the first one's, what is behind them the last one's.
std::vector<StageLayers> split_into_stages(const ModelSpec& model, const Plan& plan);

// The layers of the stages of Plan::rank, in their order: LayerInstance::begins_stage.
ModelSpec part_of_pipeline(const ModelSpec& model, const Plan& plan);

// Its stages, as layers of the part.
std::vector<StageLayers> stages_of_part(const ModelSpec& part, const Plan& plan);

// Bytes of one micro-batch between two stages.
Bytes boundary_bytes(const ModelSpec& part, const Plan& plan);

}
