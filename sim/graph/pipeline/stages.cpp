#include "sim/graph/pipeline/stages.h"

#include <algorithm>
#include <utility>

#include "sim/base/error.h"

namespace foreshard {
namespace {

bool is_block(const ModelSpec& model, std::size_t layer) {
  return model.kinds[at(model.order[layer].kind)].role == LayerRole::kBlock;
}

std::vector<int> stages_of_rank(const Plan& plan) {
  const std::vector<int> ranks = stage_ranks(stage_pipeline(plan));
  std::vector<int> stages;
  for (std::size_t s = 0; s < ranks.size(); ++s)
    if (ranks[s] == plan.mesh.pp_index(plan.rank())) stages.push_back(static_cast<int>(s));
  return stages;
}

// The head's is no longer the embedding's, whose shape tells the table among its parameters.
void part_table(ModelSpec& model, bool copies_module) {
  std::vector<std::int64_t> table;
  LayerSpec* head = nullptr;
  for (LayerSpec& kind : model.kinds) {
    for (ParameterSpec& p : kind.parameters) {
      if (!std::exchange(p.tied, false)) continue;
      p.in_two_stages = true;
      table = p.shape;
      head = &kind;
    }
  }
  for (LayerSpec& kind : model.kinds) {
    if (kind.role != LayerRole::kEmbedding) continue;
    const auto found = std::ranges::find(kind.parameters, table, &ParameterSpec::shape);
    if (found != kind.parameters.end()) found->in_two_stages = true;
    for (const ParameterSpec& p : kind.parameters) {  // TiedLayerSpec's module is whole in both
      if (!copies_module || p.in_two_stages || head == nullptr) continue;
      head->parameters.push_back(p);
      head->parameters.back().unused = true;
    }
  }
}

}

StagePipeline stage_pipeline(const Plan& plan) {
  using Host = StagePipeline::Host;
  const std::int64_t microbatches = plan.pipeline.microbatches;
  return {plan.pipeline.schedule, static_cast<int>(plan.mesh.pp),
      static_cast<int>(microbatches > 0 ? microbatches : plan.batch.accumulation),
      static_cast<int>(plan.pipeline.stages_per_rank), plan.pipeline.orders,
      plan.runtime.kind == RuntimeKind::kMegatron ? Host::kMegatron
      : is_zero(plan.runtime.kind)                ? Host::kDeepSpeed
                                                  : Host::kTorch};
}

std::vector<StageLayers> split_into_stages(const ModelSpec& model, const Plan& plan) {
  const std::vector<std::int64_t> blocks = blocks_of_stages(model, plan);
  std::vector<StageLayers> list;
  std::size_t layer = 0;
  for (std::size_t s = 0; s < blocks.size(); ++s) {
    const auto begin = static_cast<std::int32_t>(layer);
    while (s == 0 && !is_block(model, layer)) ++layer;
    layer += at(blocks[s]);
    if (s + 1 == blocks.size()) layer = model.order.size();
    list.push_back({static_cast<std::int32_t>(s), begin, static_cast<std::int32_t>(layer)});
  }
  return list;
}

ModelSpec part_of_pipeline(const ModelSpec& model, const Plan& plan) {
  const std::vector<StageLayers> stages = split_into_stages(model, plan);
  ModelSpec part = model;
  if (part.tied_embeddings) part_table(part, is_zero(plan.runtime.kind));
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
  // What arrives at the first layer of a stage, or the layer before the next one hands on.
  for (std::size_t l = 0; l < part.order.size(); ++l) {
    const LayerSpec& layer = part.kinds[at(part.order[l].kind)];
    const bool receives = part.order[l].begins_stage;
    const bool sends = l + 1 == part.order.size() && layer.role != LayerRole::kLoss;
    if (!receives && !sends) continue;
    const TensorSpec& tensor = layer.tensors[receives ? 0 : at(layer.output)];
    const std::int64_t count = elements(tensor, plan.batch.micro_batch, plan.batch.sequence / plan.mesh.cp);
    return Bytes(checked_multiply(count, size_of(plan.param_dtype)));
  }
  FORESHARD_CHECK(false, "a pipeline of one stage");
  return {};
}

}
