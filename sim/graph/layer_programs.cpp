// Which programs a plan needs: every kind of layer without recompute, blocks in each mode that the
// plan names.
#include <algorithm>
#include <memory>

#include "sim/graph/training_step.h"

namespace foreshard {

LayerPrograms::LayerPrograms(const ModelSpec& model, const Plan& plan)
    : batch_(plan.batch),
      compute_(plan.param_dtype),
      reduce_(plan.reduce_dtype),
      runtime_(plan.runtime.kind) {
  modes_[static_cast<std::size_t>(Recompute::kNone)] = true;
  modes_[static_cast<std::size_t>(plan.recompute.value)] = true;
  for (const auto& range : plan.recompute.ranges) {
    modes_[static_cast<std::size_t>(range.value)] = true;
  }
  programs_.resize(model.kinds.size());
  for (std::size_t kind = 0; kind < model.kinds.size(); ++kind) {
    const LayerSpec& layer = model.kinds[kind];
    for (std::size_t mode = 0; mode < modes_.size(); ++mode) {
      if (!modes_[mode]) continue;
      if (layer.role != LayerRole::kBlock && mode != 0) continue;
      ProgramOptions options;
      options.batch = plan.batch.micro_batch;
      options.sequence = plan.batch.sequence;
      options.compute = plan.param_dtype;
      options.recompute = static_cast<Recompute>(mode);
      options.gradients = plan.runtime.kind == RuntimeKind::kNative
                              ? GradientStorage::kFlat
                              : GradientStorage::kPerParameter;
      options.flat_gradient = plan.reduce_dtype;
      options.tied = model.tied_embeddings && layer.role == LayerRole::kEmbedding
                         ? Tying::kTokenTable
                         : Tying::kNone;
      programs_[kind][mode] =
          std::make_shared<const LayerProgram>(build_layer_program(layer, options));
    }
  }
}

const std::shared_ptr<const LayerProgram>& LayerPrograms::at(std::int32_t kind,
                                                             Recompute recompute) const {
  return programs_[static_cast<std::size_t>(kind)][static_cast<std::size_t>(recompute)];
}

bool LayerPrograms::serve(const Plan& plan) const {
  if (plan.batch.sequence != batch_.sequence || plan.batch.micro_batch != batch_.micro_batch ||
      plan.param_dtype != compute_ || plan.reduce_dtype != reduce_ ||
      plan.runtime.kind != runtime_) {
    return false;
  }
  if (!modes_[static_cast<std::size_t>(plan.recompute.value)]) return false;
  return std::all_of(
      plan.recompute.ranges.begin(), plan.recompute.ranges.end(),
      [&](const auto& range) { return modes_[static_cast<std::size_t>(range.value)]; });
}

}  // namespace foreshard
