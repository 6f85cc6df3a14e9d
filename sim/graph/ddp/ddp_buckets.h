// Which gradients DDP's reducer reduces together.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/graph/ddp/gradient_hooks.h"

namespace foreshard {

struct DdpBucket {
  std::vector<std::int32_t> parameters;  // in the order in which they lie in the bucket
  DType dtype = DType::kFp32;
  std::int64_t bytes = 0;
};

// _compute_bucket_assignment_by_size (reducer.cpp): a bucket of a dtype closes when its size
// reaches the limit, bytes; the last limit holds on. `order` numbers parameters. What is left comes
// last, the dtype that was met last first: the order of an unordered_map of few elements in
// libstdc++.
std::vector<DdpBucket> assign_buckets(std::span<const GradientHooks::Parameter> parameters,
                                      std::span<const std::int32_t> order,
                                      std::span<const std::int64_t> limits);

// The same for parameters in the order of registration, which the reducer is given in reverse: by
// the first parameter of each bucket.
std::vector<DdpBucket> assign_initial_buckets(std::span<const GradientHooks::Parameter> parameters,
                                              std::span<const std::int32_t> order,
                                              std::span<const std::int64_t> limits);

// Ranks of ZeroRedundancyOptimizer: parameters by falling size, each to the rank that has least.
std::vector<std::vector<std::int32_t>> partition_by_size(
    std::span<const GradientHooks::Parameter> parameters, std::int64_t ranks);

}  // namespace foreshard
