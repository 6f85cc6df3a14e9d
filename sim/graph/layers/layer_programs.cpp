// Which programs a plan needs: layers of one kind that are trained, frozen and called alike, and at
// whose borders the same is cast, share one; blocks have one for each recompute mode that the plan
// names. What later micro-batches add to and a forward without gradients are further ones.
#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>

#include "sim/base/error.h"
#include "sim/base/lookup.h"
#include "sim/graph/axes/rank_part.h"
#include "sim/graph/layers/given_mask.h"
#include "sim/graph/layers/layer_autograd.h"
#include "sim/graph/pipeline/stages.h"
#include "sim/graph/training_step.h"
#include "sim/graph/zero/zero3_trace.h"
#include "sim/spec/checks/plan_check.h"
#include "sim/spec/fsdp2_version.h"

namespace foreshard {
namespace {

// A tied head has no weight of its own.
bool is_frozen(const ModelSpec& model, const Plan& plan, const LayerSpec& layer, std::int64_t block) {
  const bool is_table = layer.role == LayerRole::kHead && model.tied_embeddings;
  return is_frozen(plan.frozen, layer, block) || (is_table && plan.frozen.embedding);
}

// Freezing the embedding freezes the table of tokens, not what the model adds to its rows.
bool is_partly_frozen(const LayerSpec& layer) { return layer.role == LayerRole::kEmbedding && !layer.nested.empty(); }

std::vector<bool> frozen_parameters(const LayerSpec& layer) {
  std::vector<bool> frozen;
  for (const ParameterSpec& parameter : layer.parameters)
    frozen.push_back(!is_partly_frozen(layer) || parameter.part > 0);
  return frozen;
}

// FSDP1: modules compute with views of the flat parameter, and these need gradients if any of its
// parameters is trained (FlatParamHandle._use_unsharded_views; use_orig_params, without which all
// are alike). Whether the root's has such a one:
bool trains_in_root(const ModelSpec& model, const Plan& plan) {
  std::int64_t block = 0;
  for (const LayerInstance& instance : model.order) {
    const LayerSpec& layer = model.kinds[static_cast<std::size_t>(instance.kind)];
    const bool is_block = layer.role == LayerRole::kBlock && instance.same_as < 0;
    const std::int64_t number = is_block ? block++ : 0;
    if (instance.same_as >= 0 || !in_root(plan.units, layer.role)) continue;
    if (layer.has_trainable() && !is_frozen(model, plan, layer, number)) return true;
  }
  return false;
}

LayerSpec with_flat_gradients(LayerSpec layer, bool is_split, bool root_trains) {
  std::vector<bool> trains(layer.nested.size() + 1, root_trains);
  const auto unit = [&](const ParameterSpec& p) { return static_cast<std::size_t>(is_split ? p.part : 0); };
  for (const ParameterSpec& p : layer.parameters) trains[unit(p)] = trains[unit(p)] || p.trainable;
  for (ParameterSpec& p : layer.parameters) p.trainable = trains[unit(p)];
  return layer;
}

// Backward meets the calls of one module in reverse.
Sharing sharing_of(const ModelSpec& model, std::size_t layer) {
  const auto module_of = [&](std::size_t l) {
    const std::int32_t same = model.order[l].same_as;
    return same < 0 ? l : static_cast<std::size_t>(same);
  };
  const bool first_call = model.order[layer].same_as < 0;
  bool last_call = true;
  for (std::size_t l = layer + 1; l < model.order.size() && last_call; ++l)
    last_call = module_of(l) != module_of(layer);
  if (first_call) return last_call ? Sharing::kNone : Sharing::kLastOfBackward;
  return last_call ? Sharing::kFirstOfBackward : Sharing::kBetween;
}

// What a layer's program depends on beside the plan's setting.
struct Variant {
  std::int32_t kind = 0;
  bool frozen = false;
  ProgramOptions options;  // those that follow from the layer's place
  bool operator==(const Variant&) const = default;
};

// Whether a unit's module begins, or ends, with the layer. Modules of one list run their hooks with
// the first and the last of them; the root casts what the head returns.
void find_borders(const Plan& plan, LayerRole role, std::int64_t block, std::int64_t blocks, ProgramOptions& options) {
  const Units& units = plan.units;
  switch (role) {
    case LayerRole::kEmbedding: options.ends_unit = units.embedding == UnitPlacement::kOwn; return;
    case LayerRole::kBlock:
      if (units.blocks == UnitPlacement::kRoot) return;
      options.begins_unit = block % units.layers_per_unit == 0;
      options.ends_unit = (block + 1) % units.layers_per_unit == 0 || block + 1 == blocks;
      return;
    case LayerRole::kFinalNorm:
      options.ends_unit = units.head == UnitPlacement::kNorm;
      options.begins_unit =
          options.ends_unit || (units.head == UnitPlacement::kWithNorm && units.embedding != UnitPlacement::kWithHead);
      return;
    case LayerRole::kHead:
      options.begins_unit = units.head == UnitPlacement::kOwn && units.embedding != UnitPlacement::kWithHead;
      // (A loss inside the root's forward comes before the root's cast.)
      options.ends_unit = !plan.loss_in_forward || !in_root(units, role);
      return;
    case LayerRole::kLoss:
    case LayerRole::kInner: return;
  }
}

// What the layers after an embedding in the middle do not see.
struct Waiting {
  bool needs_gradient = false;
  DType dtype = DType::kBf16;
};

// What fully_shard casts a unit's outputs to.
std::optional<DType> output_of_units(const Plan& plan) {
  return plan.runtime.kind == RuntimeKind::kFsdp2 ? plan.output_dtype : std::nullopt;
}

// Whether fully_shard's casts of what enters and leaves a unit do anything: other outputs are asked
// for, or an fp32 stream comes in.
bool casts_at_borders(const Plan& plan) {
  const std::optional<DType> output = output_of_units(plan);
  if (output && *output != plan.param_dtype) return true;
  return plan.runtime.kind == RuntimeKind::kFsdp2 && !plan.autocast &&
         plan.kernels.residual == ModuleKernels::Residual::kFp32;
}

// The same, of a model that adds rows of an fp32 buffer to its stream.
bool casts_sinusoids(const ModelSpec& model, const Plan& plan) {
  return plan.runtime.kind == RuntimeKind::kFsdp2 && !plan.autocast && plan.compute_dtype() != DType::kFp32 &&
         adds_sinusoids(model);
}

// Of what a layer hands on (a norm of an fp32 stream: fp32).
DType handed_on(const LayerSpec& layer, const ProgramOptions& place, const Plan& plan) {
  const ProgramOptions options{.compute = plan.compute_dtype(),
      .arrives = place.arrives,
      .output_dtype = output_of_units(plan),
      .begins_unit = place.begins_unit,
      .ends_unit = place.ends_unit};
  const CastedLayer casts = with_casts(layer, options);
  const LayerSpec& casted = casts.layer ? *casts.layer : layer;
  return element_types(casted, casts, options)[static_cast<std::size_t>(casted.output)].dtype;
}

std::int64_t output_bytes(const LayerSpec& layer, const Plan& plan, DType dtype) {
  const std::int64_t count = elements(layer.tensors[static_cast<std::size_t>(layer.output)],
      layer.domain.sequences(plan.batch.micro_batch), layer.domain.length(plan.batch.sequence));
  return checked_multiply(count, size_of(dtype));
}

// Whether what the layer hands on is still on its way when it has ended, and the same of the
// gradient that its backward hands back.
bool leaves_output(const LayerSpec& layer) {
  return std::ranges::any_of(
      layer.operations,
      [&](const Operation& op) {
        return op.collective.kind != CollectiveKind::kNone && !op.collective.waits && !op.outputs.empty() &&
               op.outputs.front() == layer.output;
      });
}
bool leaves_gradient(const LayerSpec& layer) {
  std::size_t readers = 0;
  bool leaves = false;
  for (const Operation& op : layer.operations) {
    if (!contains(op.inputs, Index{0})) continue;
    ++readers;
    leaves = op.collective_backward.kind != CollectiveKind::kNone && !op.collective_backward.waits;
  }
  return readers == 1 && leaves && layer.role != LayerRole::kEmbedding;
}

// Stages add micro-batches up whatever the accumulation says.
bool keeps_unsharded(const Plan& plan) {
  return plan.accumulation == AccumulationMode::kKeepUnsharded || plan.mesh.pp > 1;
}

// Of the gradient of what the layer reads, where all that reads it is a view of a part; else 0.
std::int64_t narrowed_elements(const LayerSpec& layer, const Plan& plan) {
  const Operation* reader = nullptr;
  for (const Operation& op : layer.operations) {
    if (!contains(op.inputs, Index{0})) continue;
    if (reader != nullptr) return 0;
    reader = &op;
  }
  if (reader == nullptr || !reader->view || reader->outputs.size() != 1) return 0;
  const auto count = [&](Index t) {
    return elements(layer.tensors[static_cast<std::size_t>(t)], layer.domain.sequences(plan.batch.micro_batch),
        layer.domain.length(plan.batch.sequence / plan.mesh.cp));
  };
  const std::int64_t narrowed = count(reader->outputs.front());
  return narrowed < count(0) ? narrowed : 0;
}

// DistributedDataParallel and ZeRO's first stages leave the embedding's module as it is.
bool is_of_hooks(RuntimeKind kind) {
  return kind == RuntimeKind::kDdp || kind == RuntimeKind::kZero1 || kind == RuntimeKind::kZero2;
}

// Every layer's; without casts the borders do not matter.
std::vector<Variant> variants_of(const ModelSpec& model, const Plan& plan) {
  const bool casts = casts_at_borders(plan) || casts_sinusoids(model, plan);
  const bool repeats = std::ranges::any_of(model.order, [](const LayerInstance& layer) { return layer.same_as >= 0; });
  std::vector<Variant> variants;
  std::vector<std::int64_t> block_of(model.order.size(), 0);
  const std::int64_t blocks = std::ranges::count_if(model.order, [&](const LayerInstance& layer) {
    return layer.same_as < 0 && model.kinds[static_cast<std::size_t>(layer.kind)].role == LayerRole::kBlock;
  });
  std::vector<Waiting> waiting;
  bool trained_before = plan.runtime.kind == RuntimeKind::kNative;
  const bool trains_root = plan.runtime.kind == RuntimeKind::kFsdp1 && trains_in_root(model, plan);
  std::int64_t block = 0;
  DType arrives = plan.compute_dtype();
  for (std::size_t l = 0; l < model.order.size(); ++l) {
    const LayerInstance& instance = model.order[l];
    const LayerSpec& layer = model.kinds[static_cast<std::size_t>(instance.kind)];
    block += instance.blocks_before;
    trained_before |= instance.begins_stage;
    const std::size_t module = instance.same_as >= 0 ? static_cast<std::size_t>(instance.same_as) : l;
    if (layer.role == LayerRole::kBlock && module == l) block_of[l] = block++;
    Variant variant = {.kind = instance.kind};
    ProgramOptions& options = variant.options;
    options.joined_dtype = plan.compute_dtype();
    options.joined_needs_gradient = false;
    if (l > 0 && layer.role == LayerRole::kEmbedding) {
      const LayerSpec& before = model.kinds[static_cast<std::size_t>(model.order[l - 1].kind)];
      const DType dtype = handed_on(before, variants.back().options, plan);
      options.waiting_bytes = output_bytes(before, plan, dtype);
      waiting.push_back({std::exchange(trained_before, false), dtype});
    }
    if (layer.joins >= 0) {
      FORESHARD_CHECK(!waiting.empty(), "a layer joins what does not wait");
      options.joined_needs_gradient = waiting.back().needs_gradient;
      options.joined_dtype = waiting.back().dtype;
    }
    variant.frozen = module == l ? is_frozen(model, plan, layer, block_of[l]) : variants[module].frozen;
    const bool in_trained_root = trains_root && in_root(plan.units, layer.role);
    if (in_trained_root) variant.frozen = false;
    options.split_parts =
        !layer.nested.empty() && (layer.role == LayerRole::kEmbedding ? plan.units.embedding != UnitPlacement::kRoot
                                                                      : splits_block(plan.units, block_of[module]));
    const bool wants_gradient = plan.lora.rank > 0 && plan.lora.input_require_grads &&
                                layer.role == LayerRole::kEmbedding && is_of_hooks(plan.runtime.kind);
    options.input_needs_gradient = trained_before || wants_gradient;
    // A nested table may be frozen by itself.
    trained_before |= layer.has_trainable() && (!variant.frozen || is_partly_frozen(layer));
    trained_before |= in_trained_root && !layer.parameters.empty();
    trained_before |= wants_gradient;
    if (layer.joins >= 0) {
      trained_before |= waiting.back().needs_gradient;
      waiting.pop_back();
    }
    if (repeats) options.sharing = sharing_of(model, l);
    if (casts) {
      options.arrives = arrives;
      find_borders(plan, layer.role, block_of[module], blocks, options);
      const bool nested =
          layer.role == LayerRole::kEmbedding && !layer.nested.empty() && plan.units.embedding == UnitPlacement::kOwn;
      if (nested) options.ends_unit = false;
      const bool casts_inside = nested && output_of_units(plan) == DType::kFp32;
      arrives = casts_inside ? DType::kFp32 : handed_on(layer, options, plan);
    }
    // A stage holds what it was given and what it returns.
    const bool is_loss = layer.role == LayerRole::kLoss;
    // PyTorch's last stage returns the logits, Megatron-Core's the loss, and one whose head runs in chunks what that
    // reads.
    const bool returns_logits =
        plan.mesh.pp > 1 && plan.runtime.kind != RuntimeKind::kMegatron && plan.loss.kind != Loss::Kind::kChunkedHead;
    const bool holds_input = instance.begins_stage && !is_zero(plan.runtime.kind);  // DeepSpeed's computes with a copy
    options.input_is_held = holds_input || (is_loss && returns_logits);
    options.ends_stage = l + 1 < model.order.size() ? model.order[l + 1].begins_stage : !is_loss;
    if (l > 0 && !instance.begins_stage) {
      const std::int32_t before = model.order[l - 1].kind;
      options.input_in_flight = leaves_output(model.kinds[static_cast<std::size_t>(before)]);
    }
    if (l + 1 < model.order.size() && !options.ends_stage) {
      const LayerSpec& next = model.kinds[static_cast<std::size_t>(model.order[l + 1].kind)];
      options.gradient_elements = narrowed_elements(next, plan);
      options.gradient_in_flight = next.role != LayerRole::kLoss && leaves_gradient(next);
    }
    variants.push_back(variant);
  }
  return variants;
}

}

// Under autocast gradients are cast back to the parameters' dtype; _MixedPrecision swaps the
// parameters themselves. Micro-batches add to the gradients that are there.
void LayerPrograms::set_ddp(const Plan& plan, Setting& setting) {
  const bool copies = plan.ddp.mixed_precision == DdpOptions::MixedPrecision::kParameters;
  const bool casts = plan.param_dtype != plan.master_dtype;
  if (casts && !copies) setting.first_gradient = setting.later_gradient = plan.master_dtype;
  if (plan.batch.accumulation > 1) setting.existing = ExistingGradients::kAll;
  if (!plan.ddp.norms_fp32) return;
  setting.ignored = Ignored::kNorms;
  setting.stored = DType::kFp32;
}

// Stage 1 adds micro-batches up in the gradients themselves; the others take each one's away.
void LayerPrograms::set_zero(const Plan& plan, Setting& setting) {
  const bool is_stage1 = plan.runtime.kind == RuntimeKind::kZero1;
  setting.existing = is_stage1 && plan.batch.accumulation > 1 ? ExistingGradients::kAll : ExistingGradients::kNone;
  setting.stored = plan.param_dtype;
  if (is_stage1 && plan.zero.fp32_gradient_accumulation && plan.mesh.pp == 1)
    setting.first_gradient = setting.later_gradient = DType::kFp32;
}

namespace {

// Layers are cut over the axes inside of shard: how the ranks outside of them share parameters is the same to them.
Mesh joined_data_ranks(Mesh mesh) {
  mesh.shard = mesh.data_parallel();
  mesh.replicate = 1;
  return mesh;
}

}

LayerPrograms::Setting LayerPrograms::setting_of(const Plan& plan) {
  Setting setting;
  setting.runtime = plan.runtime.kind;
  setting.sequence = plan.batch.sequence;
  setting.micro_batch = plan.batch.micro_batch;
  setting.compute = plan.compute_dtype();
  setting.reduce = plan.reduce_dtype;
  setting.stored = plan.master_dtype;
  setting.ignored = plan.ignored;
  setting.expert_units = splits_block(plan.units, 0) ? plan.units.experts_every : 0;
  setting.tokens_are_a_unit = plan.units.embedding != UnitPlacement::kRoot;
  setting.frozen = plan.frozen;
  setting.early_stop = plan.recompute_early_stop;
  setting.reentrant = plan.recompute_reentrant;
  setting.stacked = plan.kernels.scan;
  setting.workspaces = product_workspaces(plan.runtime.torch_minor(), plan.compute_capability);
  // Autocast's casts cast gradients back.
  if (plan.compute_dtype() != plan.param_dtype) setting.first_gradient = setting.later_gradient = plan.param_dtype;
  if (casts_at_borders(plan)) {
    setting.output_dtype = output_of_units(plan);
    setting.units = plan.units;
  }
  // FSDP1's gradients are those of views, made anew in every micro-batch.
  if (plan.batch.accumulation > 1 && plan.runtime.kind != RuntimeKind::kFsdp1) {
    if (plan.ignored == Ignored::kNorms) setting.existing = ExistingGradients::kIgnored;
    if (keeps_unsharded(plan) && plan.reduce_dtype == plan.param_dtype) setting.existing = ExistingGradients::kAll;
  }
  if (plan.runtime.kind == RuntimeKind::kFsdp1 && (plan.frozen.any() || plan.lora.rank > 0))
    setting.units = plan.units;  // which parameters are in one flat parameter
  setting.refers = plan.reference != Reference::kNone;
  setting.evaluates = plan.evaluation.in_step || setting.refers;
  setting.divides_loss = plan.step_frame != StepFrame::kPlain && plan.mesh.pp == 1;
  if (cuts_layers(plan)) {
    setting.mesh = joined_data_ranks(plan.mesh);
    setting.tensor_parallel = plan.tensor_parallel;
    setting.context_parallel = plan.context_parallel;
    setting.expert_parallel = plan.expert_parallel;
    setting.attends_to_all = plan.attention == AttentionKernel::kFlex;
    // The engine's parts are alike on all ranks, but for the slices that they are computed in.
    const bool is_native = plan.runtime.kind == RuntimeKind::kNative;
    setting.rank = is_native ? slices_of_rank(plan) : plan.rank();
  }
  if (plan.mesh.pp > 1) {
    setting.mesh = joined_data_ranks(plan.mesh);
    setting.rank = plan.rank();
    // Whole backwards of stages that go round and round: programs are the same in any order.
    setting.pipeline = plan.pipeline;
    setting.pipeline.stands_for = setting.pipeline.microbatches = 0;
    setting.splits = plan.pipeline.splits_backward();
    if (setting.splits) setting.existing = ExistingGradients::kAll;
    using enum PipelineSchedule;
    const PipelineSchedule order = plan.pipeline.schedule;
    if (order == kGPipe || order == kInterleaved1F1B || order == kLoopedBfs) setting.pipeline.schedule = k1F1B;
  }
  if (plan.runtime.kind == RuntimeKind::kDdp) set_ddp(plan, setting);
  if (is_zero(plan.runtime.kind)) set_zero(plan, setting);
  if (plan.runtime.kind == RuntimeKind::kMegatron) {
    setting.stored = plan.param_dtype;
    setting.early_stop = false;
    setting.gradients = plan.megatron.gradients;
    const bool has_buffer =
        setting.gradients == MegatronOptions::Gradients::kFused || plan.reduce_dtype != plan.param_dtype;
    if (!has_buffer && plan.batch.accumulation > 1) setting.existing = ExistingGradients::kAll;
  }
  if (plan.runtime.kind != RuntimeKind::kFsdp2) return setting;
  if (!plan.mesh.is_wrapped() && plan.batch.accumulation > 1) setting.existing = ExistingGradients::kAll;
  const Fsdp2Version version = fsdp2_version(fsdp2_minor(plan.runtime.version).value_or(kNewestFsdp2));
  if (version.autograd_accumulates) {
    const bool keeps = keeps_unsharded(plan) && plan.batch.accumulation > 1;
    if (keeps) setting.existing = ExistingGradients::kAll;
    const bool wider = size_of(plan.reduce_dtype) > size_of(plan.param_dtype);
    if (!wider || keeps) setting.first_gradient = plan.reduce_dtype;
    if (!wider) setting.later_gradient = plan.reduce_dtype;
  }
  return setting;
}

struct LayerPrograms::Known {
  std::vector<std::pair<Variant, Programs>> list;
};

struct LayerPrograms::Peers {
  Peers(const ModelSpec& of, const Plan& by) : whole(of), plan(by), of_rank(static_cast<std::size_t>(by.mesh.pp)) {}

  const ModelSpec& whole;
  const Plan plan;
  std::mutex mutex;
  Known known;
  std::vector<std::unique_ptr<const LayerPrograms>> of_rank;
};

LayerPrograms::LayerPrograms(const ModelSpec& whole, const Plan& plan) {
  std::shared_ptr<Peers> peers;
  if (plan.mesh.pp > 1) peers = std::make_shared<Peers>(whole, plan);
  Known known;
  *this = LayerPrograms(whole, plan, peers ? peers->known : known);
  peers_ = std::move(peers);
}

const LayerPrograms& LayerPrograms::of_pipeline_rank(std::int64_t rank) const {
  if (!peers_ || rank == peers_->plan.mesh.pp_index(peers_->plan.rank())) return *this;
  const std::lock_guard lock(peers_->mutex);
  std::unique_ptr<const LayerPrograms>& peer = peers_->of_rank[static_cast<std::size_t>(rank)];
  if (!peer) {
    const Plan other = at_pipeline_rank(peers_->plan, rank);
    peer.reset(new LayerPrograms(peers_->whole, other, peers_->known));
  }
  return *peer;
}

LayerPrograms::LayerPrograms(const ModelSpec& whole, const Plan& plan, Known& shared) : setting_(setting_of(plan)) {
  const bool is_megatron = plan.runtime.kind == RuntimeKind::kMegatron;
  if (plan.mesh.pp > 1) local_ = std::make_shared<const ModelSpec>(part_of_pipeline(whole, plan));
  if (cuts_layers(plan)) local_ = std::make_shared<const ModelSpec>(part_of_rank(model_of(whole), plan));
  if (setting_.divides_loss) {
    ModelSpec divided = model_of(whole);
    divide_loss(divided);
    local_ = std::make_shared<const ModelSpec>(std::move(divided));
  }
  const ModelSpec& model = model_of(whole);
  const bool has_one_embedding = std::ranges::count_if(whole.order, [&](const LayerInstance& each) {
    return whole.kinds[static_cast<std::size_t>(each.kind)].role == LayerRole::kEmbedding;
  }) == 1;
  const bool at_borders = casts_at_borders(plan) || casts_sinusoids(model, plan);
  if (at_borders) setting_.units = plan.units;
  modes_[static_cast<std::size_t>(Recompute::kNone)] = true;
  modes_[static_cast<std::size_t>(plan.recompute.value)] = true;
  for (const auto& range : plan.recompute.ranges) modes_[static_cast<std::size_t>(range.value)] = true;
  std::vector<Variant> known;
  for (const Variant& variant : variants_of(model, plan)) {
    const auto at = std::ranges::find(known, variant);
    variant_of_layer_.push_back(static_cast<std::int32_t>(at - known.begin()));
    if (at == known.end()) known.push_back(variant);
  }
  programs_.resize(known.size());
  for (std::size_t v = 0; v < known.size(); ++v) {
    const Variant& variant = known[v];
    const auto same = std::ranges::find(shared.list, variant, &std::pair<Variant, Programs>::first);
    if (same != shared.list.end()) {
      programs_[v] = same->second;
      continue;
    }
    const LayerSpec& layer = model.kinds[static_cast<std::size_t>(variant.kind)];
    ProgramOptions options = variant.options;
    options.batch = layer.domain.sequences(plan.batch.micro_batch);
    options.sequence = layer.domain.length(plan.batch.sequence / plan.mesh.cp);
    options.wraps_gradients =
        (plan.mesh.tp > 1 || !plan.mesh.is_wrapped()) && plan.runtime.kind != RuntimeKind::kNative && !is_megatron;
    options.pipelines_products = plan.mesh.tp > 1 && plan.tensor_parallel.async;
    options.compute = plan.compute_dtype();
    // TransformerEngine's modules have their own (library_buffers); what a chunked head has beside its products is
    // more.
    const bool is_chunked = layer.role == LayerRole::kHead && plan.loss.kind == Loss::Kind::kChunkedHead;
    if (!is_chunked && !(has_engine_modules(plan.runtime) && layer.role == LayerRole::kBlock))
      options.workspaces = setting_.workspaces;
    options.gradients =
        plan.runtime.kind == RuntimeKind::kNative ? GradientStorage::kFlat : GradientStorage::kPerParameter;
    // A GPU's products write the flat buffer's dtype themselves, but not those in slices.
    const bool casts = plan.host == HostKind::kComputes || plan.mesh.tp > 1;
    options.flat_gradient = casts ? plan.reduce_dtype : options.compute;
    options.adds_gradients = plan.runtime.kind == RuntimeKind::kNative && !casts;
    const bool is_table = layer.role == LayerRole::kEmbedding && !layer.tower;
    const bool is_shared = has_shared_table(model) && is_table;
    options.tied = !is_shared                                 ? Tying::kNone
                   : plan.loss.has_product()                  ? Tying::kHeld
                   : plan.runtime.kind == RuntimeKind::kZero3 ? Tying::kOwned
                                                              : Tying::kTokenTable;
    if (variant.frozen) options.frozen = frozen_parameters(layer);
    options.ignores_norms = setting_.ignored == Ignored::kNorms;
    options.stored = setting_.stored;
    options.keeps_inputs = plan.runtime.kind == RuntimeKind::kZero3;
    options.early_stop = setting_.early_stop;
    options.reentrant = setting_.reentrant;
    options.stacked = setting_.stacked && layer.role == LayerRole::kBlock;
    options.hooks = plan.runtime.kind == RuntimeKind::kDdp || is_megatron || is_zero(plan.runtime.kind);
    options.keeps_read = is_megatron || plan.recompute_keeps == SelectivePolicy::kModules;
    options.fused_gradients = is_megatron && setting_.gradients == MegatronOptions::Gradients::kFused;
    options.fuses_tied = options.fused_gradients && has_one_embedding;
    // Without axes what comes before is taken as small.
    options.recomputes_first = is_megatron || (plan.mesh.is_plain() && plan.step_frame == StepFrame::kPlain);
    if (at_borders) options.output_dtype = output_of_units(plan);
    if (plan.runtime.kind == RuntimeKind::kFsdp1 && plan.lora.rank > 0) {
      const bool in_trained_root = in_root(plan.units, layer.role) && trains_in_root(model, plan);
      derive(with_flat_gradients(layer, options.split_parts, in_trained_root), options, programs_[v]);
    } else {
      derive(layer, options, programs_[v]);
    }
    shared.list.emplace_back(variant, programs_[v]);
  }
  if (plan.runtime.kind == RuntimeKind::kZero3) zero3_trace_ = trace_zero3(model, plan, *this);
}

void LayerPrograms::derive(const LayerSpec& layer, ProgramOptions options, Programs& programs) const {
  for (std::size_t mode = 0; mode < modes_.size(); ++mode) {
    if (!modes_[mode] || (layer.role != LayerRole::kBlock && mode != 0)) continue;
    options.recompute = static_cast<Recompute>(mode);
    const auto build = [&] { return std::make_shared<const LayerProgram>(build_layer_program(layer, options)); };
    const auto of = [&](StepMicroBatch micro_batch) -> std::shared_ptr<const LayerProgram>& {
      return programs.of[static_cast<std::size_t>(micro_batch)][mode];
    };
    const auto build_both = [&](StepMicroBatch split, StepMicroBatch whole) {
      options.splits_backward = setting_.splits;
      if (setting_.splits) of(split) = build();
      options.splits_backward = false;
      of(whole) = build();
    };
    options.existing = ExistingGradients::kNone;
    options.gradient_dtype = setting_.first_gradient;
    build_both(StepMicroBatch::kSplit, StepMicroBatch::kFirst);
    of(StepMicroBatch::kLater) = of(StepMicroBatch::kLastOfSeveral) = of(StepMicroBatch::kFirst);
    if (setting_.existing == ExistingGradients::kNone) continue;
    options.existing = setting_.existing;
    options.gradient_dtype = setting_.later_gradient;
    build_both(StepMicroBatch::kSplitLater, StepMicroBatch::kLater);
    of(StepMicroBatch::kLastOfSeveral) = of(StepMicroBatch::kLater);
    // Of a table that stacks share the gradients are added up before anything is reduced, unless it
    // is a unit by itself, which is reduced call by call.
    const bool is_with_others =
        layer.role == LayerRole::kEmbedding && (!setting_.tokens_are_a_unit || options.tied != Tying::kNone);
    if (options.sharing == Sharing::kNone || setting_.existing != ExistingGradients::kAll || options.hooks ||
        is_with_others)
      continue;
    options.existing = options.ignores_norms ? ExistingGradients::kIgnored : ExistingGradients::kNone;
    of(StepMicroBatch::kLastOfSeveral) = build();
  }
  if (!setting_.evaluates) return;
  options.recompute = Recompute::kNone;
  options.grad_mode = options.stacked = false;
  LayerSpec evaluated = layer;
  const bool has_loss = setting_.runtime == RuntimeKind::kNative || setting_.refers;
  if (layer.role == LayerRole::kLoss && has_loss)
    evaluated.operations.back().released.push_back(layer.output);         // nobody comes behind it
  else if (layer.role == LayerRole::kLoss) evaluated.operations.clear();  // a library's is the model's forward alone
  programs.evaluation = std::make_shared<const LayerProgram>(build_layer_program(evaluated, options));
}

const std::shared_ptr<const LayerProgram>& LayerPrograms::at(
    std::int32_t layer, Recompute recompute, StepMicroBatch micro_batch) const {
  const auto kind = static_cast<std::size_t>(micro_batch);
  return of(layer).of[kind][static_cast<std::size_t>(recompute)];
}

const std::shared_ptr<const LayerProgram>& LayerPrograms::evaluation(std::int32_t layer) const {
  return of(layer).evaluation;
}

bool LayerPrograms::are_alike(const Plan& plan, const Plan& other) {
  return plan.recompute == other.recompute && setting_of(plan) == setting_of(other);
}

bool LayerPrograms::serve(const Plan& plan) const {
  Setting asked = setting_of(plan);
  if (setting_.units != Units()) asked.units = plan.units;  // (casts_sinusoids)
  if (asked != setting_) return false;
  if (!modes_[static_cast<std::size_t>(plan.recompute.value)]) return false;
  return std::ranges::all_of(
      plan.recompute.ranges, [&](const auto& range) { return modes_[static_cast<std::size_t>(range.value)]; });
}

}
