// Eager operations in the order of torch 2.11 distributed/tensor/parallel/loss.py:132-155 and
// 330-420; sizes are per token, V the rank's part of the vocabulary:
//   forward   fp32 copy 4V, greatest 4, shifted 4V, exponentials 4V, their sum 4, logarithm 4,
//             log-probabilities 4V (kept)
//   backward  all of it in the node of the choice: its gradient 4V, exponentials 4V, their sum with
//             it 4V, times its weight 4V; log-softmax hands it on
// torch.compile fuses them up to each collective (2.11 on the null GPU, F.cross_entropy of a DTensor under
// loss_parallel, two ranks): casts are in the reductions, log-probabilities are made twice, 4V each, of which one is
// kept, and one kernel makes the gradient of the logits from them. Megatron-Core's
// (core/tensor_parallel/cross_entropy.py of 0.20) works on one fp32 copy in place, which becomes the softmax that it
// keeps and then the gradient. Compiled (jit_fuser, core/fusions/fused_cross_entropy.py) the exponentials are a second
// one and two sums travel in one; the model's frame holds the logits till it returns. TransformerEngine's works on the
// logits themselves (pytorch/triton/cross_entropy.py): each rank's greatest, sum and chosen are gathered. 0.16 on the
// null GPU: 6, 10 and 2 bytes a logit. Of logits that the model returns in fp32 (dtype.output; nanotron,
// parallel/tensor_parallel/functional.py) it copies first: 8.

#include <algorithm>
#include <string>
#include <utility>

#include "sim/graph/axes/layer_cutter.h"
#include "sim/graph/axes/rank_part.h"
#include "sim/graph/layers/layer_writer.h"

namespace foreshard {
namespace {

class LossCutter : LayerWriter {
 public:
  LossCutter(LayerSpec& layer, const Plan& plan)
      : LayerWriter(layer), ranks_(plan.mesh.tp), returns_fp32_(plan.output_dtype == DType::kFp32) {
    width_ = chunk_of(width(0), plan.mesh.tp, plan.mesh.tp_index(plan.rank()));
    layer.tensors.resize(1);
    layer.tensors.front().per_token = width_;
    layer.operations.clear();
  }

  LayerSpec run_in_place() {
    const Index wide = fp32_of("float", {0}, "logits_fp32", width_);
    last().gradient = GradientRule::kOwn;
    last().released = {0};
    const Index greatest = fp32_of("max", {wide}, "logits_max", 1);
    const Index maximum = all_reduce(greatest, "logits_max of all", /*maximum=*/true);
    Index values = wide;
    if (returns_fp32_) {
      values = fp32_of("subtract", {wide, maximum}, "shifted", width_);
      last().gradient = GradientRule::kAlias;
    }
    // What is read and written counts twice.
    const Index chosen = fp32_of("subtract", {values, values, maximum}, "predicted_logits", 1);
    const Index sum = fp32_of("exp", {values, values, values}, "sum_exp_logits", 1);
    const Index chosen_of_all = all_reduce(chosen, "predicted_logits of all", /*maximum=*/false);
    const Index total = all_reduce(sum, "sum_exp_logits of all", /*maximum=*/false);
    const Index loss = scalar("loss");
    Operation& divide = operation("divide", Function::kLogSoftmax, {values, total, chosen_of_all}, {loss});
    divide.gradient = GradientRule::kOwn;
    divide.in_place = true;
    divide.saved = {values};
    divide.released = {greatest, chosen, sum};
    if (values != wide) divide.released.push_back(wide);
    if (ranks_ > 1) append(divide.released, {maximum, chosen_of_all, total});
    return finish(loss);
  }

  LayerSpec run_jit_fused() {
    const Index wide = fp32("logits_fp32", width_), greatest = fp32("logits_max", 1);
    operation("max", Function::kLogSoftmax, {0}, {wide, greatest});
    const Index maximum = all_reduce(greatest, "logits_max of all", /*maximum=*/true);
    const Index softmax = fp32("exp_logits", width_), sums = fp32("predicted and sum", 2);
    // What is read and written counts twice.
    operation("exp", Function::kLogSoftmax, {wide, wide, maximum}, {softmax, sums});
    const Index sums_of_all = all_reduce(sums, "predicted and sum of all", /*maximum=*/false, 2);
    const Index loss = scalar("loss");
    Operation& divide = operation("divide", Function::kLogSoftmax, {0, softmax, sums_of_all}, {loss});
    divide.gradient = GradientRule::kOwn;
    divide.saved = {softmax};
    divide.released = {wide, greatest, softmax, sums, 0};
    if (ranks_ > 1) append(divide.released, {maximum, sums_of_all});
    return finish(loss);
  }

  LayerSpec run_on_logits() {
    const Index own = fp32_of("online_softmax", {0}, "max, sum and chosen", 3);
    Index all = own;
    if (ranks_ > 1) {
      all = fp32_of("all_gather", {own}, "max, sum and chosen of all", 3 * ranks_, Function::kCopy);
      last().collective = {.kind = CollectiveKind::kAllGather, .waits = true};
    }
    const Index loss = scalar("loss");
    Operation& entropy = operation("cross_entropy", Function::kLogSoftmax, {0, all}, {loss});
    entropy.gradient = GradientRule::kOwn;
    entropy.in_place = true;
    entropy.saved = {0};
    entropy.released = {own, 0};
    if (ranks_ > 1) append(entropy.released, {all});
    return finish(loss);
  }

  LayerSpec run_compiled() {
    const Index greatest = fp32_of("amax", {0}, "greatest", 1);
    const Index maximum = all_reduce(greatest, "greatest_of_all", /*maximum=*/true);
    const Index sum = fp32_of("sum_exp", {0, maximum}, "sum", 1);
    const Index total = all_reduce(sum, "sum_of_all", /*maximum=*/false);
    const Index first = fp32_of("log_softmax", {0, maximum, total}, "log_probabilities (to choose)", width_);
    const Index chosen = fp32_of("choose", {}, "chosen", 1, Function::kNegativeLogLikelihood);
    const Index chosen_of_all = all_reduce(chosen, "chosen_of_all", /*maximum=*/false);
    const Index probabilities = fp32_of("log_softmax", {first}, "log_probabilities", width_);
    const Index loss = scalar("loss");
    Operation& nll = operation("nll_loss", Function::kNegativeLogLikelihood, {0}, {loss});
    nll.gradient = GradientRule::kOwn;
    nll.saved = {probabilities};
    nll.released = {first, greatest, maximum, sum, total, chosen, chosen_of_all, probabilities, 0};
    return finish(loss);
  }

  LayerSpec run() {
    const Index wide = fp32_of("logits_to_fp32", {0}, "logits_fp32", width_, Function::kCast);
    last().gradient = GradientRule::kOwn;
    last().kind = OperationKind::kElementwise;
    const Index greatest = fp32_of("amax", {wide}, "greatest", 1);
    const Index maximum = all_reduce(greatest, "greatest_of_all", /*maximum=*/true);
    const Index shifted = fp32_of("shift", {wide, maximum}, "shifted", width_);
    last().released = {greatest};
    const Index exponentials = fp32_of("exp", {shifted}, "exponentials", width_);
    const Index sum = fp32_of("sum", {exponentials}, "sum", 1);
    const Index total = all_reduce(sum, "sum_of_all", /*maximum=*/false);
    const Index logarithm = fp32_of("log", {total}, "logarithm", 1);
    last().released = {sum};

    const Index probabilities = fp32("log_probabilities", width_);
    Operation& softmax = operation("log_softmax", Function::kLogSoftmax, {wide, shifted, logarithm}, {probabilities});
    softmax.gradient = GradientRule::kAlias;
    softmax.saved = {probabilities};
    softmax.released = {shifted, maximum, total, logarithm};

    // Targets that are no padding, and where in the rank's part they are.
    const Index targets = activation("safe targets", 1, ElementType::kInt64);
    const Index own = activation("targets of the rank", 1, ElementType::kInt64);
    operation("targets", Function::kNegativeLogLikelihood, {}, {targets, own});
    const Index chosen = fp32_of("choose", {probabilities}, "chosen", 1, Function::kNegativeLogLikelihood);
    const Index chosen_of_all = all_reduce(chosen, "chosen_of_all", /*maximum=*/false);
    const Index loss = scalar("loss"), weight = scalar("total_weight");
    Operation& nll =
        operation("nll_loss", Function::kNegativeLogLikelihood, {probabilities, chosen_of_all}, {loss, weight});
    nll.gradient = GradientRule::kOwn;
    nll.saved = {probabilities, weight};
    nll.backward_temporaries = {fp32("choice (backward)", width_), fp32("exponentials (backward)", width_)};
    // Targets as they are, kept safe and shifted to the rank's part, their mask, the mask as numbers, and weights.
    nll.backward_workspace = {activation("safe targets", 1, ElementType::kInt64),
        activation("targets of the rank", 1, ElementType::kInt64), activation("rows", 1, ElementType::kInt64),
        activation("mask", 1, ElementType::kByte), fp32("kept targets", 1), fp32("weights of targets", 1)};
    nll.released = {targets, own, chosen, chosen_of_all, wide, 0};
    return finish(loss);
  }

 private:
  Index fp32(std::string_view name, std::int64_t per_token) { return activation(name, per_token, ElementType::kFp32); }
  Index scalar(std::string name) { return tensor({.name = std::move(name), .fixed = 1, .type = ElementType::kFp32}); }
  // Nothing to differentiate unless the caller says so.
  Operation& operation(std::string name, Function function, Indices inputs, Indices outputs) {
    Operation& op = LayerWriter::operation(
        std::move(name), OperationKind::kSoftmaxLoss, function, std::move(inputs), std::move(outputs));
    op.gradient = GradientRule::kNone;
    return op;
  }
  // One that makes fp32 of its own.
  Index fp32_of(std::string name, Indices inputs, std::string_view output, std::int64_t per_token,
      Function function = Function::kLogSoftmax) {
    const Index result = fp32(output, per_token);
    operation(std::move(name), function, std::move(inputs), {result});
    return result;
  }
  Index all_reduce(Index from, std::string_view name, bool maximum, std::int64_t per_token = 1) {
    if (ranks_ == 1) return from;
    const Index result = fp32_of("all_reduce", {from}, name, per_token, Function::kCopy);
    last().collective = {.kind = CollectiveKind::kAllReduce, .waits = true, .maximum = maximum};
    return result;
  }

  std::int64_t width_ = 0;
  std::int64_t ranks_;
  bool returns_fp32_;
};

}

// Rows of slices are worked on in fp32 a few at a time (the native loss' own workspace).
LayerSpec cut_native_loss(const LayerSpec& whole, const Plan& plan) {
  LayerSpec layer = whole;
  Operation entropy = layer.operations.front();
  const std::int64_t slices = slices_of_rank(plan);
  const std::int64_t width = layer.tensors.front().per_token / (plan.mesh.tp * slices);
  layer.tensors.front().per_token /= plan.mesh.tp;
  // As many elements as of whole rows, but not more rows than there are.
  const std::int64_t tokens = plan.batch.micro_batch * plan.batch.sequence;
  TensorSpec& rows = layer.tensors[at(entropy.outputs.back())];
  rows.fixed = std::min(std::max(rows.fixed / width, std::int64_t{1}), tokens) * width;
  layer.operations.clear();
  LayerWriter out(layer);
  const auto statistics = [&](const char* name, std::int64_t count) {
    return out.activation(name, kSliceStatistics * count, ElementType::kFp32);
  };
  const Index own = statistics("slice_statistics", slices);
  out.constant("slice_statistics", Function::kLogSoftmax, {0}, {own}).kind = OperationKind::kSoftmaxLoss;
  Index all = own;
  if (plan.mesh.tp > 1) {
    all = statistics("statistics_of_all_slices", slices * plan.mesh.tp);
    out.constant("all_gather", Function::kCopy, {own}, {all}).collective = {
        .kind = CollectiveKind::kAllGather, .waits = true};
  }
  entropy.inputs.push_back(all);
  layer.operations.push_back(std::move(entropy));
  return layer;
}

LayerSpec cut_loss(const LayerSpec& whole, const Plan& plan) {
  LayerSpec layer = whole;
  LossCutter cutter(layer, plan);
  const Loss::Kind kind = plan.loss.kind;
  if (plan.runtime.kind == RuntimeKind::kMegatron) {
    if (kind == Loss::Kind::kFused) return cutter.run_on_logits();
    return kind == Loss::Kind::kCompiled ? cutter.run_jit_fused() : cutter.run_in_place();
  }
  return kind == Loss::Kind::kCompiled ? cutter.run_compiled() : cutter.run();
}

}
