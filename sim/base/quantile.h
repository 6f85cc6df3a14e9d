// Quantiles of a few measured or drawn values.
#pragma once

#include <vector>

namespace foreshard {

// Linear between neighbours, of ascending values; at least one. p from 0 to 1.
double quantile(const std::vector<double>& sorted, double p);

// Standard deviations on each side of a normal's middle that hold 90 %.
inline constexpr double kNinetyPercent = 1.6449;

struct Quartiles {
  double low = 0;
  double median = 0;
  double high = 0;
};
// In any order; all 0 where there are none.
Quartiles quartiles(std::vector<double> values);

}
