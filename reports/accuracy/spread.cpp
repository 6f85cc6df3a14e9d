// Student's t with 4 degrees of freedom has quantiles in closed form (W. Shaw, Journal of
// Computational Finance 9(4), 2006): 2 * sqrt(cos(acos(sqrt(a)) / 3) / sqrt(a) - 1), a = 4 p (1 -
// p). The score is the mean of the pinball losses of evenly spaced quantiles, doubled.
#include "reports/accuracy/spread.h"

#include <algorithm>
#include <cmath>

namespace foreshard {
namespace {

double student4(double p) {
  const double a = 4 * p * (1 - p);
  if (a >= 1) return 0;
  const double size = 2 * std::sqrt(std::cos(std::acos(std::sqrt(a)) / 3) / std::sqrt(a) - 1);
  return p < 0.5 ? -size : size;
}

}  // namespace

double quantile(const Spread& spread, double p) {
  static const double kEnd = student4(0.95);
  if (spread.value <= 0) return spread.value;
  const double end = p < 0.5 ? std::clamp(spread.low, spread.value * 1e-9, spread.value)
                             : std::max(spread.high, spread.value);
  const double scale = std::abs(std::log(end / spread.value)) / kEnd;
  return spread.value * std::exp(scale * student4(p));
}

bool covers(const Spread& spread, double level, double measured) {
  return quantile(spread, (1 - level) / 2) <= measured &&
         measured <= quantile(spread, (1 + level) / 2);
}

double relative_crps(const Spread& spread, double measured) {
  constexpr int kQuantiles = 100;
  if (measured <= 0) return 0;
  double sum = 0;
  for (int i = 0; i < kQuantiles; ++i) {
    const double p = (i + 0.5) / kQuantiles;
    const double at = quantile(spread, p);
    sum += (measured < at ? 1 - p : p) * std::abs(measured - at);
  }
  return 2 * sum / kQuantiles / measured;
}

}  // namespace foreshard
