// Lowering: (model, plan) -> EventGraph. The one place where what a Plan means is written down.
//
// One builder per runtime (sim/graph/runtimes.h), which follows its library or Foreshard's own engine. A graph depends
// on the mesh but not on the machine: the same plan on other GPUs is the same graph.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "sim/graph/event_graph.h"
#include "sim/spec/model_spec.h"
#include "sim/spec/plan.h"

namespace foreshard {

// Autograd adds to gradients that exist in place, so that later micro-batches of a step can have other programs than
// the first one. A module that is called twice finds none in the last of several (kLastOfSeveral): its first
// post-backward has reduced those of the micro-batches before. kSplit: of a pipeline's stage whose backward comes in
// two halves; kSplitLater: where gradients exist when the second one comes.
enum class StepMicroBatch : std::uint8_t { kFirst, kLater, kLastOfSeveral, kSplit, kSplitLater };
inline constexpr std::size_t kStepMicroBatches = 5;

struct Zero3Trace;

// The programs of all layers at one micro-batch shape, shared by every plan that has that shape.
// Layers of one kind that are trained, frozen and called alike share theirs.
class LayerPrograms {
 public:
  // Derives the programs of every recompute mode that `plan` uses. Of a pipeline, refers to the model.
  LayerPrograms(const ModelSpec& model, const Plan& plan);
  // Those of another rank of the pipeline (at_pipeline_rank), which share what is alike; made when
  // they are first asked for, from any thread. Of the plan's own rank: these.
  const LayerPrograms& of_pipeline_rank(std::int64_t rank) const;
  // What one rank computes of the model: with axes beside replicate and shard its own part of every
  // layer (sim/graph/axes.h), else nothing of its own.
  const ModelSpec& model_of(const ModelSpec& whole) const { return local_ ? *local_ : whole; }
  // Of ModelSpec::order[layer]; null where the plan has no such micro-batch.
  const std::shared_ptr<const LayerProgram>& at(
      std::int32_t layer, Recompute recompute, StepMicroBatch micro_batch = StepMicroBatch::kFirst) const;
  // A forward under no_grad, where Evaluation::in_step asks for it; else null. The loss is not
  // computed: its program lets go of the model's output.
  const std::shared_ptr<const LayerProgram>& evaluation(std::int32_t layer) const;
  // Whether a plan may use them: alike in everything that a program depends on, and no further recompute mode.
  bool serve(const Plan& plan) const;
  // Whether the programs of one plan serve another one that recomputes alike.
  static bool are_alike(const Plan& plan, const Plan& other);
  // Runtime zero3: what its coordinator decides for `plan` (zero3_trace.h); refers to the model.
  const std::shared_ptr<const Zero3Trace>& zero3_trace() const { return zero3_trace_; }

 private:
  // What of a plan the programs depend on, beside the recompute modes.
  struct Setting {
    RuntimeKind runtime = RuntimeKind::kFsdp2;
    std::int64_t sequence = 0;
    std::int64_t micro_batch = 0;
    DType compute = DType::kBf16;
    DType reduce = DType::kFp32;
    DType stored = DType::kFp32;
    Ignored ignored = Ignored::kNone;
    std::int64_t expert_units = 0;  // of every n-th block; 0: none
    bool tokens_are_a_unit = false;
    Frozen frozen;
    std::optional<DType> output_dtype;                      // where it is not the compute dtype: casts at the borders
    Units units;                                            // of which only then anything depends
    ExistingGradients existing = ExistingGradients::kNone;  // of later micro-batches
    // grad_dtype of parameters, in the first micro-batch and in later ones.
    std::optional<DType> first_gradient, later_gradient;
    bool evaluates = false;
    bool refers = false;     // Plan::reference, whose loss is computed, too
    bool early_stop = true;  // of recomputations
    bool reentrant = false;  // Plan::recompute_reentrant
    bool stacked = false;    // ModuleKernels::scan
    bool splits = false;     // backwards, of a pipeline's stages
    Mesh mesh;               // where it has more axes than replicate and shard, as one of both, and what follows
    bool divides_loss = false;
    MegatronOptions::Gradients gradients = MegatronOptions::Gradients::kFused;
    TensorParallel tensor_parallel;
    ContextParallel context_parallel;
    ExpertParallel expert_parallel;
    PipelineParallel pipeline;    // where there is one
    bool attends_to_all = false;  // FlexAttention over mesh.cp
    std::int64_t rank = 0;
    ProductWorkspaces workspaces;
    bool operator==(const Setting&) const = default;
  };
  struct Programs {
    using Modes = std::array<std::shared_ptr<const LayerProgram>, 3>;
    std::array<Modes, kStepMicroBatches> of;  // null: there is no such micro-batch
    std::shared_ptr<const LayerProgram> evaluation;
  };
  // Programs by what they depend on, beside the setting.
  struct Known;
  struct Peers;
  LayerPrograms(const ModelSpec& model, const Plan& plan, Known& known);
  static Setting setting_of(const Plan& plan);
  static void set_ddp(const Plan& plan, Setting& setting);
  static void set_zero(const Plan& plan, Setting& setting);
  void derive(const LayerSpec& layer, ProgramOptions options, Programs& programs) const;
  const Programs& of(std::int32_t layer) const {
    const std::int32_t variant = variant_of_layer_[static_cast<std::size_t>(layer)];
    return programs_[static_cast<std::size_t>(variant)];
  }

  Setting setting_;
  std::shared_ptr<const ModelSpec> local_;
  std::vector<std::int32_t> variant_of_layer_;  // into programs_
  std::vector<Programs> programs_;
  std::array<bool, 3> modes_{};
  std::shared_ptr<const Zero3Trace> zero3_trace_;
  std::shared_ptr<Peers> peers_;  // null: there is no pipeline
};

// The rank with the same place in another stage's ranks.
Plan at_pipeline_rank(Plan plan, std::int64_t pipeline_rank);

// Preconditions: check(plan, model, cluster) passed and `programs` serve the plan. Of a pipeline
// with the graphs of its other ranks (EventGraph::pipeline).
// `recycled` is a graph nobody needs any more: its memory is used again.
EventGraph build_training_step(
    const ModelSpec& model, const Plan& plan, const LayerPrograms& programs, EventGraph recycled = {});
EventGraph build_training_step(const ModelSpec& model, const Plan& plan);
// Plan::rank's alone, without its peers.
EventGraph build_pipeline_rank(const ModelSpec& model, const Plan& plan, const LayerPrograms& programs);

// Runtime native: the loss of one micro-batch of held-back data, between two steps. Its persistent
// buffers are the step's, in the same order; it frees whatever else it makes.
EventGraph build_evaluation(const ModelSpec& model, const Plan& plan);

// The units of a plan in forward order: which parameters are communicated together.
std::vector<Unit> list_units(const ModelSpec& model, const Plan& plan);

}
