// Eager operations in the order of torch 2.11 distributed/tensor/parallel/loss.py:132-155 and
// 330-420; sizes are per token, V the rank's part of the vocabulary:
//   forward   fp32 copy 4V, greatest 4, shifted 4V, exponentials 4V, their sum 4, logarithm 4,
//             log-probabilities 4V (kept)
//   backward  all of it in the node of the choice: its gradient 4V, exponentials 4V, their sum with
//             it 4V, times its weight 4V; log-softmax hands it on
// torch.compile fuses them up to each collective (2.11 on the null GPU, F.cross_entropy of a
// DTensor under loss_parallel, two ranks): casts are in the reductions, log-probabilities are made
// twice, 4V each, of which one is kept, and one kernel makes the gradient of the logits from them.
// Megatron-Core's (core/tensor_parallel/cross_entropy.py of 0.20) works on one fp32 copy in place,
// which becomes the softmax that it keeps and then the gradient.

#include <algorithm>
#include <string>
#include <utility>

#include "sim/graph/axes/layer_cutter.h"
#include "sim/graph/axes/rank_part.h"

namespace foreshard {
namespace {

using Index = std::int16_t;
using Indices = std::vector<Index>;

class LossCutter {
 public:
  LossCutter(const LayerSpec& layer, const Plan& plan) : layer_(layer) {
    const TensorSpec& logits = layer.tensors.front();
    width_ = chunk_of(logits.per_token, plan.mesh.tp, plan.mesh.tp_index(plan.rank));
    layer_.tensors.resize(1);
    layer_.tensors.front().per_token = width_;
    layer_.operations.clear();
  }

  LayerSpec run_in_place() {
    const Index wide = fp32("logits_fp32", width_);
    operation("float", Function::kLogSoftmax, {0}, wide).gradient = GradientRule::kOwn;
    layer_.operations.back().released = {0};
    const Index greatest = fp32("logits_max", 1);
    operation("max", Function::kLogSoftmax, {wide}, greatest);
    const Index maximum = all_reduce(greatest, "logits_max of all", /*maximum=*/true);
    // What is read and written counts twice.
    const Index chosen = fp32("predicted_logits", 1);
    operation("subtract", Function::kLogSoftmax, {wide, wide, maximum}, chosen);
    const Index sum = fp32("sum_exp_logits", 1);
    operation("exp", Function::kLogSoftmax, {wide, wide, wide}, sum);
    const Index chosen_of_all = all_reduce(chosen, "predicted_logits of all", /*maximum=*/false);
    const Index total = all_reduce(sum, "sum_exp_logits of all", /*maximum=*/false);
    const Index loss = scalar("loss");
    Operation& divide =
        operation("divide", Function::kLogSoftmax, {wide, total, chosen_of_all}, loss);
    divide.gradient = GradientRule::kOwn;
    divide.in_place = true;
    divide.saved = {wide};
    divide.released = {maximum, chosen_of_all, total, greatest, chosen, sum};
    layer_.output = loss;
    return std::move(layer_);
  }

  LayerSpec run_compiled() {
    const Index greatest = fp32("greatest", 1);
    operation("amax", Function::kLogSoftmax, {0}, greatest);
    const Index maximum = all_reduce(greatest, "greatest_of_all", /*maximum=*/true);
    const Index sum = fp32("sum", 1);
    operation("sum_exp", Function::kLogSoftmax, {0, maximum}, sum);
    const Index total = all_reduce(sum, "sum_of_all", /*maximum=*/false);
    const Index first = fp32("log_probabilities (to choose)", width_);
    operation("log_softmax", Function::kLogSoftmax, {0, maximum, total}, first);
    const Index chosen = fp32("chosen", 1);
    operation("choose", Function::kNegativeLogLikelihood, {}, chosen);
    const Index chosen_of_all = all_reduce(chosen, "chosen_of_all", /*maximum=*/false);
    const Index probabilities = fp32("log_probabilities", width_);
    operation("log_softmax", Function::kLogSoftmax, {first}, probabilities);
    const Index loss = scalar("loss");
    Operation& nll = operation("nll_loss", Function::kNegativeLogLikelihood, {0}, loss);
    nll.gradient = GradientRule::kOwn;
    nll.saved = {probabilities};
    nll.released = {first, greatest, maximum, sum, total, chosen, chosen_of_all, probabilities, 0};
    layer_.output = loss;
    return std::move(layer_);
  }

  LayerSpec run() {
    const Index wide = fp32("logits_fp32", width_);
    operation("logits_to_fp32", Function::kCast, {0}, wide).gradient = GradientRule::kOwn;
    layer_.operations.back().kind = OperationKind::kElementwise;
    const Index greatest = fp32("greatest", 1);
    operation("amax", Function::kLogSoftmax, {wide}, greatest);
    const Index maximum = all_reduce(greatest, "greatest_of_all", /*maximum=*/true);
    const Index shifted = fp32("shifted", width_);
    operation("shift", Function::kLogSoftmax, {wide, maximum}, shifted).released = {greatest};
    const Index exponentials = fp32("exponentials", width_);
    operation("exp", Function::kLogSoftmax, {shifted}, exponentials);
    const Index sum = fp32("sum", 1);
    operation("sum", Function::kLogSoftmax, {exponentials}, sum);
    const Index total = all_reduce(sum, "sum_of_all", /*maximum=*/false);
    const Index logarithm = fp32("logarithm", 1);
    operation("log", Function::kLogSoftmax, {total}, logarithm).released = {sum};

    const Index probabilities = fp32("log_probabilities", width_);
    Operation& softmax =
        operation("log_softmax", Function::kLogSoftmax, {wide, shifted, logarithm}, probabilities);
    softmax.gradient = GradientRule::kAlias;
    softmax.saved = {probabilities};
    softmax.released = {shifted, maximum, total, logarithm};

    // Targets that are no padding, and where in the rank's part they are.
    const Index targets = small("safe targets", ElementType::kInt64);
    const Index own = small("targets of the rank", ElementType::kInt64);
    operation("targets", Function::kNegativeLogLikelihood, {}, targets).outputs.push_back(own);
    const Index chosen = fp32("chosen", 1);
    operation("choose", Function::kNegativeLogLikelihood, {probabilities}, chosen);
    const Index chosen_of_all = all_reduce(chosen, "chosen_of_all", /*maximum=*/false);
    const Index loss = scalar("loss"), weight = scalar("total_weight");
    Operation& nll = operation("nll_loss", Function::kNegativeLogLikelihood,
                               {probabilities, chosen_of_all}, loss);
    nll.gradient = GradientRule::kOwn;
    nll.outputs.push_back(weight);
    nll.saved = {probabilities, weight};
    nll.backward_temporaries = {fp32("choice (backward)", width_),
                                fp32("exponentials (backward)", width_)};
    // Targets as they are, kept safe and shifted to the rank's part, their mask, the mask as
    // numbers, and weights.
    nll.backward_workspace = {small("safe targets", ElementType::kInt64),
                              small("targets of the rank", ElementType::kInt64),
                              small("rows", ElementType::kInt64),
                              small("mask", ElementType::kByte),
                              fp32("kept targets", 1),
                              fp32("weights of targets", 1)};
    nll.released = {targets, own, chosen, chosen_of_all, wide, 0};
    layer_.output = loss;
    return std::move(layer_);
  }

 private:
  Index add(TensorSpec spec) {
    layer_.tensors.push_back(std::move(spec));
    return static_cast<Index>(layer_.tensors.size() - 1);
  }
  Index fp32(std::string name, std::int64_t per_token) {
    return add({.name = std::move(name), .per_token = per_token, .type = ElementType::kFp32});
  }
  Index scalar(std::string name) {
    return add({.name = std::move(name), .fixed = 1, .type = ElementType::kFp32});
  }
  Index small(std::string name, ElementType type) {
    return add({.name = std::move(name), .per_token = 1, .type = type});
  }
  // Nothing to differentiate unless the caller says so.
  Operation& operation(std::string name, Function function, Indices inputs, Index output) {
    Operation& op = layer_.operations.emplace_back();
    op.name = std::move(name);
    op.kind = OperationKind::kSoftmaxLoss;
    op.function = function;
    op.inputs = std::move(inputs);
    op.outputs = {output};
    op.gradient = GradientRule::kNone;
    return op;
  }
  Index all_reduce(Index from, std::string name, bool maximum) {
    const Index result = fp32(std::move(name), 1);
    Operation& op = operation("all_reduce", Function::kCopy, {from}, result);
    op.collective = {.kind = CollectiveKind::kAllReduce, .waits = true, .maximum = maximum};
    return result;
  }

  LayerSpec layer_;
  std::int64_t width_ = 0;
};

}  // namespace

// Rows of slices are worked on in fp32 a few at a time (the native loss' own workspace).
LayerSpec cut_native_loss(const LayerSpec& whole, const Plan& plan) {
  LayerSpec layer = whole;
  Operation entropy = layer.operations.front();
  const std::int64_t slices = slices_of_rank(plan);
  const std::int64_t width = layer.tensors.front().per_token / (plan.mesh.tp * slices);
  layer.tensors.front().per_token /= plan.mesh.tp;
  // As many elements as of whole rows, but not more rows than there are.
  const std::int64_t tokens = plan.batch.micro_batch * plan.batch.sequence;
  TensorSpec& rows = layer.tensors[static_cast<std::size_t>(entropy.outputs.back())];
  rows.fixed = std::min(std::max(rows.fixed / width, std::int64_t{1}), tokens) * width;
  layer.operations.clear();
  const auto statistics = [&](const char* name, std::int64_t count) {
    layer.tensors.push_back(
        {.name = name, .per_token = kSliceStatistics * count, .type = ElementType::kFp32});
    return static_cast<Index>(layer.tensors.size() - 1);
  };
  const Index own = statistics("slice_statistics", slices);
  Operation& op = layer.operations.emplace_back();
  op.name = "slice_statistics";
  op.kind = OperationKind::kSoftmaxLoss;
  op.function = Function::kLogSoftmax;
  op.inputs = {0};
  op.outputs = {own};
  op.gradient = GradientRule::kNone;
  Index all = own;
  if (plan.mesh.tp > 1) {
    all = statistics("statistics_of_all_slices", slices * plan.mesh.tp);
    Operation& gather = layer.operations.emplace_back();
    gather.name = "all_gather";
    gather.function = Function::kCopy;
    gather.inputs = {own};
    gather.outputs = {all};
    gather.collective = {.kind = CollectiveKind::kAllGather, .waits = true};
    gather.gradient = GradientRule::kNone;
  }
  entropy.inputs.push_back(all);
  layer.operations.push_back(std::move(entropy));
  return layer;
}

LayerSpec cut_loss(const LayerSpec& layer, const Plan& plan) {
  LossCutter cutter(layer, plan);
  if (plan.runtime.kind == RuntimeKind::kMegatron) return cutter.run_in_place();
  return plan.loss.kind == Loss::Kind::kCompiled ? cutter.run_compiled() : cutter.run();
}

}  // namespace foreshard
