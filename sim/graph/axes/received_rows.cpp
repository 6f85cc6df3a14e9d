// The greatest share of any rank, of the rows of all.
#include "sim/graph/axes/received_rows.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace foreshard {

std::int64_t received_rows(const ExpertParallel& how, ExpertGroup group, std::int64_t sent) {
  if (!how.received.empty()) {
    return std::accumulate(how.received.begin(), how.received.end(), std::int64_t{0});
  }
  const bool counted = static_cast<std::int64_t>(how.counts.size()) == group.experts;
  if (!counted && how.zipf == 0) return sent;
  std::vector<double> shares(static_cast<std::size_t>(group.ranks), 0);
  for (std::int64_t e = 0; e < group.experts; ++e) {
    const std::int64_t rank = counted ? e * group.ranks / group.experts : e % group.ranks;
    shares[static_cast<std::size_t>(rank)] +=
        counted ? static_cast<double>(how.counts[static_cast<std::size_t>(e)])
                : std::pow(static_cast<double>(e + 1), -how.zipf);
  }
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  if (sum <= 0) return sent;
  const double most = *std::max_element(shares.begin(), shares.end()) / sum;
  return std::llround(most * static_cast<double>(sent) * static_cast<double>(group.ranks));
}

}  // namespace foreshard
