// Operations are found by what they do: the last grouped product's result is weighed by a product
// with one value per row, between casts; tokens are gathered into the first one's input.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <numeric>
#include <utility>
#include <vector>

#include "sim/graph/axes/layer_cutter.h"
#include "sim/graph/layers/layer_writer.h"

namespace foreshard {
namespace {

using Operations = std::vector<Operation>;

template <typename Is>
Operations::iterator find_op(LayerSpec& layer, const Is& is) {
  return std::ranges::find_if(layer.operations, is);
}

bool is_first(const Indices& list, Index t) { return !list.empty() && list.front() == t; }
auto makes(Index t) {
  return [t](const Operation& op) { return is_first(op.outputs, t); };
}
auto reads(Index t) {
  return [t](const Operation& op) { return is_first(op.inputs, t); };
}

void forget(LayerSpec& layer, Index gone) {
  for (Operation& op : layer.operations) std::erase(op.released, gone);
}

// A tensor like another one, under a name of its own.
Index add_like(LayerSpec& layer, Index t, const char* name) {
  TensorSpec spec = layer.tensors[at(t)];
  spec.name = name;
  return add_tensor(layer, std::move(spec));
}

void add_shared_behind(LayerSpec& layer) {
  Operations& all = layer.operations;
  const auto last = std::find_if(all.rbegin(), all.rend(), [](const Operation& op) { return op.groups > 1; });
  if (last.base()->inputs.empty()) return;  // (into zeros, then)
  const auto begin = last.base();
  const auto end = std::find_if(
      begin, all.end(), [&](const Operation& op) { return contains(op.inputs, last->outputs.front()); });
  const auto sums = find_op(layer, [](const Operation& op) { return op.function == Function::kScatterAdd; });
  if (begin == end || sums == all.end()) return;
  const Index base = sums->inputs.front(), result = sums->outputs.front(), input = begin->inputs.front();
  const Index zeros = add_like(layer, base, "zeros"), routed = add_like(layer, result, "routed_output");
  for (Indices* list : {&sums->inputs, &sums->released}) std::ranges::replace(*list, base, zeros);
  std::ranges::replace(sums->outputs, result, routed);
  Operation add = {.name = kAddsShared, .function = Function::kAdd, .inputs = {routed, base}, .outputs = {result}};
  add.gradient = GradientRule::kAlias;
  add.released = {routed, base};
  if (std::erase(sums->released, input) > 0) add.released.push_back(input);
  Operation made = {.name = "zeros_like", .function = Function::kCopy, .outputs = {zeros}};
  made.gradient = GradientRule::kNone;
  const auto place = begin - all.begin();
  std::rotate(begin, end, sums + 1);
  all.insert(sums + 1, std::move(add));
  all.insert(all.begin() + place, std::move(made));
}

// Under autocast to fp32.
void widen_router(LayerSpec& layer) {
  const auto cast = find_op(layer, [](const Operation& op) { return op.name == "router_to_fp32"; });
  if (cast == layer.operations.end()) return;
  const Index logits = cast->inputs.front(), wide = cast->outputs.front();
  Operation& product = *find_op(layer, makes(logits));
  const Index input = product.inputs.front(), read = add_like(layer, input, kRouterInput);
  layer.tensors[at(read)].type = ElementType::kFp32;
  const Index weight =
      add_tensor(layer, {.name = "router_weight_fp32", .fixed = product.n * product.k, .type = ElementType::kFp32});
  Operation widens = {.name = kRouterInput, .function = Function::kCast, .inputs = {input}, .outputs = {read}};
  product.inputs = {read};
  product.saved = {read, weight};
  product.outputs = {wide, weight};
  append(product.released, {read, weight});
  layer.operations.erase(cast);
  forget(layer, logits);
  layer.operations.insert(find_op(layer, makes(wide)), std::move(widens));
}

// gpt-oss': a bias of each row's expert, clamps, (up + 1) * gate * sigmoid(alpha gate).
struct ExpertClamper : LayerWriter {
  using LayerWriter::LayerWriter;

  void run() {
    Index gate = 0;
    for (Operation& op : std::exchange(operations_, {})) {
      part_ = op.part;
      if (op.name == "expert_silu_times_up") clamp(op, gate);
      if (op.name == "expert_silu") gate = op.inputs.front();
      else operations_.push_back(std::move(op));
      if (last().groups > 1 && last().parameters.size() > 1) add_bias();
    }
  }

 private:
  void clamp(Operation& op, Index gate) {
    using enum Function;
    const Index up = op.inputs.back();
    const std::int64_t each = width(up);
    const Index left = made("expert_gate_clamped", kScale, {gate}, each, {gate});
    const Index right = made("expert_up_clamped", kScale, {up}, each, {up});
    const Index scaled = made("expert_gate_scaled", kScale, {left}, each);
    const Index sigmoid = made("expert_sigmoid", kSigmoid, {scaled}, each);
    last().saved = {sigmoid};
    release({scaled});
    const Index glu = made("expert_glu", kMultiply, {left, sigmoid}, each, {left, sigmoid});
    release({sigmoid});
    std::ranges::replace(op.released, op.inputs.front(), glu);
    append(op.released, Indices{left, right});
    op.inputs = op.saved = {right, glu};
  }

  void add_bias() {
    const Index sum = last().outputs.front(), parameter = last().parameters.back();
    const Index plain = last().outputs.front() = like(sum, "without bias", ElementType::kCompute);
    last().parameters.pop_back();
    Operation& add = pass("bias", Function::kAdd, {plain}, {sum});
    add.gradient = GradientRule::kAlias;
    add.parameters = {parameter};
    add.released = {plain};
    add.forward_workspace = {like(sum, "bias of rows", ElementType::kCompute)};
  }
};

}

LayerSpec use_titan_3_mixture(LayerSpec layer, bool is_narrow) {
  const auto grouped = find_op(layer, [](const Operation& op) { return op.groups > 1; });
  if (grouped == layer.operations.end()) return layer;
  const bool is_biased = grouped->parameters.size() > 1;
  if (is_narrow) widen_router(layer);
  if (is_biased) ExpertClamper(layer).run();
  add_shared_behind(layer);
  return layer;
}

// Launches of MoELayer in a capture (Megatron-Core 0.16.1 on the null GPU: auxiliary loss, router
// in fp32), less those of moe.cpp: of the router, and of a dispatcher by all-to-all, which flex
// dispatchers do otherwise. Of the dispatcher's 19 and 3 there 9 and 3 are permutations that
// moe_permute_fusion, which recipes set, leaves out (transformer_engine/pytorch/permutation.py).
struct Launches {
  std::size_t forward = 0, backward = 0;
};
constexpr Launches kRouter{22, 11}, kDispatcher{10, 0};

bool sends_tokens(const Plan& plan) {
  const bool is_cut = plan.mesh.tp > 1 && plan.runtime.kind != RuntimeKind::kMegatron;
  return plan.mesh.ep > 1 && !is_cut && plan.expert_parallel.dispatcher == ExpertParallel::Dispatcher::kDeepEp;
}

LayerSpec weigh_in_activation(LayerSpec layer, bool adds_bias) {
  const auto end = layer.operations.end();
  const auto last = std::find_if(
      layer.operations.rbegin(), layer.operations.rend(), [](const Operation& op) { return op.groups > 1; });
  if (last == layer.operations.rend()) return layer;
  const Index made = last->outputs.front(), inner = last->inputs.front();
  const auto widens = find_op(layer, reads(made));
  if (widens == end || widens->function != Function::kCast) return layer;
  const Index wide = widens->outputs.front();
  const auto weighs = find_op(layer, reads(wide));
  if (weighs == end || !weighs->sums_last) return layer;
  const Index scores = weighs->inputs.back(), weighed = weighs->outputs.front();
  const auto narrows = find_op(layer, reads(weighed));
  const auto activation = find_op(layer, makes(inner));
  if (narrows == end || activation == end) return layer;
  const Index narrow = narrows->outputs.front();
  TensorSpec factor = layer.tensors[at(scores)];
  factor.name += "_cast";
  factor.type = ElementType::kCompute;
  layer.tensors.push_back(std::move(factor));
  const auto factors = static_cast<Index>(layer.tensors.size() - 1);
  activation->inputs.push_back(factors);
  activation->saved.push_back(factors);
  // rows + bias * score, expert by expert in fp32, put side by side and cast (experts.py of 0.15 to 0.20, _apply_bias).
  Operations bias;
  if (adds_bias && last->parameters.size() > 1) {
    for (const Index t : {wide, weighed}) layer.tensors[at(t)].in_registers = false;
    layer.tensors.push_back(layer.tensors[at(weighed)]);
    const auto joined = static_cast<Index>(layer.tensors.size() - 1);
    bias = {*weighs, *narrows, *narrows, *narrows};
    bias[0].inputs = bias[0].saved = {factors};
    bias[0].outputs = bias[1].released = {wide};
    bias[1].function = Function::kAdd;
    bias[1].inputs = {made, wide};
    bias[1].outputs = bias[2].inputs = bias[2].released = {weighed};
    bias[2].function = Function::kCopy;
    bias[2].outputs = bias[3].inputs = {joined};
    std::replace(bias[3].released.begin(), bias[3].released.end(), weighed, joined);
    bias[0].released.clear();
    for (Operation& op : bias) {
      op.part = last->part;
      op.region = -1;
    }
  }
  std::erase_if(layer.operations,
      [&](const Operation& op) { return makes(wide)(op) || makes(weighed)(op) || makes(narrow)(op); });
  if (bias.empty()) {
    for (const Index gone : {wide, weighed}) forget(layer, gone);
    for (Operation& op : layer.operations)
      for (Indices* list : {&op.inputs, &op.saved, &op.released})
        std::replace(list->begin(), list->end(), narrow, made);
  } else {
    const auto behind = find_op(layer, makes(made)) + 1;
    layer.operations.insert(behind, bias.begin(), bias.end());
  }
  Operation cast = {.name = kScoresCast, .function = Function::kCast, .inputs = {scores}, .outputs = {factors}};
  layer.operations.insert(find_op(layer, makes(scores)) + 1, std::move(cast));
  return layer;
}

LayerSpec send_tokens(LayerSpec layer) {
  const auto end = layer.operations.end();
  const auto first = find_op(
      layer, [](const Operation& op) { return op.groups > 1; });
  const auto sums = find_op(layer, [](const Operation& op) { return op.function == Function::kScatterAdd; });
  if (first == end || sums == end) return layer;
  const auto copies = find_op(layer, makes(first->inputs.front()));
  if (copies == end || copies->function != Function::kGather) return layer;
  copies->view = true;
  copies->inputs.resize(1);
  copies->saved.clear();
  copies->backward_temporaries.clear();
  sums->saved.clear();
  const Index base = sums->inputs.front(), back = sums->inputs.back();
  const auto zeros = find_op(layer, makes(base));
  if (zeros != end && zeros->inputs.empty()) {  // no shared expert to add to
    sums->inputs = {back};
    sums->function = Function::kCopy;
    sums->view = true;
    sums->gradient = GradientRule::kOwn;
    layer.operations.erase(zeros);
    forget(layer, base);
  } else {
    sums->inputs = {base, back};
    sums->function = Function::kAdd;
    sums->gradient = GradientRule::kAlias;
  }
  return layer;
}

// Small kernels, one behind the other in a buffer of one number per token.
LayerSpec route_by_maps(LayerSpec layer, const Plan& plan) {
  if (plan.megatron.cuda_graphs == MegatronOptions::CudaGraphs::kRouters) return layer;
  const auto is = [](Function function) { return [function](const Operation& op) { return op.function == function; }; };
  const auto top = find_op(layer, is(Function::kTopK));
  if (top == layer.operations.end()) return layer;
  const Index scores = top->inputs.front();
  const auto router = std::find_if(std::make_reverse_iterator(top), layer.operations.rend(),
      [](const Operation& op) { return op.function == Function::kSoftmax || op.function == Function::kSigmoid; });
  const bool sends = sends_tokens(plan);
  const std::size_t forward = kRouter.forward + (sends ? 0 : kDispatcher.forward);
  const std::size_t backward = kRouter.backward + (sends ? 0 : kDispatcher.backward);
  const auto map = [&] {
    layer.tensors.push_back({.name = "routing", .per_token = 1, .type = ElementType::kFp32});
    return static_cast<Index>(layer.tensors.size() - 1);
  };
  if (router != layer.operations.rend())
    for (std::size_t i = 0; i < backward; ++i) router->backward_temporaries.push_back(map());
  Operations maps(forward);
  for (std::size_t i = 0; i < forward; ++i) {
    Operation& op = maps[i];
    op.name = "routing";
    op.function = Function::kCopy;
    op.inputs = {i == 0 ? scores : maps[i - 1].outputs.front()};
    op.outputs = {map()};
    op.gradient = GradientRule::kNone;
    op.in_place = i > 0;
    op.part = top->part;
  }
  // Tokens of each expert, which the ranks that share a sequence add up (router.py, _apply_aux_loss).
  const Mesh& mesh = plan.mesh;
  if (mesh.tp > 1 || mesh.cp > 1) {
    const std::int64_t experts = layer.tensors[at(scores)].per_token;
    const auto counts = [&] {
      layer.tensors.push_back({.name = "tokens of experts", .fixed = experts, .type = ElementType::kInt64});
      return static_cast<Index>(layer.tensors.size() - 1);
    };
    Operation sum = maps.back();
    sum.in_place = maps.back().in_place = false;
    sum.inputs = maps.back().outputs = {counts()};
    sum.outputs = {counts()};
    sum.collective = {
        .kind = CollectiveKind::kAllReduce, .dim = mesh.tp > 1 ? MeshDim::kTp : MeshDim::kCp, .waits = true};
    sum.released = {maps.back().inputs.front(), sum.inputs.front(), sum.outputs.front()};
    maps.push_back(std::move(sum));
  } else {
    maps.back().released = maps.back().outputs;
  }
  layer.operations.insert(top, maps.begin(), maps.end());
  return layer;
}

// The greatest share of any rank, of the rows of all.

std::int64_t received_rows(const ExpertParallel& how, ExpertGroup group, std::int64_t sent) {
  if (!how.received.empty()) return std::accumulate(how.received.begin(), how.received.end(), std::int64_t{0});
  const bool counted = static_cast<std::int64_t>(how.counts.size()) == group.experts;
  if (!counted && how.zipf == 0) return sent;
  std::vector<double> shares(at(group.ranks), 0);
  for (std::int64_t e = 0; e < group.experts; ++e) {
    const std::int64_t rank = counted ? e * group.ranks / group.experts : e % group.ranks;
    shares[at(rank)] +=
        counted ? static_cast<double>(how.counts[at(e)]) : std::pow(static_cast<double>(e + 1), -how.zipf);
  }
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  if (sum <= 0) return sent;
  const double most = *std::ranges::max_element(shares) / sum;
  return std::llround(most * static_cast<double>(sent) * static_cast<double>(group.ranks));
}

}
