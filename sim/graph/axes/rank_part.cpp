// Operations are copied one by one while the placement of every tensor is followed, as DTensor's
// placements follow torchtitan's parallelize functions:
//
//   whole     every rank of tp has all of it
//   sequence  a part of the positions each (SequenceParallel): inputs of layers, norms, residuals
//   feature   a part of the features or heads each
//
// A product reads whole rows: what it reads of a sequence-parallel tensor is gathered once, where the module begins. A
// product of whole rows is cut by columns (ColwiseParallel) and makes a feature tensor; one of a feature tensor is cut
// by rows (RowwiseParallel) and makes a sum of which each rank has a part, which is reduce-scattered back to the
// positions, or all-reduced without sequence parallel; then every colwise product owns its input and all-reduces that
// one's gradient. Norms on a part have a part of their weight's gradient.
//
// Megatron-Core's linear layers gather what they read themselves, once more in backward, and keep
// the part (Operation::gathers; core/tensor_parallel/layers.py of 0.20,
// LinearWithGradAccumulationAndAsyncCommunication); products of one input are one.
//
// Sources: torchtitan 0.2.2 models/*/infra/parallelize.py; torch 2.11
// distributed/tensor/parallel/style.py, loss.py; recorded in tests/recordings/nd.
#include "sim/graph/axes/rank_part.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "sim/base/lookup.h"
#include "sim/graph/axes/layer_cutter.h"
#include "sim/graph/axes/layer_part.h"
#include "sim/graph/axes/parameter_order.h"
#include "sim/graph/layers/layer_writer.h"
#include "sim/spec/checks/plan_check.h"

namespace foreshard {
namespace {

// Megatron's tables have a multiple of 128 rows on each rank of tp, whatever the tokenizer
// (Megatron-LM's make_vocab_size_divisible_by): no product of the head is misaligned.
void pad_vocabulary(ModelSpec& model, std::int64_t multiple) {
  const std::int64_t own = model.vocabulary;
  if (own <= 0 || own % multiple == 0) return;
  const std::int64_t all = (own + multiple - 1) / multiple * multiple;
  const auto pad = [&](std::int64_t& size) {
    if (size % own == 0) size = size / own * all;  // of several predictions
  };
  for (LayerSpec& layer : model.kinds) {
    if (layer.tower || layer.tensors.empty()) continue;
    std::vector<bool> has_logits(layer.tensors.size(), layer.role == LayerRole::kLoss);
    const std::int64_t width =
        layer.role == LayerRole::kHead ? layer.tensors[at(layer.output)].per_token : layer.tensors.front().per_token;
    for (Operation& op : layer.operations) {
      const bool looks_up =
          layer.role == LayerRole::kEmbedding && op.kind == OperationKind::kEmbedding && op.inputs.front() == 0;
      const bool projects = layer.role == LayerRole::kHead && op.kind == OperationKind::kGemm && op.n == own;
      if (projects) op.n = all;
      for (const Index p : op.parameters) {
        std::vector<std::int64_t>& shape = layer.parameters[at(p)].shape;
        const bool turned = op.transposed_weight && shape.size() > 1;
        if ((looks_up || projects) && shape[turned ? 1 : 0] == own) shape[turned ? 1 : 0] = all;
      }
      const bool reads = std::ranges::any_of(op.inputs, [&](Index t) { return has_logits[at(t)]; });
      for (const Index t : op.outputs) has_logits[at(t)] = has_logits[at(t)] || projects || reads;
    }
    for (std::size_t t = 0; t < layer.tensors.size(); ++t) {
      TensorSpec& tensor = layer.tensors[t];
      if (has_logits[t] && width > 0 && tensor.per_token == width) pad(tensor.per_token);
    }
  }
}

// What is split off in three behind a product becomes copies.
void copy_parts(LayerSpec& layer) {
  const auto split =
      std::ranges::find_if(layer.operations, [](const Operation& op) { return op.view && op.outputs.size() == 3; });
  std::vector<Operation> copies;
  for (Index& part : split->outputs) {
    const Index copy = part;
    part = add_tensor(layer, layer.tensors[at(copy)]);
    copies.push_back(pass(layer.tensors[at(copy)].name, Function::kCopy, part, copy));
    copies.back().gradient = GradientRule::kAlias;
    copies.back().released = {part};
    copies.back().part = split->part;
  }
  layer.operations.insert(split + 1, copies.begin(), copies.end());
}

// torchtitan 0.3's FusedQKVLinear, which copies queries, keys and values out of it; per-operation checkpointing then
// keeps every second product without a bias, and all with one (activation_checkpoint.py).
LayerSpec fuse_projections(LayerSpec layer) {
  const std::size_t before = layer.operations.size();
  layer = fuse_columns(std::move(layer), 3);
  if (layer.role != LayerRole::kBlock || layer.operations.size() == before) return layer;
  copy_parts(layer);
  int products = 0;
  for (Operation& op : layer.operations) {
    if (op.kind != OperationKind::kGemm || op.groups > 1 || contains(op.name, "router")) continue;
    op.kept_by_selective = op.parameters.size() > 1 || products++ % 2 == 0;
  }
  return layer;
}

// With the products that Megatron-Core runs as one, and what its mixtures and dispatchers do.
LayerSpec as_executed(LayerSpec layer, const Plan& plan) {
  const bool is_megatron = plan.runtime.kind == RuntimeKind::kMegatron;
  if (is_megatron) layer = fuse_columns(std::move(layer));
  if (is_titan_3(plan)) layer = use_titan_3_mixture(std::move(layer), plan.compute_dtype() != DType::kFp32);
  if (is_titan_3(plan) && plan.compile == Compile::kNone) layer = fuse_projections(std::move(layer));
  if (plan.mesh.cp > 1) layer = unpack_attention(std::move(layer));
  if (is_megatron) layer = copy_keys(std::move(layer), plan.mesh.tp);
  if (has_engine_modules(plan.runtime)) layer = copy_values(std::move(layer));
  if (is_megatron && plan.megatron.gradients != MegatronOptions::Gradients::kFused) {
    const bool waits = plan.mesh.tp == 1 || !plan.tensor_parallel.sequence || plan.tensor_parallel.keeps_gathered;
    const bool reads_copy = plan.batch.micro_batch > 1 && waits;
    layer = copy_around_attention(std::move(layer), true, reads_copy);
  }
  const bool sends = sends_tokens(plan);
  if (is_megatron || sends) {
    // Graphs of whole iterations need rows that the host does not count: fused experts.
    const bool is_fused = plan.megatron.cuda_graphs == MegatronOptions::CudaGraphs::kIteration;
    layer = weigh_in_activation(std::move(layer), is_megatron && !is_fused);
  }
  if (is_megatron) layer = route_by_maps(std::move(layer), plan);
  return sends ? send_tokens(std::move(layer)) : layer;
}

// Whether fully_shard gives embedding and head a parameter each (torchtitan applies none where tp
// alone divides the model).
bool parts_table(const Plan& plan) {
  const Mesh& mesh = plan.mesh;
  return plan.runtime.kind == RuntimeKind::kFsdp2 && plan.units.embedding != UnitPlacement::kRoot &&
         (plan.units.embedding != UnitPlacement::kWithHead || is_titan_3(plan)) && mesh.is_wrapped();
}

// visit(kind, its cut), of each kind once. What a kind hands on follows from what arrives at it.
template <typename Visit>
void cut_kinds(const ModelSpec& model, const Plan& plan, const Visit& visit) {
  std::vector<bool> done(model.kinds.size(), false);
  std::map<std::tuple<std::size_t, Placement, Placement>, Placement> outputs;
  std::vector<Placement> handed_on;  // by the layers so far
  for (const LayerInstance& instance : model.order) {
    const auto kind = at(instance.kind);
    const LayerSpec& layer = model.kinds[kind];
    const auto place = static_cast<std::int32_t>(handed_on.size());
    // Stages hand on what blocks do.
    const bool in_parts = plan.mesh.tp > 1 && plan.tensor_parallel.sequence;
    const Placement received = in_parts ? Placement::kSequence : Placement::kWhole;
    const Placement arrives = instance.begins_stage ? received : place == 0 ? Placement::kWhole : handed_on.back();
    const Placement joined = layer.joins < 0 ? Placement::kWhole : handed_on[at(chain_joined_at(model, place)) - 1];
    const std::tuple key(kind, arrives, joined);
    if (const auto known = outputs.find(key); known != outputs.end()) {
      handed_on.push_back(known->second);
      continue;
    }
    CutLayer cut = cut_layer(as_executed(layer, plan), plan, arrives, joined);
    if (plan.float8 != Float8::kNone && plan.runtime.kind == RuntimeKind::kMegatron)
      cut.layer = keep_narrow_inputs(std::move(cut.layer));
    if (plan.runtime.kind == RuntimeKind::kMegatron && layer.role == LayerRole::kBlock)
      recompute_modules(cut.layer, plan.megatron.recompute_modules);
    handed_on.push_back(outputs[key] = cut.output);
    if (!done[kind]) visit(kind, std::move(cut));
    done[kind] = true;
  }
}

}

std::int64_t slices_of_rank(const Plan& plan) {
  return std::max(slices_of(plan.reduction_order) / plan.mesh.tp, std::int64_t{1});
}

bool cuts_layers(const Plan& plan) {
  return !plan.mesh.is_plain() || slices_of_rank(plan) > 1 || plan.runtime.kind == RuntimeKind::kMegatron ||
         plan.step_frame != StepFrame::kPlain;
}

bool has_shared_table(const ModelSpec& part) {
  return part.tied_embeddings &&
         std::ranges::any_of(
             part.kinds,
             [](const LayerSpec& layer) {
               return std::ranges::any_of(
                   layer.parameters, [](const ParameterSpec& p) { return p.tied && p.trainable; });
             });
}

// A gradient of the whole table, added to the head's, of the rank's rows, leaves one of those
// (DTensor's pointwise rule).
void shorten_table_gradient(LayerSpec& layer) {
  ParameterSpec& table = layer.parameters.front();
  const std::int64_t made = std::exchange(table.gradient_numel, 0);
  if (made == 0) return;
  const auto whole = static_cast<Index>(layer.tensors.size());
  layer.tensors.push_back({.name = table.name + ".grad of all rows", .fixed = made});
  for (Operation& op : layer.operations)
    if (op.kind == OperationKind::kEmbedding && !op.parameters.empty() && op.parameters[0] == 0)
      op.backward_temporaries.push_back(whole);
}

ModelSpec part_of_rank(const ModelSpec& model, const Plan& plan) {
  ModelSpec part = model;
  if (plan.runtime.kind == RuntimeKind::kMegatron)
    pad_vocabulary(part, plan.megatron.make_vocab_size_divisible_by * plan.mesh.tp);
  if (parts_table(plan)) {
    for (LayerSpec& layer : part.kinds)
      for (ParameterSpec& p : layer.parameters) p.tied = false;
  }
  cut_kinds(ModelSpec(part), plan, [&](std::size_t kind, CutLayer cut) {
    part.kinds[kind] = std::move(cut.layer);
    if (plan.runtime.kind == RuntimeKind::kNative) return;
    const bool is_megatron = plan.runtime.kind == RuntimeKind::kMegatron;
    is_megatron ? order_as_executed(part.kinds[kind]) : order_as_registered(part.kinds[kind]);
  });
  if (has_shared_table(part)) {
    for (LayerSpec& layer : part.kinds)
      if (layer.role == LayerRole::kEmbedding && !layer.tower) shorten_table_gradient(layer);
  }
  return part;
}

SlicesOfPart slices_of_part(const ModelSpec& model, const Plan& plan) {
  SlicesOfPart slices(model.kinds.size());
  cut_kinds(model, plan, [&](std::size_t kind, CutLayer cut) { slices[kind] = std::move(cut.slices); });
  return slices;
}

void divide_loss(ModelSpec& model) {
  for (LayerSpec& layer : model.kinds) {
    const bool has_gradient_already =
        std::ranges::any_of(layer.operations, [](const Operation& op) { return op.in_place; });
    if (layer.role != LayerRole::kLoss || layer.operations.size() < 2 || has_gradient_already) continue;
    const Index sum = layer.output;
    TensorSpec divided = layer.tensors[at(sum)];
    layer.tensors[at(sum)].name = kUndividedLoss;
    layer.tensors.push_back(std::move(divided));
    layer.output = static_cast<Index>(layer.tensors.size() - 1);
    Operation op = {.name = "divide", .function = Function::kScale, .inputs = {sum}, .outputs = {layer.output}};
    // The trainer holds the sum: what is let go of before it is there is never let go of. The
    // logits go when the loss returns.
    layer.operations.front().released.push_back(sum);
    Operation& last = layer.operations.back();
    if (std::erase(last.released, Index{0}) > 0) op.released = {0};
    layer.operations.push_back(std::move(op));
  }
}

}
