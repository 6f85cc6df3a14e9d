// Robust least squares for curves of few constants: Levenberg-Marquardt with Huber weights.
//
// Deterministic: every start of a fixed list is followed to the end and the best result wins, the
// first of equals. Constants with a lower bound above zero are searched in their logarithm.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

namespace foreshard {

struct Range {
  double low = 0;
  double high = 0;
};

struct LeastSquares {
  // Residuals of `constants`, log(predicted / measured) times the square root of the row's weight.
  std::function<void(std::span<const double> constants, std::span<double> residuals)> residuals;
  std::size_t rows = 0;
  std::vector<Range> ranges;                // one per constant
  std::vector<std::vector<double>> starts;  // within the ranges
  double huber = 0.1;                       // residuals beyond this count linearly
};

std::vector<double> solve(const LeastSquares& problem);

// Rounded to eight significant digits, so that a profile reads well and refits compare.
double rounded(double value);

}  // namespace foreshard
