// Each key is one rewriting of the layers' operation lists, in the order lora
// (models/layers/lora.h), batch.documents, experts, attention, loss, float8, compile
// (models/layers/compiled.h). Sizes are per token; T tokens, width d of all heads, h heads, V
// vocabulary.
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
// loss:
//   eager      logits 2V, their fp32 copy 4V, log-probabilities 4V; backward two gradients 4V: 12V
//   eager-compute
//              logits 2V, log-probabilities 2V; backward two gradients 2V: 6V; held: fp32 outputs'
//              logsumexp by sequences (trl until 0.29, trainer/utils.py, selective_log_softmax):
//              logits 4V, backward three gradients 4V: 16V
//   held       the fp32 copy lives until its own gradient is made: 16V
//   compiled   logits and logsumexp are saved, the gradient is written once: 2V + 2V
//   fused      the gradient takes the logits' place: 2V
//   fused-linear
//              the head's product and the loss are one function, which makes the gradients of both
//              a tile of tokens at a time: of so many tokens that the tile is as large as the
//              hidden states, up to a power of two (liger_kernel/ops/
//              fused_linear_cross_entropy.py)
//   tiled-linear
//              of tokens with labels; tiles of 4,096 and 32,768 words, forward and again backward,
//              where fp32 sums of both gradients stand beside them and are cast at the end
//              (trl/kernels/ chunked_logprob.py, and its width in trl/trainer/utils.py; TRL 1.16)
//   smoothed   transformers' LabelSmoother (trainer_pt_utils.py), behind the model, which keeps its
//              outputs until then: negative log-probabilities stand beside log-probabilities, 4V
//              (fp32: 8V), and backward has the gradients of their sum and of the gathered ones,
//              4V. Where the model's class keeps its name (fully_shard changes it), logits are
//              shifted first, a copy.
//   chunked-N  log-probabilities of all chunks are saved, fp32 copies and gradients are of one
//   chunk:
//              2V + 4V + 4V/N forward, then 4V + 8V/N, then the chunks' gradients and their
//              concatenation, 2V + 2V (torchtitan#996)
//
// float8 (torchao/float8/float8_linear.py): a linear layer casts its input and its weight before
// the product and again in backward, with the output's gradient; it saves what bf16 would.
#include "models/layers/variants.h"

#include <algorithm>
#include <bit>
#include <map>
#include <string>
#include <utility>

#include "models/layers/attention_kernels.h"
#include "models/layers/compiled.h"
#include "models/layers/family_rows.h"
#include "models/layers/lora.h"
#include "models/layers/mamba.h"
#include "models/layers/module_kernels.h"
#include "models/layers/transformers_moe.h"
#include "sim/base/error.h"
#include "sim/base/lookup.h"
#include "sim/graph/layers/column_sums.h"
#include "sim/graph/layers/given_mask.h"
#include "sim/graph/layers/layer_writer.h"
#include "sim/spec/checks/plan_check.h"
#include "sim/spec/size_units.h"

namespace foreshard {
namespace {

// --- loss ---

Operation pass(std::string name, Function function, Index from, Index to) {
  return Operation{
      .name = std::move(name), .function = function, .inputs = {from}, .outputs = {to}};
}

Operation cross_entropy(std::string name) {
  return Operation{.name = std::move(name),
                   .kind = OperationKind::kSoftmaxLoss,
                   .function = Function::kCrossEntropy};
}

LayerSpec one_kernel_loss(LayerSpec layer, bool in_place) {
  layer.tensors.resize(1);
  const Index loss = add_tensor(layer, {.name = "loss", .fixed = 1, .type = ElementType::kFp32});
  const Index logsumexp =
      add_tensor(layer, {.name = "logsumexp", .per_token = 1, .type = ElementType::kFp32});
  Operation op = cross_entropy("cross_entropy");
  op.inputs = {0};
  op.outputs = {loss, logsumexp};
  op.saved = {0, logsumexp};
  op.in_place = in_place;
  layer.operations = {std::move(op)};
  layer.output = loss;
  return layer;
}

// The loop's name holds what the model returned till the next forward's is made: all the time, and
// twice while that is.
void keep_logits(LayerSpec& layer, Operation& copy, const Plan& plan) {
  const std::int64_t words = layer.tensors.front().per_token;
  copy.forward_workspace = {
      add_tensor(layer, {.name = "next logits", .per_token = words, .type = ElementType::kFp32})};
  copy.released = {0};
  layer.resident_bytes += checked_multiply(
      elements(layer.tensors.front(), plan.batch.micro_batch, plan.batch.sequence), 4);
}

// One operation for all chunks, whose temporaries are of one, behind one that stands for the views
// of the logits: its gradient is the concatenation of the chunks'.
LayerSpec chunked_loss(LayerSpec layer, const Plan& plan) {
  const std::int64_t chunks = plan.loss.chunks;
  layer.tensors.resize(1);
  const std::int64_t vocabulary = layer.tensors.front().per_token;
  const std::int64_t part = (vocabulary + chunks - 1) / chunks;
  const auto fp32 = [&](const char* name, std::int64_t per_token) {
    return add_tensor(layer, {.name = name, .per_token = per_token, .type = ElementType::kFp32});
  };
  const Index views = add_tensor(layer, {.name = "views", .fixed = 1});
  const Index loss = add_tensor(layer, {.name = "loss", .fixed = 1, .type = ElementType::kFp32});
  const Index probabilities = fp32("log_probabilities", vocabulary);

  Operation split = pass("chunk", Function::kCopy, 0, views);  // backward concatenates
  split.backward_workspace = {
      add_tensor(layer, {.name = "chunk gradients", .per_token = vocabulary})};

  Operation op = cross_entropy("cross_entropy");
  op.inputs = {views};
  op.outputs = {loss, probabilities, fp32("chunk_fp32", part)};
  op.saved = {probabilities};
  op.backward_workspace = {fp32("nll.grad", part), fp32("log_softmax.grad", part)};
  if (plan.logits == Logits::kKept) {
    keep_logits(layer, split, plan);
  } else {
    op.released = {0};
  }
  layer.operations = {std::move(split), std::move(op)};
  layer.output = loss;
  return layer;
}

// Nothing but the loss of each token leaves the head.
void fused_product(LayerSpec& head, std::vector<Operation>::iterator product) {
  product->function = Function::kCrossEntropy;
  product->outputs = {
      add_tensor(head, {.name = "token losses", .per_token = 1, .type = ElementType::kFp32})};
  head.output = product->outputs.front();
  head.operations.erase(product + 1, head.operations.end());
}

// From the second call on backward has the weight's gradients so far, the next and their sum, and
// no more the logits' of those before.
void call_in_parts(LayerSpec& head, const Plan& plan) {
  const auto product = std::ranges::find_if(
      head.operations, [](const Operation& op) { return op.kind == OperationKind::kGemm; });
  if (product == head.operations.end() || plan.frozen.head ||
      !head.parameters[static_cast<std::size_t>(product->parameters.front())].trainable) {
    return;
  }
  const std::int64_t tokens = checked_multiply(plan.batch.micro_batch, plan.batch.sequence);
  const std::int64_t more = product->k - tokens / plan.units.head_calls;
  if (more <= 0) return;
  product->backward_workspace.push_back(add_tensor(
      head, {.name = "sums of gradients", .fixed = checked_multiply(2 * product->n, more)}));
}

// All ranks' rows of the weight, in the dtype that they are stored in, come in front of the
// product, which casts a part at a time.
void gather_weight(LayerSpec& head, const Plan& plan, std::int64_t words) {
  const auto product = std::ranges::find_if(
      head.operations, [](const Operation& op) { return op.kind == OperationKind::kGemm; });
  const bool is_wide =
      (plan.lora.base == Lora::Base::kMaster || plan.lora.base == Lora::Base::kNf4Master) &&
      plan.master_dtype == DType::kFp32;
  const ElementType type = is_wide ? ElementType::kFp32 : ElementType::kCompute;
  const std::int64_t rows = (product->n + plan.mesh.shard - 1) / plan.mesh.shard;
  const std::int64_t shard = checked_multiply(rows, product->k);
  const Index own = add_tensor(head, {.name = "rows of the head", .fixed = shard, .type = type});
  const Index whole = add_tensor(
      head,
      {.name = "gathered head", .fixed = checked_multiply(shard, plan.mesh.shard), .type = type});
  product->saved.push_back(whole);
  product->released.push_back(whole);
  if (is_wide) {
    const std::int64_t part = checked_multiply(std::min(product->n, words), product->k);
    product->forward_workspace.push_back(
        add_tensor(head, {.name = "part of the weight", .fixed = part}));
    product->backward_workspace.push_back(product->forward_workspace.back());
  }
  Operation gather = {
      .name = "full_tensor",
      .function = Function::kCopy,
      .inputs = {own},
      .outputs = {whole},
      .collective = {.kind = CollectiveKind::kAllGather, .dim = MeshDim::kFsdp, .waits = true},
      .gradient = GradientRule::kNone};
  head.operations.insert(product, std::move(gather));
}

// The tokens with labels are copied, uncast, in front of the head's product (hidden_states[mask]).
// Whether they are fp32, as their gradient's sum is.
bool read_copy(LayerSpec& head, std::ptrdiff_t product, const Batch& batch) {
  std::vector<Operation>& ops = head.operations;
  Operation& before = ops[at(std::max<std::ptrdiff_t>(product - 1, 0))];
  const auto shorten = [&](TensorSpec& spec) {
    if (batch.labelled == 0) return;
    spec.per_sequence += checked_multiply(std::exchange(spec.per_token, 0), batch.labelled);
  };
  if (batch.labelled > 0) {
    ops[at(product)].rows = batch.labelled;
    ops[at(product)].split = batch.sequence;
  }
  if (product > 0 && before.function == Function::kCast) {
    before.function = Function::kCopy;
    TensorSpec& copied = head.tensors[at(before.outputs.front())];
    copied.type = ElementType::kFp32;
    shorten(copied);
    return true;
  }
  const Index from = ops[at(product)].inputs.front();
  TensorSpec spec = tensor(head, from);
  shorten(spec);
  const Index to = add_tensor(head, std::move(spec));
  for (Indices* list : {&ops[at(product)].inputs, &ops[at(product)].saved}) {
    std::ranges::replace(*list, from, to);
  }
  ops.insert(ops.begin() + product, pass("labelled_tokens", Function::kCopy, from, to));
  return false;
}

// --- labels that count ---

// From its input on a layer works on the labelled rows of each sequence.
void take_labelled_rows(LayerSpec& layer, const Batch& batch) {
  TensorSpec rows = tensor(layer, 0);
  rows.name = "labelled tokens";
  const Index taken = add_tensor(layer, std::move(rows));
  for (Operation& op : layer.operations) {
    for (Indices* list : {&op.inputs, &op.saved, &op.released}) {
      std::ranges::replace(*list, Index{0}, taken);
    }
    op.rows = checked_multiply(op.rows, batch.labelled);
    op.split = checked_multiply(op.split, batch.sequence);
  }
  for (std::size_t t = 1; t < layer.tensors.size(); ++t) {
    TensorSpec& spec = layer.tensors[t];
    spec.per_sequence += checked_multiply(std::exchange(spec.per_token, 0), batch.labelled);
  }
  layer.operations.insert(layer.operations.begin(),
                          pass("labelled_tokens", Function::kCopy, 0, taken));
}

// hidden_states[mask] in front of the head, or of an encoder's transform: what follows runs on
// these positions.
void score_labelled(ModelSpec& model, const Plan& plan) {
  const auto kind = [&](std::size_t l) -> LayerSpec& {
    return model.kinds[at(model.order[l].kind)];
  };
  const std::size_t loss = model.order.size() - 1, head = loss - 1;
  if (loss < 2 || kind(head).role != LayerRole::kHead || kind(head).domain != Domain{}) return;
  std::size_t first = head;
  for (std::size_t l = head - 1; !plan.loss.has_product() && l > 0; --l) {
    const LayerRole role = kind(l).role;
    if (role != LayerRole::kInner && role != LayerRole::kFinalNorm) break;
    const bool has_product = std::ranges::any_of(
        kind(l).operations, [](const Operation& op) { return op.kind == OperationKind::kGemm; });
    if (has_product) first = l;
  }
  take_labelled_rows(kind(first), plan.batch);
  for (std::size_t l = first + 1; l <= loss; ++l) kind(l).domain.positions = plan.batch.labelled;
}

// The gradients that a fused loss makes in forward are there beside its tile; they count as made in
// backward, which begins where forward ends. Of a frozen head there is none of the weight (TRL's
// and Liger's functions ask needs_input_grad).
void fuse_loss_into_head(LayerSpec& head, const Plan& plan) {
  const auto first_product = [&] {
    return std::ranges::find(head.operations, OperationKind::kGemm, &Operation::kind);
  };
  auto product = first_product();
  if (product == head.operations.end()) return;
  const bool is_tiled = plan.loss.kind == Loss::Kind::kTiledLinear;
  const std::int64_t tokens = checked_multiply(
      plan.batch.micro_batch, is_tiled ? plan.batch.tokens_with_labels() : plan.batch.sequence);
  const std::int64_t weights = checked_multiply(product->n, product->k);
  const bool is_trained =
      !plan.frozen.head &&
      head.parameters[static_cast<std::size_t>(product->parameters.front())].trainable;
  const auto add_weight = [&](ElementType type) {
    return add_tensor(
        head, {.name = "weight's gradient", .fixed = is_trained ? weights : 0, .type = type});
  };
  bool is_wide = false;
  if (is_tiled) {
    is_wide = read_copy(head, product - head.operations.begin(), plan.batch);
    product = first_product();
  }
  TensorSpec input = tensor(head, product->inputs.front());
  input.name = "input's gradient";
  if (is_tiled) {
    constexpr std::int64_t kTokens = 4096, kWords = 32768;
    const Index tile =
        add_tensor(head, {.name = "tile of logits", .fixed = std::min(tokens, kTokens) * kWords});
    input.type = ElementType::kFp32;
    product->forward_workspace = {tile};
    const Index sum = add_tensor(head, std::move(input));
    // Tokens and parts of the weight are cast, whose gradient is its own; flat parameters are there
    // in the dtype of autocast.
    if (is_under_autocast(plan) && plan.runtime.kind != RuntimeKind::kFsdp1) {
      const auto cast = [&](const char* name, std::int64_t rows) {
        return add_tensor(head, {.name = name, .fixed = rows * product->k});
      };
      const Index rows = cast("tile of tokens", std::min(tokens, kTokens));
      product->forward_workspace.push_back(rows);
      product->forward_workspace.push_back(
          cast("part of the weight", std::min(product->n, kWords)));
      product->backward_workspace = {tile, rows, product->forward_workspace.back()};
      if (!is_wide) product->backward_workspace.push_back(sum);
      // In backward the name of one part is there while the next is cast.
      if (const std::int64_t next = std::min(product->n - kWords, kWords); next > 0) {
        product->backward_workspace.push_back(cast("next part of the weight", next));
      }
    } else {
      product->backward_workspace = {sum, add_weight(ElementType::kFp32), tile};
    }
    fused_product(head, product);
    if (gathers_own_head(plan)) gather_weight(head, plan, kWords);
    return;
  }
  const std::int64_t tiles = (product->n + product->k - 1) / product->k;
  const std::int64_t rows = static_cast<std::int64_t>(
      std::bit_ceil(static_cast<std::uint64_t>((tokens + tiles - 1) / tiles)));
  const Index tile = add_tensor(
      head,
      {.name = "tile of logits", .fixed = checked_multiply(std::min(rows, tokens), product->n)});
  const Index weight = add_weight(ElementType::kCompute);
  product->forward_workspace = {tile, weight, add_tensor(head, std::move(input))};
  product->backward_workspace = {tile};
  fused_product(head, product);
}

LayerSpec sum_of_losses(LayerSpec layer) {
  layer.tensors = {{.name = "token losses", .per_token = 1, .type = ElementType::kFp32}};
  Operation sum;
  sum.name = "sum";
  sum.inputs = {0};
  sum.outputs = {add_tensor(layer, {.name = "loss", .fixed = 1, .type = ElementType::kFp32})};
  layer.output = sum.outputs.front();
  layer.operations = {std::move(sum)};
  return layer;
}

// What follows the cast to fp32, on the logits as they are.
void leave_out_cast(LayerSpec& layer) {
  const Operation cast = layer.operations.front();
  layer.operations.erase(layer.operations.begin());
  for (Operation& op : layer.operations) {
    for (Indices* list : {&op.inputs, &op.saved}) {
      std::replace(list->begin(), list->end(), cast.outputs.front(), cast.inputs.front());
    }
    std::erase(op.released, cast.outputs.front());
    for (const Index t : op.outputs) {
      layer.tensors[static_cast<std::size_t>(t)].type = ElementType::kCompute;
    }
  }
}

// trl/trainer/utils.py, selective_log_softmax: a sequence at a time, beside the one before it, of
// which autograd keeps the log-probabilities.
void loop_over_sequences(LayerSpec& layer, const Plan& plan) {
  if (plan.batch.micro_batch <= 2 || plan.reference == Reference::kNone) return;
  const std::vector<Operation> own = std::exchange(layer.operations, {});
  const Index loss = layer.output;
  const std::int64_t words = layer.tensors.front().per_token;
  const std::int64_t pair = checked_multiply(2 * plan.batch.sequence, words);
  Operation split = pass("sequences", Function::kCopy, 0, 0);
  Operation sum = pass("sum", Function::kAdd, 0, loss);
  split.view = true;
  split.outputs = sum.inputs = {};
  for (std::int64_t at = 0; at < plan.batch.micro_batch; at += 2) {
    std::map<Index, Index> renamed;
    const auto rename = [&](Index t) {
      const auto [found, is_new] = renamed.try_emplace(t);
      if (is_new) {
        TensorSpec spec = tensor(layer, t);
        if (std::exchange(spec.per_token, 0) == words) spec.fixed = pair;
        found->second = add_tensor(layer, std::move(spec));
      }
      return found->second;
    };
    split.outputs.push_back(rename(0));
    for (Operation op : own) {
      std::erase(op.released, Index{0});
      renumber(op, rename);
      layer.operations.push_back(std::move(op));
    }
    sum.inputs.push_back(rename(loss));
  }
  sum.released = {0};
  layer.operations.insert(layer.operations.begin(), std::move(split));
  layer.operations.push_back(std::move(sum));
}

// transformers' LabelSmoother.
void smooth_labels(LayerSpec& layer, const Plan& plan) {
  std::vector<Operation>& ops = layer.operations;
  const bool has_cast = ops.front().function == Function::kCast;
  // fully_shard renames the class. Accelerate's prepare_model makes outputs of autocast fp32.
  const bool is_known = plan.runtime.kind != RuntimeKind::kFsdp2;
  const bool is_fp32 =
      plan.runtime.kind == RuntimeKind::kDdp || plan.runtime.kind == RuntimeKind::kFsdp1;
  if (has_cast && !is_fp32) leave_out_cast(layer);
  if (has_cast && is_fp32) ops.front().released.push_back(0);
  const auto softmax = std::ranges::find_if(
      ops, [](const Operation& op) { return op.function == Function::kLogSoftmax; });
  const auto at = softmax - ops.begin();
  const Index logits = softmax->inputs.front(), probabilities = softmax->outputs.front();
  const auto another = [&](const char* name) {
    TensorSpec spec = tensor(layer, probabilities);
    spec.name = name;
    return add_tensor(layer, std::move(spec));
  };
  const Index negative = another("negative_log_probabilities");
  ops.insert(ops.begin() + at + 1, pass("negate", Function::kScale, probabilities, negative));
  Operation& loss = ops.back();
  loss.inputs = {negative};
  std::ranges::replace(loss.saved, probabilities, negative);
  loss.released = {logits};
  // Of fp32, the sum's gradient is a view.
  if (tensor(layer, probabilities).type == ElementType::kCompute &&
      plan.compute_dtype() != DType::kFp32) {
    loss.backward_workspace = {another("gathered.grad")};
  }
  if (!is_known || plan.batch.micro_batch == 1) return;  // of one sequence it is a view
  const Index shifted = another("shifted_logits");
  loss.released.push_back(shifted);
  ops[static_cast<std::size_t>(at)].inputs = {shifted};
  ops.insert(ops.begin() + at, pass("shift", Function::kCopy, logits, shifted));
}

// What a loss reads, once more.
Index add_logits(LayerSpec& layer, const char* name, ElementType type) {
  TensorSpec spec = tensor(layer, 0);
  spec.name = name;
  spec.type = type;
  return add_tensor(layer, std::move(spec));
}

// Of what a model under autocast returns Accelerate's prepare_model makes fp32, of which a
// DistributedDataParallel that looks for unused parameters makes a copy (_DDPSink).
void return_fp32(LayerSpec& layer, const Plan& plan) {
  std::vector<Operation>& ops = layer.operations;
  Index returned = 0;
  const auto make = [&](const char* operation, Function function, const char* name) {
    const Index from = returned;
    returned = add_logits(layer, name, ElementType::kFp32);
    ops.push_back(pass(operation, function, from, returned));
    ops.back().gradient = GradientRule::kNone;
    ops.back().released = {from};
  };
  make("outputs_to_fp32", Function::kCast, "logits_fp32");
  if (plan.runtime.kind == RuntimeKind::kDdp && plan.ddp.find_unused_parameters) {
    make("outputs_copy", Function::kCopy, "logits_copy");
  }
  ops.back().released.push_back(returned);
}

// So it is of what nobody reads (a value head's logits).
void copy_unread(LayerSpec& head, const Plan& plan) {
  Operation& last = head.operations.back();
  if (plan.runtime.kind != RuntimeKind::kDdp || !plan.ddp.find_unused_parameters) return;
  if (last.gradient != GradientRule::kNone) return;
  const Index logits = last.inputs.front(), returned = last.outputs.front();
  TensorSpec spec = tensor(head, returned);
  Operation copy =
      pass("outputs_copy", Function::kCopy, returned, add_tensor(head, std::move(spec)));
  copy.gradient = GradientRule::kNone;
  copy.released = std::exchange(last.released, {logits});
  std::ranges::replace(copy.released, logits, copy.outputs.front());
  head.operations.push_back(std::move(copy));
}

// A model that gives its loss the logits as they are, under autocast: log_softmax keeps their
// dtype, nll_loss is one of the operations that autocast casts for.
void widen_losses(LayerSpec& layer, const Plan& plan) {
  const Index wide = add_logits(layer, "log_probabilities_fp32", ElementType::kFp32);
  std::vector<Operation>& ops = layer.operations;
  const Index probabilities = ops.front().outputs.front();
  Operation& nll = ops.back();
  nll.inputs = {wide};
  std::ranges::replace(nll.saved, probabilities, wide);
  nll.released = {probabilities, wide};
  ops.insert(ops.begin() + 1, pass("to_fp32", Function::kCast, probabilities, wide));
  return_fp32(layer, plan);
}

// Logits that are fp32 by themselves (BART's) are cast with the other outputs by the hook of
// fully_shard's root, and nobody holds them beyond that. (Of what is held, the runtime has them.)
void cast_outputs(LayerSpec& layer) {
  const Index outputs = add_logits(layer, "logits_returned", ElementType::kCompute);
  std::vector<Operation>& ops = layer.operations;
  std::erase(ops.back().released, Index{0});
  ops.push_back(pass("outputs_cast", Function::kCast, 0, outputs));
  ops.back().gradient = GradientRule::kNone;
  ops.back().released = {0, outputs};
}

// logits[:, :-1].log_softmax(-1) of an fp32 copy, which lays the positions out anew; trainers hold
// the copy till their reference has run.
void take_log_probabilities(LayerSpec& layer, const Plan& plan) {
  std::vector<Operation>& ops = layer.operations;
  const auto softmax = std::ranges::find(ops, Function::kLogSoftmax, &Operation::function);
  softmax->forward_workspace.push_back(add_logits(layer, "positions", ElementType::kFp32));
  if (ops.front().function != Function::kCast) return;
  ops.front().released.push_back(0);
  if (plan.reference != Reference::kNone) ops.front().saved.push_back(ops.front().outputs.front());
}

// logsumexp of each sequence's fp32 logits, the model's outputs: backward has the gradients of the
// sequences, of these together and of what was gathered, and their sum takes the logits' place.
void sum_exponentials(LayerSpec& layer) {
  std::vector<Operation>& ops = layer.operations;
  if (ops.front().function == Function::kCast) ops.front().released.push_back(0);
  const auto softmax = std::ranges::find(ops, Function::kLogSoftmax, &Operation::function);
  TensorSpec& sums = layer.tensors[at(softmax->outputs.front())];
  sums.per_token = 1;
  softmax->saved = softmax->inputs;
  for (const char* name : {"sequences.grad", "gathered.grad"}) {
    softmax->backward_workspace.push_back(add_logits(layer, name, ElementType::kFp32));
  }
}

bool keeps_compute_dtype(const LayerSpec& loss) {
  const Operation& first = loss.operations.front();
  return first.function == Function::kLogSoftmax &&
         tensor(loss, first.outputs.front()).type == ElementType::kCompute;
}

void apply_loss(LayerSpec& layer, const Plan& plan, bool is_traced) {
  switch (plan.loss.kind) {
    case Loss::Kind::kEagerCompute:
      if (plan.logits == Logits::kHeld) return sum_exponentials(layer);
      leave_out_cast(layer);
      loop_over_sequences(layer, plan);
      return;
    case Loss::Kind::kSmoothed:
      smooth_labels(layer, plan);
      return;
    case Loss::Kind::kLogProbabilities:
      take_log_probabilities(layer, plan);
      return;
    case Loss::Kind::kEager:
      if (!is_traced && is_under_autocast(plan) && keeps_compute_dtype(layer)) {
        return widen_losses(layer, plan);
      }
      if (plan.runtime.kind == RuntimeKind::kFsdp2 && plan.loss_in_forward &&
          plan.output_dtype.value_or(DType::kFp32) != DType::kFp32 &&
          tensor(layer, 0).type == ElementType::kFp32) {
        return cast_outputs(layer);
      }
      if (plan.logits != Logits::kReleased) {
        const bool returns_fp32 =
            plan.runtime.kind == RuntimeKind::kFsdp1 && plan.output_dtype == DType::kFp32;
        if (plan.loss_in_forward && returns_fp32) return return_fp32(layer, plan);
        // The first operation is the cast; its gradient is the last to be made. (What is held
        // beyond it, of logits as they are, is the runtime's.) Of fully_shard's and DeepSpeed's
        // modules the outputs stay as they are.
        // (What a traced loss is given of the host stands before.)
        Operation& first = *std::ranges::find_if(
            layer.operations, [](const Operation& op) { return !op.inputs.empty(); });
        // Of a traced loss that casts nothing they are what it was given.
        const bool as_they_are = plan.loss_in_forward || is_zero(plan.runtime.kind) ||
                                 (is_traced && first.function != Function::kCast);
        first.saved.push_back(as_they_are ? first.inputs.front() : first.outputs.front());
        // What Accelerate made fp32 behind the forward goes with it.
        if (!as_they_are && is_under_autocast(plan)) first.released.push_back(0);
      }
      return;
    case Loss::Kind::kCompiled:
      layer = one_kernel_loss(std::move(layer), false);
      // A model that computes its loss itself, for a loop that wants its outputs.
      if (plan.loss_in_forward && plan.compile == Compile::kModel && is_under_autocast(plan)) {
        return_fp32(layer, plan);
      }
      return;
    case Loss::Kind::kFused:
      layer = one_kernel_loss(std::move(layer), true);
      return;
    case Loss::Kind::kChunked:
      layer = chunked_loss(std::move(layer), plan);
      return;
    case Loss::Kind::kFusedLinear:
    case Loss::Kind::kTiledLinear:
      layer = sum_of_losses(std::move(layer));
      return;
  }
}

// --- float8 ---

void apply_float8(LayerSpec& layer, const Plan& plan) {
  for (std::size_t o = 0; o < layer.operations.size(); ++o) {
    if (layer.operations[o].kind != OperationKind::kGemm) continue;
    Operation op = std::move(layer.operations[o]);
    const auto bytes = [&](const std::string& name, std::int64_t per_token, std::int64_t fixed) {
      return add_tensor(
          layer,
          {.name = name, .per_token = per_token, .fixed = fixed, .type = ElementType::kByte});
    };
    const std::int64_t weight = checked_multiply(op.n, op.k);
    op.fp8 = plan.float8;
    // Of aten._scaled_mm_v2 PyTorch's list of compute_intensive_ops has nothing.
    op.kept_by_selective &= plan.float8 != Float8::kNvfp4;
    const auto narrow = [&](std::int64_t elements) { return narrow_bytes(op.fp8, elements); };
    ParameterSpec& parameter = layer.parameters[static_cast<std::size_t>(op.parameters.front())];
    const bool is_megatron = plan.runtime.kind == RuntimeKind::kMegatron;
    const bool is_linear = is_megatron || parameter.shape.size() == 2;  // torchao's: nn.Linear
    parameter.gathered_in_fp8 = plan.float8_all_gather && is_linear;
    op.fp8_weight = parameter.gathered_in_fp8 || is_megatron;
    op.forward_workspace = {bytes(op.name + ".input_fp8", narrow(op.k), 0)};
    if (!op.fp8_weight)
      op.forward_workspace.push_back(bytes(op.name + ".weight_fp8", 0, narrow(weight)));
    op.backward_workspace = {bytes(op.name + ".output_grad_fp8", narrow(op.n), 0),
                             bytes(op.name + ".weight_fp8 (backward)", 0, narrow(weight)),
                             bytes(op.name + ".input_fp8 (backward)", narrow(op.k), 0)};
    layer.operations[o] = std::move(op);
  }
}

// The last blocks become kinds of their own.
void keep_blocks_wide(ModelSpec& model, std::int64_t count) {
  std::vector<std::pair<std::int32_t, std::int32_t>> copies;
  for (auto layer = model.order.rbegin(); layer != model.order.rend() && count > 0; ++layer) {
    if (model.kinds[at(layer->kind)].role != LayerRole::kBlock) continue;
    --count;
    auto found =
        std::ranges::find(copies, layer->kind, &std::pair<std::int32_t, std::int32_t>::first);
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
      const bool ends_layer =
          op.gradient == GradientRule::kAlias && std::ranges::count(op.outputs, layer.output) > 0;
      return !ends_layer && std::ranges::count(op.inputs, product.outputs.front()) > 0;
    });
  };
  for (Operation& op : layer.operations) {
    op.kept_by_selective =
        op.kind == OperationKind::kAttention || (op.kind == OperationKind::kGemm && is_read(op));
  }
}

// Attention's inputs and what they are made from: the products among them are attention's, and so
// is the first that reads what it makes.
void keep_dots_except_mlp(LayerSpec& layer) {
  std::vector<bool> before(layer.tensors.size()), behind(layer.tensors.size());
  const auto at = [](Index t) { return static_cast<std::size_t>(t); };
  const auto any = [&](const Indices& list, const std::vector<bool>& marked) {
    return std::ranges::any_of(list, [&](Index t) { return marked[at(t)]; });
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
      for (Indices* list : {&op.inputs, &op.saved}) {
        std::replace(list->begin(), list->end(), rows, copy);
      }
      op.released = {copy};
    }
    op.casts_weight = true;
    const auto& stack = layer.parameters[static_cast<std::size_t>(op.parameters.front())];
    const Index weight = narrow({.name = {}, .fixed = stack.numel()}, op.name);
    for (Indices* list : {&op.outputs, &op.saved, &op.released}) list->push_back(weight);
    const bool is_last = --left == 0;
    const Index product = is_last ? narrow(tensor(layer, made), tensor(layer, made).name) : made;
    op.outputs.front() = product;
    layer.tensors[static_cast<std::size_t>(product)].type = ElementType::kBf16;
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
  for (auto op = ops.begin() + at + 1; op != ops.end(); ++op) {
    for (Indices* list : {&op->inputs, &op->saved, &op->released}) {
      std::replace(list->begin(), list->end(), made, join.outputs.front());
    }
  }
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

// What attention reads of keys and values are copies behind those of earlier tokens, of which there
// are none (transformers, cache_utils.py, DynamicLayer.update). The cache has them until the
// model's arguments go, with which a checkpointed block holds it. Keys that the tables of an fp32
// stream have rotated are fp32, and values are cached in the dtype of keys; autocast's attention
// reads casts of both.
void cache_keys(LayerSpec& layer, const Plan& plan) {
  if (plan.attention != AttentionKernel::kEager) cache_parts(layer);
  std::vector<Operation>& ops = layer.operations;
  const bool widens =
      is_under_autocast(plan) && plan.kernels.residual == ModuleKernels::Residual::kFp32 &&
      std::ranges::any_of(ops,
                          [](const Operation& op) { return op.function == Function::kRotary; });
  for (const std::size_t input : {1, 2}) {
    const auto attends = std::ranges::find_if(ops, [&](const Operation& op) {
      return op.kind == OperationKind::kAttention && op.inputs.size() > input;
    });
    if (attends == ops.end()) return;
    if (attends->attention.value_dim > 0) return;  // latents are cached, which nothing else keeps
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
      for (Indices* list : {&op->inputs, &op->saved, &op->released}) {
        std::replace(list->begin(), list->end(), from, read);
      }
    }
    ops.insert(attends, cached.begin(), cached.end());
  }
}

// --- buffers ---

// Accelerate's FSDP1 (utils/dataclasses.py, set_mixed_precision) and DeepSpeed's engine cast fp32
// buffers, too: sinusoids, and BART's bias of the logits. A model that is made in 16 bits has them
// so.
void cast_buffers(LayerSpec& layer, const Plan& plan) {
  const bool of_accelerate = plan.runtime.kind == RuntimeKind::kFsdp1 && plan.autocast;
  const bool narrow = plan.master_dtype != DType::kFp32 ||
                      (plan.lora.rank > 0 && (plan.lora.base == Lora::Base::kParam ||
                                              plan.lora.base == Lora::Base::kNf4));
  if (!(of_accelerate || narrow || is_zero(plan.runtime.kind)) || plan.param_dtype == DType::kFp32)
    return;
  const bool biased = layer.role == LayerRole::kLoss && !layer.tensors.empty() &&
                      tensor(layer, 0).type == ElementType::kFp32;
  for (TensorSpec& each : layer.tensors) {
    if (each.name == kSinusoids || each.name == "biased_logits") {
      layer.resident_bytes /= 2;
    } else if (!biased || each.per_token == 0) {
      continue;
    }
    each.type = ElementType::kCompute;
  }
}

// A causal mask of all positions, a byte for each pair, that a module makes with itself
// (nn.Buffer; transformers 5.24, models/FAMILY/modeling_FAMILY.py): the attention of each block, or
// the model.
struct OwnMask {
  std::string_view family;
  LayerRole role = LayerRole::kLoss;
};
constexpr OwnMask kOwnMasks[] = {{"gpt_neo", LayerRole::kBlock},
                                 {"gpt_bigcode", LayerRole::kEmbedding}};

void keep_own_mask(LayerSpec& layer, const ModelSpec& model) {
  if (layer.role != row_of(kOwnMasks, model.family).role || layer.role == LayerRole::kLoss) return;
  layer.resident_bytes += checked_multiply(model.max_positions, model.max_positions);
}

// torchtune 0.6.1, models/*/_component_builders.py: a rotary embedding for the model, but in
// builders with adapters for each block; qwen2/_positional_embeddings.py repeats each angle.
void keep_rope_tables(ModelSpec& model, const Plan& plan) {
  const bool repeats = model.family.starts_with("qwen") || model.family == "phi3";
  const LayerRole role = plan.lora.rank > 0 ? LayerRole::kBlock : LayerRole::kEmbedding;
  std::int64_t dims = 0;
  for (const LayerSpec& layer : model.kinds) {
    for (const Operation& op : layer.operations) dims = std::max(dims, op.attention.head_dim);
  }
  for (LayerSpec& layer : model.kinds) {
    if (layer.role != role) continue;
    layer.resident_bytes += checked_multiply(model.max_positions, dims * (repeats ? 8 : 4));
  }
}

// --- units ---

// What the first operation with parameters reads becomes a module of its own (Units::table_alone).
void separate_table(LayerSpec& layer, const Units& units) {
  if (!layer.nested.empty() || !splits_table(units, layer)) return;
  const auto table = std::ranges::find_if(
      layer.operations, [](const Operation& op) { return !op.parameters.empty(); });
  const std::string& name =
      layer.parameters[static_cast<std::size_t>(table->parameters.front())].name;
  layer.nested = {name.substr(0, name.rfind('.'))};
  table->part = 1;
  for (const Index p : table->parameters) layer.parameters[static_cast<std::size_t>(p)].part = 1;
}

// An operation is in the unit of its parameters, and so is what lies between two of one.
void separate(LayerSpec& layer, const SizeUnits& units) {
  layer.nested = units.modules;
  const auto part_of = [&](const ParameterSpec& p) {
    return static_cast<std::int8_t>(unit_of_name(units, p.name) + 1);
  };
  for (ParameterSpec& p : layer.parameters) p.part = part_of(p);
  std::vector<Operation>& ops = layer.operations;
  for (Operation& op : ops) {
    op.part =
        op.parameters.empty() ? std::int8_t{0} : layer.parameters[at(op.parameters.front())].part;
  }
  for (std::int8_t part = 1; part <= static_cast<std::int8_t>(units.modules.size()); ++part) {
    const auto is_its = [&](const Operation& op) { return op.part == part; };
    const auto first = std::ranges::find_if(ops, is_its);
    const auto last = std::find_if(ops.rbegin(), ops.rend(), is_its).base();
    for (auto op = first; op < last; ++op) {
      if (op->part == 0) op->part = part;
    }
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
    return std::ranges::find_if(model.kinds,
                                [&](const LayerSpec& layer) { return layer.role == role; });
  };
  const auto head = find(LayerRole::kHead);
  auto transform = find(LayerRole::kInner);  // behind a last norm, or in its place
  if (transform == model.kinds.end()) transform = find(LayerRole::kFinalNorm);
  if (head == model.kinds.end() || transform == model.kinds.end()) return;
  const bool is_unit = units.head == UnitPlacement::kOwn || units.head == UnitPlacement::kWithNorm;
  if (!is_unit || head->parameters.size() < 2) return;
  const bool has_product = std::ranges::any_of(
      transform->operations, [](const Operation& op) { return op.kind == OperationKind::kGemm; });
  if (!has_product) return;
  ParameterSpec bias = head->parameters.back();
  const std::string module = bias.name.substr(0, bias.name.rfind('.') + 1);
  const bool holds_transform = std::ranges::any_of(
      transform->parameters, [&](const ParameterSpec& p) { return p.name.starts_with(module); });
  if (!holds_transform) return;
  bias.name += " (root's)";
  bias.trainable = false;
  transform->parameters.push_back(std::move(bias));
  // The optimizer has the root's name, so that nobody lets go of the other's gradient, nor of the
  // unit's flat one, which it is a view of (Accelerate 1.15 with BertForMaskedLM).
  const ParameterSpec& table = head->parameters.front();
  const std::int64_t rows = (table.shape.front() + plan.mesh.shard - 1) / plan.mesh.shard;
  const std::int64_t columns = table.numel() / table.shape.front() + 1;
  head->resident_bytes +=
      checked_multiply(checked_multiply(rows, columns), size_of(plan.master_dtype));
}

// --- gradients that are sums ---

// Of biases, and of the weights of eager norms, for which the product of every row is made first.
void add_column_sums(LayerSpec& layer) {
  for (Operation& op : layer.operations) {
    const bool is_product =
        op.kind == OperationKind::kGemm && op.parameters.size() == 2 && op.groups == 1;
    // (What a convolution was seen to take is in its layer.)
    const bool is_bias = is_product && op.backward_workspace.empty();
    const bool is_weight = op.eager_norm && !op.parameters.empty();
    if (!is_bias && !is_weight) continue;
    const ParameterSpec& summed = layer.parameters[static_cast<std::size_t>(op.parameters.back())];
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
    if (product.per_token % columns == 0 && product.per_sequence % columns == 0 &&
        product.per_position % columns == 0) {
      rows.per_token /= columns, rows.per_sequence /= columns, rows.per_position /= columns;
    } else {
      rows.split *= columns;
    }
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
      ParameterSpec& parameter = layer.parameters[static_cast<std::size_t>(p)];
      if (std::exchange(parameter.tied, false)) parameter.name = op.name + ".weight";
    }
  }
}

// --- packed documents ---

// A fused kernel over the documents of a sequence skips what lies between them (flash attention's
// cu_seqlens, FlexAttention's document mask); everything else is as before. Positions start again
// with every document, which costs nothing.
void pack(ModelSpec& model, std::int64_t documents) {
  for (LayerSpec& layer : model.kinds) {
    for (Operation& op : layer.operations) op.attention.documents = documents;
  }
}

}

// (Megatron-Core and the engine have kernels of their own, autocast its own casts.)
void multiply_experts_in_bf16(ModelSpec& model, const Plan& plan) {
  const RuntimeKind kind = plan.runtime.kind;
  const bool is_torchtitan = kind != RuntimeKind::kNative && kind != RuntimeKind::kMegatron &&
                             plan.experts == ExpertKernels::kGrouped;
  if (!is_torchtitan || plan.compute_dtype() == DType::kBf16 || is_under_autocast(plan)) return;
  for (LayerSpec& layer : model.kinds) multiply_in_bf16(layer);
}

ModelSpec with_variants(ModelSpec model, const Plan& plan) {
  if (flattens_twice(plan) ||
      (plan.runtime.kind == RuntimeKind::kFsdp2 && parts_tied(plan.units))) {
    for (LayerSpec& layer : model.kinds) untie(layer);
    if (flattens_twice(plan)) model.tied_embeddings = false;
  }
  if (plan.units.min_parameters > 0) {
    for (LayerSpec& layer : model.kinds) separate_by_size(layer, plan.units.min_parameters);
  } else if (plan.units.table_alone) {
    for (LayerSpec& layer : model.kinds) separate_table(layer, plan.units);
    split_head_bias(model, plan);
  }
  if (plan.runtime.kind == RuntimeKind::kMegatron) {
    for (LayerSpec& layer : model.kinds) use_megatron_mixer(layer);
  }
  if (plan.kernels.torch_mixers) {
    for (LayerSpec& layer : model.kinds) use_torch_mixer(layer, plan.batch.sequence);
  }
  if (plan.batch.images > 0) model = with_images(std::move(model), plan.batch.images);
  if (plan.runtime.kind == RuntimeKind::kDdp && plan.ddp.blocks_narrow) {
    for (LayerSpec& layer : model.kinds) {
      for (ParameterSpec& each : layer.parameters) {
        each.stored_as_computed |= layer.role == LayerRole::kBlock && !each.is_norm;
      }
    }
  }
  for (LayerSpec& layer : model.kinds) cast_buffers(layer, plan);
  if (plan.lora.rank > 0) model = with_adapters(std::move(model), plan);
  if (plan.units.adapters_alone) {
    for (LayerSpec& layer : model.kinds) {
      if (layer.role == LayerRole::kBlock) separate(layer, units_of_adapters(layer));
    }
  }
  if (plan.batch.documents > 1) pack(model, plan.batch.documents);
  if (plan.kernels.rope_tables) keep_rope_tables(model, plan);
  if (plan.kernels.keeps_cache) {
    for (LayerSpec& layer : model.kinds) {
      if (layer.role == LayerRole::kBlock) cache_keys(layer, plan);
    }
  }
  if (plan.experts == ExpertKernels::kLoop) {
    for (LayerSpec& layer : model.kinds) loop_over_experts(layer);
  } else if (plan.experts == ExpertKernels::kTransformers) {
    for (LayerSpec& layer : model.kinds) {
      use_transformers_experts(layer, model.family);
      if (plan.lora.rank > 0) adapt_experts(layer, plan, model);
      keep_own_mask(layer, model);
      // ZeRO's flat groups and what it gathers one by one follow it, as do the buckets of a
      // DistributedDataParallel that makes them once.
      const bool makes_once =
          plan.runtime.kind == RuntimeKind::kDdp && plan.ddp.find_unused_parameters;
      if (is_zero(plan.runtime.kind) || makes_once) order_as_transformers(layer, model.family);
    }
  }
  multiply_experts_in_bf16(model, plan);
  if (plan.recompute_keeps == SelectivePolicy::kDots) {
    for (LayerSpec& layer : model.kinds) keep_dots(layer);
  }
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
    if (layer.role == LayerRole::kHead && plan.loss.has_product()) {
      fuse_loss_into_head(layer, of_labels);
    }
    if (layer.role == LayerRole::kHead && plan.units.head_calls > 1) {
      call_in_parts(layer, of_labels);
    }
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
    if (plan.float8 != Float8::kNone && !layer.wide) apply_float8(layer, plan);
    if (plan.loss.chunks == 1) fuse_silu(layer, true);  // Liger
    if (plan.compile != Compile::kNone) compile(layer);
  }
  return model;
}

}
