#include "sim/graph/pipeline/stages.h"

#include <algorithm>

#include "sim/base/error.h"

namespace foreshard {
namespace {

bool is_block(const ModelSpec& model, std::size_t layer) {
  return model.kinds[at(model.order[layer].kind)].role == LayerRole::kBlock;
}

std::vector<int> stages_of_rank(const Plan& plan) {
  const std::vector<int> ranks = stage_ranks(stage_pipeline(plan));
  std::vector<int> stages;
  for (std::size_t s = 0; s < ranks.size(); ++s) {
    if (ranks[s] == plan.mesh.pp_index(plan.rank)) stages.push_back(static_cast<int>(s));
  }
  return stages;
}

}  // namespace

StagePipeline stage_pipeline(const Plan& plan) {
  return {plan.pipeline.schedule, static_cast<int>(plan.mesh.pp),
          static_cast<int>(plan.batch.accumulation),
          static_cast<int>(plan.pipeline.stages_per_rank)};
}

std::vector<StageLayers> split_into_stages(const ModelSpec& model, const Plan& plan) {
  std::vector<StageLayers> list;
  std::size_t layer = 0;
  for (std::int64_t left : blocks_of_stages(model.block_count(), plan)) {
    const auto stage = static_cast<std::int32_t>(list.size());
    const auto begin = static_cast<std::int32_t>(layer);
    while (layer < model.order.size() && (left > 0 || !is_block(model, layer))) {
      if (is_block(model, layer)) --left;
      ++layer;
    }
    list.push_back({stage, begin, static_cast<std::int32_t>(layer)});
  }
  FORESHARD_CHECK(layer == model.order.size(), "stages have all layers");
  return list;
}

ModelSpec part_of_pipeline(const ModelSpec& model, const Plan& plan) {
  const std::vector<StageLayers> stages = split_into_stages(model, plan);
  ModelSpec part = model;
  part.order.clear();
  std::size_t done = 0;  // layers of the model
  for (const int s : stages_of_rank(plan)) {
    const StageLayers& stage = stages[at(s)];
    std::int32_t blocks_before = 0;
    for (; done < at(stage.begin); ++done) blocks_before += is_block(model, done) ? 1 : 0;
    for (; done < at(stage.end); ++done) part.order.push_back(model.order[done]);
    if (s == 0) continue;
    LayerInstance& first = part.order[part.order.size() - at(stage.end - stage.begin)];
    first.begins_stage = true;
    first.blocks_before = blocks_before;
  }
  return part;
}

std::vector<StageLayers> stages_of_part(const ModelSpec& part, const Plan& plan) {
  std::vector<StageLayers> list;
  std::int32_t begin = 0;
  const auto layers = static_cast<std::int32_t>(part.order.size());
  for (const int s : stages_of_rank(plan)) {
    std::int32_t end = begin + 1;
    while (end < layers && !part.order[at(end)].begins_stage) ++end;
    list.push_back({s, begin, end});
    begin = end;
  }
  FORESHARD_CHECK(begin == layers, "a part of other stages");
  return list;
}

Bytes boundary_bytes(const ModelSpec& part, const Plan& plan) {
  for (std::size_t l = 0; l < part.order.size(); ++l) {
    if (!is_block(part, l)) continue;
    const LayerSpec& block = part.kinds[at(part.order[l].kind)];
    const std::int64_t count = elements(block.tensors[at(block.output)], plan.batch.micro_batch,
                                        plan.batch.sequence / plan.mesh.cp);
    return Bytes(checked_multiply(count, size_of(plan.param_dtype)));
  }
  FORESHARD_CHECK(false, "a stage without blocks");
  return {};
}

}  // namespace foreshard
