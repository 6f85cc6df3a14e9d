#include "sim/base/quantile.h"

#include <algorithm>
#include <cstddef>

namespace foreshard {

double quantile(const std::vector<double>& sorted, double p) {
  const double place = p * as_double(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (place - as_double(below)) * (sorted[above] - sorted[below]);
}

Quartiles quartiles(std::vector<double> values) {
  if (values.empty()) return {};
  std::ranges::sort(values);
  return {quantile(values, 0.25), quantile(values, 0.5), quantile(values, 0.75)};
}

}
