// Quantiles of a few measured or drawn values.
#pragma once

#include <vector>

namespace foreshard {

// Linear between neighbours, of ascending values; at least one. p from 0 to 1.
double quantile(const std::vector<double>& sorted, double p);

struct Quartiles {
  double low = 0;
  double median = 0;
  double high = 0;
};
// In any order; all 0 where there are none.
Quartiles quartiles(std::vector<double> values);

}  // namespace foreshard
