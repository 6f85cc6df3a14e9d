// What the keys loss and logits cost. Sizes are per token; V vocabulary:
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
//   chunked-head-N
//              head, loss and backward of a part of each sequence at a time: the weight's gradient
//              is summed in fp32, the hidden states' in one tensor of fp32 (torchtitan 0.3, components/loss.py,
//              ChunkedLossWrapper)
#include "models/layers/loss_variants.h"

#include <algorithm>
#include <bit>
#include <map>
#include <utility>

#include "models/layers/module_kernels.h"
#include "sim/base/lookup.h"
#include "sim/graph/layers/column_sums.h"
#include "sim/graph/layers/layer_writer.h"
#include "sim/spec/checks/plan_check.h"
#include "sim/spec/gpu_generation.h"

namespace foreshard {
namespace {

Operation cross_entropy() {
  return Operation{.name = "cross_entropy", .kind = OperationKind::kSoftmaxLoss, .function = Function::kCrossEntropy};
}

LayerSpec one_kernel_loss(LayerSpec layer, bool in_place) {
  layer.tensors.resize(1);
  const Index loss = add_tensor(layer, {.name = "loss", .fixed = 1, .type = ElementType::kFp32});
  const Index logsumexp = add_tensor(layer, {.name = "logsumexp", .per_token = 1, .type = ElementType::kFp32});
  Operation op = cross_entropy();
  op.inputs = {0};
  op.outputs = {loss, logsumexp};
  op.saved = {0, logsumexp};
  op.in_place = in_place;
  layer.operations = {std::move(op)};
  layer.output = loss;
  return layer;
}

// The loop's name holds what the model returned till the next forward's is made: all the time, and twice while that is.
void keep_logits(LayerSpec& layer, Operation& copy, const Plan& plan) {
  const std::int64_t words = layer.tensors.front().per_token;
  copy.forward_workspace = {add_tensor(layer, {.name = "next logits", .per_token = words, .type = ElementType::kFp32})};
  copy.released = {0};
  layer.resident_bytes +=
      checked_multiply(elements(layer.tensors.front(), plan.batch.micro_batch, plan.batch.sequence), 4);
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
  split.backward_workspace = {add_tensor(layer, {.name = "chunk gradients", .per_token = vocabulary})};

  Operation op = cross_entropy();
  op.inputs = {views};
  op.outputs = {loss, probabilities, fp32("chunk_fp32", part)};
  op.saved = {probabilities};
  op.backward_workspace = {fp32("nll.grad", part), fp32("log_softmax.grad", part)};
  if (plan.logits == Logits::kKept) keep_logits(layer, split, plan);
  else op.released = {0};
  layer.operations = {std::move(split), std::move(op)};
  layer.output = loss;
  return layer;
}

// Nothing but the loss of each token leaves the head.
void fused_product(LayerSpec& head, std::vector<Operation>::iterator product) {
  product->function = Function::kCrossEntropy;
  product->outputs = {add_tensor(head, {.name = "token losses", .per_token = 1, .type = ElementType::kFp32})};
  head.output = product->outputs.front();
  head.operations.erase(product + 1, head.operations.end());
}

}

// From the second call on backward has the weight's gradients so far, the next and their sum, and
// no more the logits' of those before.
void call_in_parts(LayerSpec& head, const Plan& plan) {
  const auto product =
      std::ranges::find_if(head.operations, [](const Operation& op) { return op.kind == OperationKind::kGemm; });
  if (product == head.operations.end() || plan.frozen.head ||
      !head.parameters[at(product->parameters.front())].trainable)
    return;
  const std::int64_t tokens = checked_multiply(plan.batch.micro_batch, plan.batch.sequence);
  const std::int64_t more = product->k - tokens / plan.units.head_calls;
  if (more <= 0) return;
  product->backward_workspace.push_back(
      add_tensor(head, {.name = "sums of gradients", .fixed = checked_multiply(2 * product->n, more)}));
}

namespace {

// All ranks' rows of the weight, in the dtype that they are stored in, come in front of the
// product, which casts a part at a time.
void gather_weight(LayerSpec& head, const Plan& plan, std::int64_t words) {
  const auto product =
      std::ranges::find_if(head.operations, [](const Operation& op) { return op.kind == OperationKind::kGemm; });
  const bool is_wide = (plan.lora.base == Lora::Base::kMaster || plan.lora.base == Lora::Base::kNf4Master) &&
                       plan.master_dtype == DType::kFp32;
  const ElementType type = is_wide ? ElementType::kFp32 : ElementType::kCompute;
  const std::int64_t rows = (product->n + plan.mesh.shard - 1) / plan.mesh.shard;
  const std::int64_t shard = checked_multiply(rows, product->k);
  const Index own = add_tensor(head, {.name = "rows of the head", .fixed = shard, .type = type});
  const Index whole =
      add_tensor(head, {.name = "gathered head", .fixed = checked_multiply(shard, plan.mesh.shard), .type = type});
  product->saved.push_back(whole);
  product->released.push_back(whole);
  if (is_wide) {
    const std::int64_t part = checked_multiply(std::min(product->n, words), product->k);
    product->forward_workspace.push_back(add_tensor(head, {.name = "part of the weight", .fixed = part}));
    product->backward_workspace.push_back(product->forward_workspace.back());
  }
  Operation gather = {.name = "full_tensor",
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
  for (Indices* list : {&ops[at(product)].inputs, &ops[at(product)].saved}) std::ranges::replace(*list, from, to);
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
    for (Indices* list : {&op.inputs, &op.saved, &op.released}) std::ranges::replace(*list, Index{0}, taken);
    op.rows = checked_multiply(op.rows, batch.labelled);
    op.split = checked_multiply(op.split, batch.sequence);
  }
  for (std::size_t t = 1; t < layer.tensors.size(); ++t) {
    TensorSpec& spec = layer.tensors[t];
    spec.per_sequence += checked_multiply(std::exchange(spec.per_token, 0), batch.labelled);
  }
  layer.operations.insert(layer.operations.begin(), pass("labelled_tokens", Function::kCopy, 0, taken));
}

}

// hidden_states[mask] in front of the head, or of an encoder's transform: what follows runs on these positions.
void score_labelled(ModelSpec& model, const Plan& plan) {
  const auto kind = [&](std::size_t l) -> LayerSpec& { return model.kinds[at(model.order[l].kind)]; };
  const std::size_t loss = model.order.size() - 1, head = loss - 1;
  if (loss < 2 || kind(head).role != LayerRole::kHead || kind(head).domain != Domain{}) return;
  std::size_t first = head;
  for (std::size_t l = head - 1; !plan.loss.has_product() && l > 0; --l) {
    const LayerRole role = kind(l).role;
    if (role != LayerRole::kInner && role != LayerRole::kFinalNorm) break;
    const bool has_product =
        std::ranges::any_of(kind(l).operations, [](const Operation& op) { return op.kind == OperationKind::kGemm; });
    if (has_product) first = l;
  }
  take_labelled_rows(kind(first), plan.batch);
  for (std::size_t l = first + 1; l <= loss; ++l) kind(l).domain.positions = plan.batch.labelled;
}

// The gradients that a fused loss makes in forward are there beside its tile; they count as made in
// backward, which begins where forward ends. Of a frozen head there is none of the weight (TRL's
// and Liger's functions ask needs_input_grad).
void fuse_loss_into_head(LayerSpec& head, const Plan& plan) {
  const auto first_product = [&] { return std::ranges::find(head.operations, OperationKind::kGemm, &Operation::kind); };
  auto product = first_product();
  if (product == head.operations.end()) return;
  const bool is_tiled = plan.loss.kind == Loss::Kind::kTiledLinear;
  const std::int64_t tokens =
      checked_multiply(plan.batch.micro_batch, is_tiled ? plan.batch.tokens_with_labels() : plan.batch.sequence);
  const std::int64_t weights = checked_multiply(product->n, product->k);
  const bool is_trained = !plan.frozen.head && head.parameters[at(product->parameters.front())].trainable;
  const auto add_weight = [&](ElementType type) {
    const std::string_view name = is_tiled ? kSumOfTiles : "weight's gradient";
    return add_tensor(head, {.name = std::string(name), .fixed = is_trained ? weights : 0, .type = type});
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
    const Index tile = add_tensor(head, {.name = "tile of logits", .fixed = std::min(tokens, kTokens) * kWords});
    input.type = ElementType::kFp32;
    product->forward_workspace = {tile};
    const Index sum = add_tensor(head, std::move(input));
    // Tokens and parts of the weight are cast, whose gradient is its own; flat parameters are there
    // in the dtype of autocast.
    const auto cast = [&](const char* name, std::int64_t rows) {
      return add_tensor(head, {.name = name, .fixed = rows * product->k});
    };
    const bool is_flat = plan.runtime.kind == RuntimeKind::kFsdp1;
    if (is_under_autocast(plan) && !is_flat) {
      const Index rows = cast("tile of tokens", std::min(tokens, kTokens));
      product->forward_workspace.push_back(rows);
      product->forward_workspace.push_back(cast("part of the weight", std::min(product->n, kWords)));
      product->backward_workspace = {tile, rows, product->forward_workspace.back()};
      if (!is_wide) product->backward_workspace.push_back(sum);
      // In backward the name of one part is there while the next is cast.
      if (const std::int64_t next = std::min(product->n - kWords, kWords); next > 0)
        product->backward_workspace.push_back(cast("next part of the weight", next));
    } else {
      const Index rows = is_wide && is_flat ? cast("tile of tokens", std::min(tokens, kTokens)) : sum;
      if (rows != sum) product->forward_workspace.push_back(rows);
      product->backward_workspace = {rows, add_weight(ElementType::kFp32), tile};
    }
    fused_product(head, product);
    if (gathers_own_head(plan)) gather_weight(head, plan, kWords);
    return;
  }
  const std::int64_t tiles = (product->n + product->k - 1) / product->k;
  const std::int64_t rows =
      static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>((tokens + tiles - 1) / tiles)));
  const Index tile =
      add_tensor(head, {.name = "tile of logits", .fixed = checked_multiply(std::min(rows, tokens), product->n)});
  const Index weight = add_weight(ElementType::kCompute);
  product->forward_workspace = {tile, weight, add_tensor(head, std::move(input))};
  product->backward_workspace = {tile};
  fused_product(head, product);
}

// Beside the sums of both gradients there is a chunk's logits, whose name lives on, with either three fp32 tensors of
// their size (four where they are cut by vocabulary; compiled: the gradient alone), the weight's gradient of the chunk,
// which is cast and added, or that with the logits' gradient and what a product takes for itself.
void chunk_head(LayerSpec& head, const Plan& plan) {
  const auto product = std::ranges::find(head.operations, OperationKind::kGemm, &Operation::kind);
  if (product == head.operations.end()) return;
  const std::int64_t tokens = checked_multiply(plan.batch.micro_batch, plan.batch.sequence) / plan.mesh.cp;
  const std::int64_t words = product->n / plan.mesh.tp, logits = checked_multiply(tokens / plan.loss.chunks, words);
  const std::int64_t weight = checked_multiply(words, product->k), hidden = checked_multiply(tokens, product->k);
  const bool is_compiled = plan.compile != Compile::kNone;
  // In elements of two bytes; the gradients that the layer makes, too, are there at its end alone.
  const std::int64_t of_softmax = is_compiled ? 2 : plan.mesh.tp > 1 ? 9 : 7;
  const std::int64_t softmax = 2 * weight + of_softmax * logits, sum = 5 * weight + logits;
  const std::int64_t copies = plan.batch.micro_batch > 1 ? hidden : 0;
  const std::int64_t made = (plan.mesh.pp > 1 ? 2 : 1) * weight;  // stages add up in fp32
  // Until PyTorch 2.14 products leave their library's workspace outside of what tensors ask for.
  const ProductWorkspaces library = product_workspaces(plan.runtime.torch_minor(), plan.compute_capability);
  const std::int64_t product_of_weight =
      library.kept ? 0 : 3 * weight + 2 * logits + hidden / plan.loss.chunks + library.cublas / 2;
  const std::int64_t beside = std::max({softmax, sum, product_of_weight}) - made + 2 * hidden + copies - hidden;
  product->backward_workspace = {add_tensor(head, {.name = "chunk and sums of gradients", .fixed = beside})};
  fused_product(head, product);
}

namespace {

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
    for (Indices* list : {&op.inputs, &op.saved})
      std::replace(list->begin(), list->end(), cast.outputs.front(), cast.inputs.front());
    std::erase(op.released, cast.outputs.front());
    for (const Index t : op.outputs) layer.tensors[at(t)].type = ElementType::kCompute;
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
  const bool is_fp32 = plan.runtime.kind == RuntimeKind::kDdp || plan.runtime.kind == RuntimeKind::kFsdp1;
  if (has_cast && !is_fp32) leave_out_cast(layer);
  if (has_cast && is_fp32) ops.front().released.push_back(0);
  const auto softmax =
      std::ranges::find_if(ops, [](const Operation& op) { return op.function == Function::kLogSoftmax; });
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
  if (tensor(layer, probabilities).type == ElementType::kCompute && plan.compute_dtype() != DType::kFp32)
    loss.backward_workspace = {another("gathered.grad")};
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
  if (plan.runtime.kind == RuntimeKind::kDdp && plan.ddp.find_unused_parameters)
    make("outputs_copy", Function::kCopy, "logits_copy");
  ops.back().released.push_back(returned);
}

}

// So it is of what nobody reads (a value head's logits).
void copy_unread(LayerSpec& head, const Plan& plan) {
  Operation& last = head.operations.back();
  if (plan.runtime.kind != RuntimeKind::kDdp || !plan.ddp.find_unused_parameters) return;
  if (last.gradient != GradientRule::kNone) return;
  const Index logits = last.inputs.front(), returned = last.outputs.front();
  TensorSpec spec = tensor(head, returned);
  Operation copy = pass("outputs_copy", Function::kCopy, returned, add_tensor(head, std::move(spec)));
  copy.gradient = GradientRule::kNone;
  copy.released = std::exchange(last.released, {logits});
  std::ranges::replace(copy.released, logits, copy.outputs.front());
  head.operations.push_back(std::move(copy));
}

namespace {

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
  for (const char* name : {"sequences.grad", "gathered.grad"})
    softmax->backward_workspace.push_back(add_logits(layer, name, ElementType::kFp32));
}

bool keeps_compute_dtype(const LayerSpec& loss) {
  const Operation& first = loss.operations.front();
  return first.function == Function::kLogSoftmax && tensor(loss, first.outputs.front()).type == ElementType::kCompute;
}

}

void apply_loss(LayerSpec& layer, const Plan& plan, bool is_traced) {
  switch (plan.loss.kind) {
    case Loss::Kind::kEagerCompute:
      if (plan.logits == Logits::kHeld) return sum_exponentials(layer);
      leave_out_cast(layer);
      loop_over_sequences(layer, plan);
      return;
    case Loss::Kind::kSmoothed: smooth_labels(layer, plan); return;
    case Loss::Kind::kLogProbabilities: take_log_probabilities(layer, plan); return;
    case Loss::Kind::kEager:
      if (!is_traced && is_under_autocast(plan) && keeps_compute_dtype(layer)) return widen_losses(layer, plan);
      if (plan.runtime.kind == RuntimeKind::kFsdp2 && plan.loss_in_forward &&
          plan.output_dtype.value_or(DType::kFp32) != DType::kFp32 && tensor(layer, 0).type == ElementType::kFp32)
        return cast_outputs(layer);
      if (plan.logits != Logits::kReleased) {
        const bool returns_fp32 = plan.runtime.kind == RuntimeKind::kFsdp1 && plan.output_dtype == DType::kFp32;
        if (plan.loss_in_forward && returns_fp32) return return_fp32(layer, plan);
        // The first operation is the cast; its gradient is the last to be made. (What is held beyond it, of logits as
        // they are, is the runtime's.) Of fully_shard's and DeepSpeed's modules the outputs stay as they are.
        // (What a traced loss is given of the host stands before.)
        Operation& first =
            *std::ranges::find_if(layer.operations, [](const Operation& op) { return !op.inputs.empty(); });
        // Of a traced loss that casts nothing they are what it was given.
        const bool as_they_are =
            plan.loss_in_forward || is_zero(plan.runtime.kind) || (is_traced && first.function != Function::kCast);
        first.saved.push_back(as_they_are ? first.inputs.front() : first.outputs.front());
        // What Accelerate made fp32 behind the forward goes with it.
        if (!as_they_are && is_under_autocast(plan)) first.released.push_back(0);
      }
      return;
    case Loss::Kind::kCompiled:
      layer = one_kernel_loss(std::move(layer), false);
      // A model that computes its loss itself, for a loop that wants its outputs.
      if (plan.loss_in_forward && plan.compile == Compile::kModel && is_under_autocast(plan) &&
          (!is_traced || plan.logits == Logits::kHeld))
        return_fp32(layer, plan);
      return;
    case Loss::Kind::kFused: layer = one_kernel_loss(std::move(layer), true); return;
    case Loss::Kind::kChunked: layer = chunked_loss(std::move(layer), plan); return;
    case Loss::Kind::kFusedLinear:
    case Loss::Kind::kTiledLinear:
    case Loss::Kind::kChunkedHead: layer = sum_of_losses(std::move(layer)); return;
  }
}

}
