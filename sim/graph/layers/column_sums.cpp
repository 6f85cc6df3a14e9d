// aten/src/ATen/native/cuda/Reduce.cuh of PyTorch 2.11, setReduceConfig, for a sum over the slow dimension of rows:
// threads of a block side by side over columns, four (or two) of which each thread reads at once; then over rows; then,
// where a thread would still sum 256 values or more and the columns' blocks do not fill the device, several blocks
// share a column and meet in a buffer of fp32 partial sums of all of their columns' threads (global_memory_size).
//
// How many blocks fill the device is the device's matter; here a Hopper's 132 multiprocessors of
// 2048 threads, whatever the plan runs on: memory follows from the plan alone.
#include "sim/graph/layers/column_sums.h"

#include <algorithm>

#include "sim/base/units.h"

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

}

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
      std::max(std::min(divide_up(filled, grid), divide_up(values, kFewest)), divide_up(values, kMost));
  if (shares < 2) return 0;
  return checked_multiply(checked_multiply(columns, shares), kPartialSum * width * read_at_once);
}

}
