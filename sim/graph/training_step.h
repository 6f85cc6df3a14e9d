// Lowering: (model, plan) -> EventGraph. The one place where what a Plan means is written down.
//
// One builder per runtime: graph/fsdp2.cpp follows PyTorch 2.11's fully_shard, graph/native.cpp
// Foreshard's own engine. A graph depends on the mesh but not on the machine: the same plan on
// other GPUs is the same graph.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "sim/graph/event_graph.h"
#include "sim/spec/model_spec.h"
#include "sim/spec/plan.h"

namespace foreshard {

// The programs of all layer kinds at one micro-batch shape, shared by every plan that has that
// shape.
class LayerPrograms {
 public:
  // Derives the programs of every recompute mode that `plan` uses.
  LayerPrograms(const ModelSpec& model, const Plan& plan);
  const std::shared_ptr<const LayerProgram>& at(std::int32_t kind, Recompute recompute) const;
  // Whether a plan may use them: same runtime, sequence, micro-batch, parameter dtype and no
  // further recompute mode.
  bool serve(const Plan& plan) const;

 private:
  Batch batch_;
  DType compute_;
  DType reduce_;
  RuntimeKind runtime_;
  std::vector<std::array<std::shared_ptr<const LayerProgram>, 3>> programs_;
  std::array<bool, 3> modes_{};
};

// Preconditions: check(plan, model, cluster) passed and `programs` serve the plan.
// `recycled` is a graph nobody needs any more: its memory is used again.
EventGraph build_training_step(const ModelSpec& model, const Plan& plan,
                               const LayerPrograms& programs, EventGraph recycled = {});
EventGraph build_training_step(const ModelSpec& model, const Plan& plan);

// The units of a plan in forward order: which parameters are communicated together.
std::vector<Unit> list_units(const ModelSpec& model, const Plan& plan);

}  // namespace foreshard
