// What measuring kernels on CPU ranks and on a device has in common: which kernels count as equal,
// the model they are measured with, and their rows.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "calibration/measure/measure.h"
#include "sim/graph/layers/layer_program.h"

namespace foreshard {

// What a kernel is, for collecting equal ones.
using KernelKey = std::tuple<int, int, int, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                             std::int64_t, bool>;
KernelKey key_of(const Kernel& kernel);

struct KernelSamples {
  Kernel kernel;
  std::vector<double> seconds;
};

class KernelTimes {
 public:
  void add(const Kernel& kernel, double seconds);
  // Of one step of a layer: `stamps` seconds between its marks, one per kernel where the operation
  // tells its kernels apart; else their sum counts as the one that computes.
  void add_step(std::span<const Kernel> kernels, const std::vector<double>& stamps);
  void forget() { samples_.clear(); }
  const std::map<KernelKey, KernelSamples>& samples() const { return samples_; }

 private:
  std::map<KernelKey, KernelSamples> samples_;
};

// Only the first `blocks` of its blocks.
ModelSpec few_blocks(ModelSpec model, std::int64_t blocks);

// A row of kind gemm, attention or memory.
Json kernel_row(const KernelSamples& samples, int ranks, DType dtype, const MeasuredJob& job);

}  // namespace foreshard
