#include <algorithm>
#include <functional>
#include <queue>
#include <utility>

#include "sim/graph/ddp/ddp_builder.h"

namespace foreshard {

std::vector<DdpBucket> assign_buckets(std::span<const GradientHooks::Parameter> parameters,
    std::span<const std::int32_t> order, std::span<const std::int64_t> limits) {
  struct Open {
    DType dtype = DType::kFp32;
    DdpBucket bucket;
    std::size_t limit = 0;
  };
  std::vector<Open> open;  // a dtype each, in the order in which they were met
  std::vector<DdpBucket> closed;
  for (const std::int32_t p : order) {
    const GradientHooks::Parameter& parameter = parameters[at(p)];
    auto it = std::ranges::find(open, parameter.dtype, &Open::dtype);
    if (it == open.end()) it = open.insert(open.end(), Open{parameter.dtype, {}, 0});
    if (it->bucket.parameters.empty()) it->bucket.parameters.reserve(8);
    it->bucket.dtype = parameter.dtype;
    it->bucket.parameters.push_back(p);
    it->bucket.bytes += parameter.bytes();
    if (it->bucket.bytes < limits[it->limit]) continue;
    closed.push_back(std::exchange(it->bucket, {}));
    if (it->limit + 1 < limits.size()) ++it->limit;
  }
  for (auto it = open.rbegin(); it != open.rend(); ++it)
    if (!it->bucket.parameters.empty()) closed.push_back(std::move(it->bucket));
  return closed;
}

std::vector<DdpBucket> assign_initial_buckets(std::span<const GradientHooks::Parameter> parameters,
    std::span<const std::int32_t> order, std::span<const std::int64_t> limits) {
  std::vector<DdpBucket> buckets = assign_buckets(parameters, order, limits);
  std::ranges::sort(
      buckets, [](const DdpBucket& a, const DdpBucket& b) { return a.parameters.front() > b.parameters.front(); });
  return buckets;
}

std::vector<std::vector<std::int32_t>> partition_by_size(
    std::span<const GradientHooks::Parameter> parameters, std::int64_t ranks) {
  std::vector<std::int32_t> sorted;
  for (std::size_t p = 0; p < parameters.size(); ++p)
    if (parameters[p].trained) sorted.push_back(static_cast<std::int32_t>(p));
  const auto numel = [&](std::int32_t p) { return parameters[at(p)].numel; };
  std::ranges::stable_sort(sorted, [&](std::int32_t a, std::int32_t b) { return numel(a) > numel(b); });
  using Load = std::pair<std::int64_t, std::int64_t>;  // elements, rank
  std::priority_queue<Load, std::vector<Load>, std::greater<>> least;
  for (std::int64_t r = 0; r < ranks; ++r) least.push({0, r});
  std::vector<std::vector<std::int32_t>> owned(at(ranks));
  for (const std::int32_t p : sorted) {
    const auto [load, rank] = least.top();
    least.pop();
    owned[at(rank)].push_back(p);
    least.push({load + numel(p), rank});
  }
  return owned;
}

}
