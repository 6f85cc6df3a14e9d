// Each key is one rewriting of the layers' operation lists, in the order lora (models/layers/lora.h), batch.documents,
// experts, attention, loss (models/layers/loss_variants.h), float8, compile
// (models/layers/compiled.h). Sizes are per token; T tokens, width d of all heads, h heads, V vocabulary.
//
// attention (models/layers/attention_kernels.h; kernel's own memory in backward;
// aten/src/ATen/native/transformers/cuda of 2.11):
//   flash      dq in fp32, 4d with head_dim rounded up to 32, and sum(dout * out), 4h; with fewer
//              heads of keys than of queries dk and dv of all heads, 2d each (flash_attn/
//              flash_api.cpp, mha_bwd)
//   efficient  dq in fp32, 4d, and delta, 4h (attention_backward.cu); keys and values are repeated
//              for every head first, 2d each, and saved so
//   cudnn      its workspace is cuDNN's secret: taken as flash's (assumed)
//
// float8 (torchao/float8/float8_linear.py): a linear layer casts its input and its weight before
// the product and again in backward, with the output's gradient; it saves what bf16 would.
#include "models/layers/variants.h"

#include <algorithm>
#include <string>
#include <utility>

#include "models/layers/attention_kernels.h"
#include "models/layers/compiled.h"
#include "models/layers/family_rows.h"
#include "models/layers/lora.h"
#include "models/layers/loss_variants.h"
#include "models/layers/mamba.h"
#include "models/layers/module_kernels.h"
#include "models/layers/titan_modules.h"
#include "models/layers/transformers_moe.h"
#include "sim/base/lookup.h"
#include "sim/graph/layers/column_sums.h"
#include "sim/graph/layers/given_mask.h"
#include "sim/graph/layers/layer_writer.h"
#include "sim/spec/checks/plan_check.h"
#include "sim/spec/size_units.h"

namespace foreshard {
namespace {

// --- float8 ---

void apply_float8(LayerSpec& layer, const Plan& plan) {
  for (std::size_t o = 0; o < layer.operations.size(); ++o) {
    const bool is_adapters = contains(layer.operations[o].name, ".lora_");  // Megatron-Core's own linear layers
    if (layer.operations[o].kind != OperationKind::kGemm || is_adapters) continue;
    Operation op = std::move(layer.operations[o]);
    const auto bytes = [&](const std::string& name, std::int64_t per_token, std::int64_t fixed) {
      return add_tensor(layer, {.name = name, .per_token = per_token, .fixed = fixed, .type = ElementType::kByte});
    };
    const std::int64_t weight = checked_multiply(op.n, op.k);
    op.fp8 = plan.float8;
    // Of aten._scaled_mm_v2 PyTorch's list of compute_intensive_ops has nothing.
    op.kept_by_selective &= plan.float8 != Float8::kNvfp4;
    const auto narrow = [&](std::int64_t elements) { return narrow_bytes(op.fp8, elements); };
    ParameterSpec& parameter = layer.parameters[at(op.parameters.front())];
    const bool is_megatron = plan.runtime.kind == RuntimeKind::kMegatron;
    const bool is_linear = is_megatron || parameter.shape.size() == 2;  // torchao's: nn.Linear
    parameter.gathered_in_fp8 = plan.float8_all_gather && is_linear;
    op.fp8_weight = parameter.gathered_in_fp8 || is_megatron;
    op.backward_workspace = {bytes(op.name + ".output_grad_fp8", narrow(op.n), 0)};
    if (is_megatron) {  // keeps the others (keep_narrow_inputs; Megatron::persistent_memory)
      layer.operations[o] = std::move(op);
      continue;
    }
    op.forward_workspace = {bytes(op.name + ".input_fp8", narrow(op.k), 0)};
    if (!op.fp8_weight) op.forward_workspace.push_back(bytes(op.name + ".weight_fp8", 0, narrow(weight)));
    op.backward_workspace.push_back(bytes(op.name + ".weight_fp8 (backward)", 0, narrow(weight)));
    op.backward_workspace.push_back(bytes(op.name + ".input_fp8 (backward)", narrow(op.k), 0));
    layer.operations[o] = std::move(op);
  }
}

// The last blocks become kinds of their own.
void keep_blocks_wide(ModelSpec& model, std::int64_t count) {
  std::vector<std::pair<std::int32_t, std::int32_t>> copies;
  for (auto layer = model.order.rbegin(); layer != model.order.rend() && count > 0; ++layer) {
    if (model.kinds[at(layer->kind)].role != LayerRole::kBlock) continue;
    --count;
    auto found = std::ranges::find(copies, layer->kind, &std::pair<std::int32_t, std::int32_t>::first);
    if (found == copies.end()) {
      LayerSpec copy = model.kinds[at(layer->kind)];
      copy.name += " in the compute dtype";
      copy.wide = true;
      model.kinds.push_back(std::move(copy));
      copies.emplace_back(layer->kind, static_cast<std::int32_t>(model.kinds.size() - 1));
      found = copies.end() - 1;
    }
    layer->kind = found->second;
  }
}

// --- selective recompute ---

// Attention, and the products whose results something else than the layer's own result is made of.
void keep_dots(LayerSpec& layer) {
  const auto is_read = [&](const Operation& product) {
    return std::ranges::any_of(layer.operations, [&](const Operation& op) {
      const bool ends_layer = op.gradient == GradientRule::kAlias && std::ranges::count(op.outputs, layer.output) > 0;
      return !ends_layer && std::ranges::count(op.inputs, product.outputs.front()) > 0;
    });
  };
  for (Operation& op : layer.operations)
    op.kept_by_selective = op.kind == OperationKind::kAttention || (op.kind == OperationKind::kGemm && is_read(op));
}

// Attention's inputs and what they are made from: the products among them are attention's, and so
// is the first that reads what it makes.
void keep_dots_except_mlp(LayerSpec& layer) {
  std::vector<bool> before(layer.tensors.size()), behind(layer.tensors.size());
  const auto any = [&](const Indices& list, const std::vector<bool>& marked) {
    return std::ranges::any_of(
        list, [&](Index t) { return marked[at(t)]; });
  };
  const auto mark = [&](const Indices& list, std::vector<bool>& marks) {
    for (const Index t : list) marks[at(t)] = true;
  };
  for (auto op = layer.operations.rbegin(); op != layer.operations.rend(); ++op) {
    const bool makes_it = any(op->outputs, before);
    if (op->kind == OperationKind::kAttention || makes_it) mark(op->inputs, before);
    op->kept_by_selective = op->kind == OperationKind::kGemm && makes_it;
  }
  for (Operation& op : layer.operations) {
    const bool reads_it = any(op.inputs, behind);
    if (op.kind == OperationKind::kGemm && reads_it) {
      op.kept_by_selective = true;
      return;
    }
    if (op.kind == OperationKind::kAttention || reads_it) mark(op.outputs, behind);
  }
}

// Norms of the residual stream, and what of it another reads.
void keep_modules(LayerSpec& layer) {
  Indices stream = {0};
  for (Operation& op : layer.operations) {
    const bool is_norm = op.function == Function::kRmsNorm || op.function == Function::kLayerNorm;
    const bool adds = op.function == Function::kAdd && op.inputs.size() == 2 && op.outputs.front() != layer.output;
    if (adds) stream.push_back(op.outputs.front());
    op.kept_by_selective = adds || (is_norm && contains(stream, op.inputs.front()));
  }
}

// --- experts ---

// torchtitan's _run_experts_grouped_mm multiplies in bf16 whatever arrives: rows are cast for each
// product that reads them, weights for theirs, and the result back (torchtitan/models/moe/moe.py).
void multiply_in_bf16(LayerSpec& layer) {
  const auto is_grouped = [](const Operation& op) { return op.groups > 1; };
  std::vector<Operation> old = std::exchange(layer.operations, {});
  const auto first = std::ranges::find_if(old, is_grouped);
  const Index rows = first == old.end() ? Index{-1} : first->inputs.front();
  auto left = std::ranges::count_if(old, is_grouped);
  const auto narrow = [&](TensorSpec spec, const std::string& name) {
    spec.name = name + " in bf16";
    spec.type = ElementType::kBf16;
    return add_tensor(layer, std::move(spec));
  };
  const auto cast = [&](Index from, Index to, std::int8_t part) -> Operation& {
    Operation& op = layer.operations.emplace_back();
    op.name = tensor(layer, to).name;
    op.function = Function::kCast;
    op.part = part;
    op.inputs = {from};
    op.outputs = {to};
    return op;
  };
  for (Operation& op : old) {
    if (!is_grouped(op)) {
      layer.operations.push_back(std::move(op));
      continue;
    }
    const Index made = op.outputs.front();
    const std::int8_t part = op.part;
    Indices ended = std::exchange(op.released, {});
    if (op.inputs.front() == rows) {
      const Index copy = narrow(tensor(layer, rows), tensor(layer, rows).name);
      cast(rows, copy, part);
      for (Indices* list : {&op.inputs, &op.saved}) std::replace(list->begin(), list->end(), rows, copy);
      op.released = {copy};
    }
    op.casts_weight = true;
    const auto& stack = layer.parameters[at(op.parameters.front())];
    const Index weight = narrow({.name = {}, .fixed = stack.numel()}, op.name);
    for (Indices* list : {&op.outputs, &op.saved, &op.released}) list->push_back(weight);
    const bool is_last = --left == 0;
    const Index product = is_last ? narrow(tensor(layer, made), tensor(layer, made).name) : made;
    op.outputs.front() = product;
    layer.tensors[at(product)].type = ElementType::kBf16;
    layer.operations.push_back(std::move(op));
    Operation& behind = is_last ? cast(product, made, part) : layer.operations.back();
    if (is_last) behind.released = {product};
    append(behind.released, ended);
  }
}

// torchtitan's _run_experts_for_loop: the rows of each expert are read by the host (tolist), every
// expert's kernels are launched by themselves, and their outputs concatenated.
void loop_over_experts(LayerSpec& layer) {
  std::vector<Operation>& ops = layer.operations;
  const auto is_grouped = [](const Operation& op) { return op.groups > 1; };
  const auto first = std::ranges::find_if(ops, is_grouped);
  if (first == ops.end() || first == ops.begin()) return;
  const auto last = std::find_if(ops.rbegin(), ops.rend(), is_grouped).base() - 1;
  (first - 1)->host_reads = true;
  for (auto op = first; op <= last; ++op) {
    op->groups = first->groups;
    op->one_by_one = true;
  }
  const Index made = last->outputs.front();
  Operation join;
  join.name = "concatenate_experts";
  join.function = Function::kCopy;
  join.part = last->part;
  join.inputs = {made};
  join.gradient = GradientRule::kAlias;  // views
  join.released = std::exchange(last->released, {});
  const auto at = last - ops.begin();
  const TensorSpec spec = tensor(layer, made);
  join.outputs = {add_tensor(layer, spec)};
  for (auto op = ops.begin() + at + 1; op != ops.end(); ++op)
    for (Indices* list : {&op->inputs, &op->saved, &op->released})
      std::replace(list->begin(), list->end(), made, join.outputs.front());
  ops.insert(ops.begin() + at + 1, std::move(join));
}

// --- the cache of keys and values ---

// Beside one tensor of queries, keys and values, which queries are a view of, the copies are two
// more (eager attention copies its heads in any case).
void cache_parts(LayerSpec& layer) {
  std::vector<Operation>& ops = layer.operations;
  const auto attends = std::ranges::find(ops, OperationKind::kAttention, &Operation::kind);
  if (attends == ops.end() || attends->inputs.size() != 1) return;
  const Index whole = attends->inputs.front();
  std::vector<Operation> cached;
  for (const std::size_t part : {1, 2}) {
    TensorSpec spec = tensor(layer, attends->backward_temporaries[part]);
    spec.name = std::string(kCached) + (part == 1 ? "k" : "v");
    const Index to = add_tensor(layer, std::move(spec));
    cached.push_back(pass(layer.tensors.back().name, Function::kCopy, whole, to));
    cached.back().part = attends->part;
    cached.back().gradient = GradientRule::kNone;  // (it is in the attention's, made apart)
    attends->saved.push_back(to);
    attends->released.push_back(to);
  }
  ops.insert(attends, cached.begin(), cached.end());
}

// What attention reads of keys and values are copies behind those of earlier tokens, of which there are none
// (transformers, cache_utils.py, DynamicLayer.update). The cache has them until the model's arguments go, with which a
// checkpointed block holds it. Keys that the tables of an fp32 stream have rotated are fp32, and values are cached in
// the dtype of keys; autocast's attention reads casts of both.
void cache_keys(LayerSpec& layer, const Plan& plan) {
  if (plan.attention != AttentionKernel::kEager) cache_parts(layer);
  std::vector<Operation>& ops = layer.operations;
  const bool widens = is_under_autocast(plan) && plan.kernels.residual == ModuleKernels::Residual::kFp32 &&
                      std::ranges::any_of(ops, [](const Operation& op) { return op.function == Function::kRotary; });
  for (const std::size_t input : {1, 2}) {
    const auto attends = std::ranges::find_if(
        ops, [&](const Operation& op) { return op.kind == OperationKind::kAttention && op.inputs.size() > input; });
    if (attends == ops.end()) return;
    // Latents are cached, which nothing else keeps (transformers 5).
    if (attends->attention.value_dim > 0 && plan.transformers() != 4) return;
    const Index from = attends->inputs[input];
    TensorSpec spec = tensor(layer, from);
    TensorSpec narrow = spec;
    spec.name.insert(0, kCached);
    if (widens) spec.type = ElementType::kFp32;
    const Index to = add_tensor(layer, std::move(spec));
    std::vector<Operation> cached = {pass(layer.tensors.back().name, Function::kCopy, from, to)};
    Index read = to;
    if (widens) {
      narrow.name += "_cast";
      read = add_tensor(layer, std::move(narrow));
      cached.push_back(pass(layer.tensors.back().name, Function::kCast, to, read));
      const bool is_held = plan.logits != Logits::kReleased;
      (is_held ? cached.back().saved : cached.back().released) = {to};
    }
    for (Operation& op : cached) op.part = attends->part;
    cached.front().gradient = GradientRule::kAlias;  // views
    for (auto op = attends; op != ops.end(); ++op) {
      if (std::ranges::count(op->released, from) > 0) cached.front().released = {from};
      for (Indices* list : {&op->inputs, &op->saved, &op->released})
        std::replace(list->begin(), list->end(), from, read);
    }
    ops.insert(attends, cached.begin(), cached.end());
  }
}

// --- buffers ---

// Accelerate's FSDP1 (utils/dataclasses.py, set_mixed_precision) and DeepSpeed's engine cast fp32 buffers, too:
// sinusoids, and BART's bias of the logits. A model that is made in 16 bits has them so.
void cast_buffers(LayerSpec& layer, const Plan& plan) {
  const bool of_accelerate = plan.runtime.kind == RuntimeKind::kFsdp1 && plan.autocast;
  const bool narrow =
      plan.master_dtype != DType::kFp32 ||
      (plan.lora.rank > 0 && (plan.lora.base == Lora::Base::kParam || plan.lora.base == Lora::Base::kNf4));
  if (!(of_accelerate || narrow || is_zero(plan.runtime.kind)) || plan.param_dtype == DType::kFp32) return;
  const bool biased =
      layer.role == LayerRole::kLoss && !layer.tensors.empty() && tensor(layer, 0).type == ElementType::kFp32;
  for (TensorSpec& each : layer.tensors) {
    if (each.name == kSinusoids || each.name == "biased_logits") layer.resident_bytes /= 2;
    else if (!biased || each.per_token == 0) continue;
    each.type = ElementType::kCompute;
  }
}

// A causal mask of all positions, a byte for each pair, that a module makes with itself
// (nn.Buffer; transformers 5.24, models/FAMILY/modeling_FAMILY.py): the attention of each block, or the model.
struct OwnMask {
  std::string_view family;
  LayerRole role = LayerRole::kLoss;
  bool until_4 = false;  // of transformers 4 alone
};
constexpr OwnMask kOwnMasks[] = {
    {"gpt_neo", LayerRole::kBlock}, {"gpt_bigcode", LayerRole::kEmbedding}, {"gpt2", LayerRole::kBlock, true}};

void keep_own_mask(LayerSpec& layer, const ModelSpec& model, int transformers) {
  const OwnMask mask = row_of(kOwnMasks, model.family);
  if (layer.role != mask.role || layer.role == LayerRole::kLoss) return;
  if (mask.until_4 && transformers != 4) return;
  layer.resident_bytes += checked_multiply(model.max_positions, model.max_positions);
}

// torchtune 0.6.1, models/*/_component_builders.py: a rotary embedding for the model, but in
// builders with adapters for each block; qwen2/_positional_embeddings.py repeats each angle.
void keep_rope_tables(ModelSpec& model, const Plan& plan) {
  const bool repeats = model.family.starts_with("qwen") || model.family == "phi3";
  const LayerRole role = plan.lora.rank > 0 ? LayerRole::kBlock : LayerRole::kEmbedding;
  std::int64_t dims = 0;
  for (const LayerSpec& layer : model.kinds)
    for (const Operation& op : layer.operations) dims = std::max(dims, op.attention.head_dim);
  for (LayerSpec& layer : model.kinds) {
    if (layer.role != role) continue;
    layer.resident_bytes += checked_multiply(model.max_positions, dims * (repeats ? 8 : 4));
  }
}

// --- units ---

// What the first operation with parameters reads becomes a module of its own (Units::table_alone).
void separate_table(LayerSpec& layer, const Units& units) {
  if (!layer.nested.empty() || !splits_table(units, layer)) return;
  const auto table = std::ranges::find_if(layer.operations, [](const Operation& op) { return !op.parameters.empty(); });
  const std::string& name = layer.parameters[at(table->parameters.front())].name;
  layer.nested = {name.substr(0, name.rfind('.'))};
  table->part = 1;
  for (const Index p : table->parameters) layer.parameters[at(p)].part = 1;
}

// An operation is in the unit of its parameters, and so is what lies between two of one.
void separate(LayerSpec& layer, const SizeUnits& units) {
  layer.nested = units.modules;
  const auto part_of = [&](const ParameterSpec& p) {
    return static_cast<std::int8_t>(unit_of_name(units, p.name) + 1);
  };
  for (ParameterSpec& p : layer.parameters) p.part = part_of(p);
  std::vector<Operation>& ops = layer.operations;
  for (Operation& op : ops)
    op.part = op.parameters.empty() ? std::int8_t{0} : layer.parameters[at(op.parameters.front())].part;
  for (std::int8_t part = 1; part <= static_cast<std::int8_t>(units.modules.size()); ++part) {
    const auto is_its = [&](const Operation& op) { return op.part == part; };
    const auto first = std::ranges::find_if(ops, is_its);
    const auto last = std::find_if(ops.rbegin(), ops.rend(), is_its).base();
    for (auto op = first; op < last; ++op)
      if (op->part == 0) op->part = part;
  }
}

// Modules that are units for their size (Units::min_parameters).
void separate_by_size(LayerSpec& layer, std::int64_t least) {
  const bool is_table = layer.role == LayerRole::kEmbedding;
  if (!is_table && layer.role != LayerRole::kBlock) return;
  const SizeUnits units = units_by_size(layer, least);
  // A table that is all of its layer is the layer's unit.
  layer.nested = {};
  const auto in_first = [&](const ParameterSpec& p) { return unit_of_name(units, p.name) == 0; };
  if (is_table && std::ranges::all_of(layer.parameters, in_first)) return;
  separate(layer, units);
}

// A masked head's bias is a parameter of two modules where the one that names it holds the head's
// transform, too (BERT; ELECTRA's is the head's alone). Where one of them is in a unit, the root
// keeps the other's name: gathered with it, without a gradient.
void split_head_bias(ModelSpec& model, const Plan& plan) {
  const Units& units = plan.units;
  const auto find = [&](LayerRole role) {
    return std::ranges::find_if(model.kinds, [&](const LayerSpec& layer) { return layer.role == role; });
  };
  const auto head = find(LayerRole::kHead);
  auto transform = find(LayerRole::kInner);  // behind a last norm, or in its place
  if (transform == model.kinds.end()) transform = find(LayerRole::kFinalNorm);
  if (head == model.kinds.end() || transform == model.kinds.end()) return;
  const bool is_unit = units.head == UnitPlacement::kOwn || units.head == UnitPlacement::kWithNorm;
  if (!is_unit || head->parameters.size() < 2) return;
  const bool has_product =
      std::ranges::any_of(transform->operations, [](const Operation& op) { return op.kind == OperationKind::kGemm; });
  if (!has_product) return;
  ParameterSpec bias = head->parameters.back();
  const std::string module = bias.name.substr(0, bias.name.rfind('.') + 1);
  const bool holds_transform =
      std::ranges::any_of(transform->parameters, [&](const ParameterSpec& p) { return p.name.starts_with(module); });
  if (!holds_transform) return;
  bias.name += " (root's)";
  bias.trainable = false;
  transform->parameters.push_back(std::move(bias));
  // The optimizer has the root's name, so that nobody lets go of the other's gradient, nor of the
  // unit's flat one, which it is a view of (Accelerate 1.15 with BertForMaskedLM).
  const ParameterSpec& table = head->parameters.front();
  const std::int64_t rows = (table.shape.front() + plan.mesh.shard - 1) / plan.mesh.shard;
  const std::int64_t columns = table.numel() / table.shape.front() + 1;
  head->resident_bytes += checked_multiply(checked_multiply(rows, columns), size_of(plan.master_dtype));
}

// --- gradients that are sums ---

// Of biases, and of the weights of eager norms, for which the product of every row is made first.
void add_column_sums(LayerSpec& layer) {
  for (Operation& op : layer.operations) {
    const bool is_product = op.kind == OperationKind::kGemm && op.parameters.size() == 2 && op.groups == 1;
    // (What a convolution was seen to take is in its layer.)
    const bool is_bias = is_product && op.backward_workspace.empty();
    const bool is_weight = op.eager_norm && !op.parameters.empty();
    if (!is_bias && !is_weight) continue;
    const ParameterSpec& summed = layer.parameters[at(op.parameters.back())];
    if (!summed.trainable || summed.shape.size() != 1) continue;
    const std::int64_t columns = summed.shape.front();
    TensorSpec product = tensor(layer, op.outputs.front());
    TensorSpec rows = {.name = std::string(kColumnSums),
        .per_token = product.per_token,
        .per_position = product.per_position,
        .fixed = columns,
        .type = ElementType::kByte,
        .per_sequence = product.per_sequence,
        .split = product.split,
        .by_pairs = product.by_pairs};
    if (product.per_token % columns == 0 && product.per_sequence % columns == 0 && product.per_position % columns == 0)
      rows.per_token /= columns, rows.per_sequence /= columns, rows.per_position /= columns;
    else rows.split *= columns;
    product.name = op.name + " of each row";
    if (is_weight) op.backward_workspace.push_back(add_tensor(layer, std::move(product)));
    op.backward_workspace.push_back(add_tensor(layer, std::move(rows)));
  }
}

// --- tied weights in two units ---

// The head's is a parameter of the head's name.
void untie(LayerSpec& layer) {
  for (const Operation& op : layer.operations) {
    for (const Index p : op.parameters) {
      ParameterSpec& parameter = layer.parameters[at(p)];
      if (std::exchange(parameter.tied, false)) parameter.name = op.name + ".weight";
    }
  }
}

// --- packed documents ---

// A fused kernel over the documents of a sequence skips what lies between them (flash attention's
// cu_seqlens, FlexAttention's document mask); everything else is as before. Positions start again
// with every document, which costs nothing.
void pack(ModelSpec& model, std::int64_t documents) {
  for (LayerSpec& layer : model.kinds)
    for (Operation& op : layer.operations) op.attention.documents = documents;
}

}

// (Megatron-Core and the engine have kernels of their own, autocast its own casts.)
void multiply_experts_in_bf16(ModelSpec& model, const Plan& plan) {
  const RuntimeKind kind = plan.runtime.kind;
  const bool is_torchtitan =
      kind != RuntimeKind::kNative && kind != RuntimeKind::kMegatron && plan.experts == ExpertKernels::kGrouped;
  if (!is_torchtitan || plan.compute_dtype() == DType::kBf16 || is_under_autocast(plan)) return;
  for (LayerSpec& layer : model.kinds) multiply_in_bf16(layer);
}

ModelSpec with_variants(ModelSpec model, const Plan& plan) {
  if (flattens_twice(plan) || (plan.runtime.kind == RuntimeKind::kFsdp2 && parts_tied(plan.units))) {
    for (LayerSpec& layer : model.kinds) untie(layer);
    if (flattens_twice(plan)) model.tied_embeddings = false;
  }
  if (plan.units.min_parameters > 0) {
    for (LayerSpec& layer : model.kinds) separate_by_size(layer, plan.units.min_parameters);
  } else if (plan.units.table_alone) {
    for (LayerSpec& layer : model.kinds) separate_table(layer, plan.units);
    split_head_bias(model, plan);
  }
  if (plan.runtime.kind == RuntimeKind::kMegatron)
    for (LayerSpec& layer : model.kinds) use_megatron_mixer(layer);
  if (plan.kernels.torch_mixers)
    for (LayerSpec& layer : model.kinds) use_torch_mixer(layer, plan.batch.sequence);
  if (plan.batch.images > 0) model = with_images(std::move(model), plan.batch.images);
  if (plan.runtime.kind == RuntimeKind::kDdp && plan.ddp.blocks_narrow) {
    for (LayerSpec& layer : model.kinds)
      for (ParameterSpec& each : layer.parameters)
        each.stored_as_computed |= layer.role == LayerRole::kBlock && !each.is_norm;
  }
  if (plan.transformers() == 4)  // (modules, which adapters take)
    for (LayerSpec& layer : model.kinds) use_transformers_experts(layer, model.family, plan);
  if (!is_of_modules(model))
    for (LayerSpec& layer : model.kinds) cast_buffers(layer, plan);
  if (plan.lora.rank > 0) model = with_adapters(std::move(model), plan);
  if (plan.units.adapters_alone) {
    for (LayerSpec& layer : model.kinds)
      if (layer.role == LayerRole::kBlock) separate(layer, units_of_adapters(layer));
  }
  if (plan.batch.documents > 1) pack(model, plan.batch.documents);
  if (plan.kernels.rope_tables) keep_rope_tables(model, plan);
  if (plan.kernels.keeps_cache) {
    for (LayerSpec& layer : model.kinds)
      if (layer.role == LayerRole::kBlock) cache_keys(layer, plan);
  }
  if (plan.experts == ExpertKernels::kLoop) {
    for (LayerSpec& layer : model.kinds) loop_over_experts(layer);
  } else if (plan.transformers() > 0) {
    for (LayerSpec& layer : model.kinds) {
      if (plan.transformers() == 5) use_transformers_experts(layer, model.family, plan);
      if (plan.lora.rank > 0) adapt_experts(layer, plan, model);
      keep_own_mask(layer, model, plan.transformers());
      // ZeRO's flat groups and what it gathers one by one follow it, as do the buckets of a
      // DistributedDataParallel that makes them once.
      const bool makes_once = plan.runtime.kind == RuntimeKind::kDdp && plan.ddp.find_unused_parameters;
      if (is_zero(plan.runtime.kind) || makes_once) order_as_transformers(layer, model.family, plan.transformers());
    }
  }
  use_titan_model(model, plan);
  multiply_experts_in_bf16(model, plan);
  if (plan.recompute_keeps == SelectivePolicy::kDots)
    for (LayerSpec& layer : model.kinds) keep_dots(layer);
  if (plan.runtime.kind == RuntimeKind::kNative || plan.host == HostKind::kComputes) return model;
  if (plan.float8 != Float8::kNone) keep_blocks_wide(model, plan.float8_wide_blocks);
  model = with_module_kernels(std::move(model), plan);
  Plan of_labels = plan;  // what the head and the loss see
  if (takes_labelled_rows(plan)) {
    score_labelled(model, plan);
    of_labels.batch.sequence = plan.batch.labelled;
  }
  for (LayerSpec& layer : model.kinds) {
    apply_attention(layer, plan, model.family);
    if (layer.role == LayerRole::kHead && plan.loss.has_product()) fuse_loss_into_head(layer, of_labels);
    if (layer.role == LayerRole::kHead && plan.loss.kind == Loss::Kind::kChunkedHead) chunk_head(layer, plan);
    if (layer.role == LayerRole::kHead && plan.units.head_calls > 1) call_in_parts(layer, of_labels);
    if (layer.role == LayerRole::kHead) copy_unread(layer, plan);
    if (layer.role == LayerRole::kLoss) {
      apply_loss(layer, of_labels, is_of_modules(model));
      add_train_metrics(layer, plan);
    }
    if (plan.compile == Compile::kNone) add_column_sums(layer);
    if (plan.compile == Compile::kModel) pad_products(layer);
    if (layer.role != LayerRole::kBlock) {
      if (plan.compile == Compile::kModel && layer.role != LayerRole::kLoss) compile(layer);
      continue;
    }
    if (plan.recompute_keeps == SelectivePolicy::kDotsExceptMlp) keep_dots_except_mlp(layer);
    if (plan.recompute_keeps == SelectivePolicy::kModules) keep_modules(layer);
    if (plan.float8 != Float8::kNone && !layer.wide) apply_float8(layer, plan);
    const bool is_liger = plan.kernels.activation == ModuleKernels::Activation::kLiger;
    if (plan.loss.chunks == 1 || is_liger) fuse_silu(layer, true);
    if (plan.compile != Compile::kNone) compile(layer);
  }
  return model;
}

}
