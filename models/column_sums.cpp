// aten/src/ATen/native/cuda/Reduce.cuh of PyTorch 2.11, setReduceConfig, for a sum over the slow
// dimension of rows: threads of a block side by side over columns, four (or two) of which each
// thread reads at once; then over rows; then, where a thread would still sum 256 values or more and
// the columns' blocks do not fill the device, several blocks share a column and meet in a buffer of
// fp32 partial sums of all of their columns' threads (global_memory_size).
//
// How many blocks fill the device is the device's matter; here a Hopper's 132 multiprocessors of 2048
// threads, whatever the plan runs on: memory follows from the plan alone.
#include "models/column_sums.h"

#include <algorithm>

namespace foreshard {
namespace {

constexpr std::int64_t kMostThreads = 512;  // of a block, over the columns that a thread reads
constexpr std::int64_t kWarp = 32;
constexpr std::int64_t kMultiprocessors = 132, kThreadsOfEach = 2048;
constexpr std::int64_t kFewest = 16, kMost = 256;  // values that a thread sums
constexpr std::int64_t kPartialSum = 4;

std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

std::int64_t power_of_two_below(std::int64_t n) {
  std::int64_t power = 1;
  while (power * 2 <= n) power *= 2;
  return power;
}

}  // namespace

std::int64_t column_sum_bytes(std::int64_t rows, std::int64_t columns) {
  std::int64_t read_at_once = 4;
  while (columns % read_at_once != 0) read_at_once /= 2;
  const std::int64_t threads_of_columns = columns / read_at_once;
  const std::int64_t most = kMostThreads / read_at_once;
  const auto fit = [most](std::int64_t n) { return n < most ? power_of_two_below(n) : most; };
  std::int64_t width = std::min(fit(threads_of_columns), kWarp);
  const std::int64_t height = std::min(fit(rows), most / width);
  width = std::min(fit(threads_of_columns), most / height);
  if (rows < std::min(height * kFewest, kMost)) return 0;
  const std::int64_t values = divide_up(rows, height);
  const std::int64_t grid = divide_up(threads_of_columns, width);
  const std::int64_t filled = kMultiprocessors * (kThreadsOfEach / (width * height));
  if (values < kMost || grid > filled) return 0;
  const std::int64_t shares =
      std::max(std::min(divide_up(filled, grid), divide_up(values, kFewest)),
               divide_up(values, kMost));
  if (shares < 2) return 0;
  return checked_multiply(checked_multiply(columns, shares),
                          kPartialSum * width * read_at_once);
}

void add_column_sums(LayerSpec& layer, const Plan& plan) {
  const std::int64_t rows = checked_multiply(layer.domain.sequences(plan.batch.micro_batch),
                                             layer.domain.length(plan.batch.sequence));
  const auto add = [&](Operation& op, TensorSpec spec) {
    layer.tensors.push_back(std::move(spec));
    op.backward_workspace.push_back(static_cast<std::int16_t>(layer.tensors.size() - 1));
  };
  for (Operation& op : layer.operations) {
    const bool is_bias = op.kind == OperationKind::kGemm && op.parameters.size() == 2 &&
                         op.groups == 1;
    const bool is_weight = op.eager_norm && !op.parameters.empty();
    if (!is_bias && !is_weight) continue;
    const ParameterSpec& summed =
        layer.parameters[static_cast<std::size_t>(op.parameters.back())];
    if (!summed.trainable || summed.shape.size() != 1) continue;
    // The product of an eager norm with its weight is summed of all rows, and of groups of them.
    const TensorSpec made = layer.tensors[static_cast<std::size_t>(op.outputs.front())];
    const std::int64_t of_each = made.per_token / summed.shape.front();
    if (is_weight) {
      TensorSpec product = made;
      product.name = op.name + ".weight.grad of each row";
      add(op, std::move(product));
    }
    const std::int64_t bytes =
        column_sum_bytes(checked_multiply(rows, std::max<std::int64_t>(1, of_each)),
                         summed.shape.front());
    if (bytes == 0) continue;
    add(op, {.name = op.name + " sums", .fixed = bytes, .type = ElementType::kByte});
  }
}

}  // namespace foreshard
