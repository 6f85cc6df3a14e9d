// Robust least squares for curves of few constants: Levenberg-Marquardt with Huber weights.
//
// Deterministic: every start of a fixed list is followed to the end and the best result wins, the
// first of equals. Constants with a lower bound above zero are searched in their logarithm.
#pragma once

#include <cmath>
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

// The residuals of rows that have `seconds`, in the logarithm.
template <typename Row, typename Predicted>
void log_errors(const std::vector<Row>& rows, const Predicted& predicted, std::span<double> out) {
  for (std::size_t i = 0; i < rows.size(); ++i) out[i] = std::log(predicted(rows[i]) / rows[i].seconds);
}

// Rounded to eight significant digits, so that a profile reads well and refits compare.
double rounded(double value);

}
