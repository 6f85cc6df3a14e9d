// The distribution that a forecast's 90 % interval stands for, so that it can be scored at other
// levels: on each side of the forecast, which is the median, the logarithm is that half of
// Student's t with 4 degrees of freedom whose 5 or 95 % quantile is the interval's end. Errors of
// forecasts have such tails: most are small, a few are of something nobody knew.
#pragma once

#include <array>

namespace foreshard {

struct Spread {
  double value = 0, low = 0, high = 0;  // positive; low <= value <= high, else they are made so
};

// p within 0 and 1, both excluded.
double quantile(const Spread& spread, double p);
// Whether the central interval of that share holds `measured`.
bool covers(const Spread& spread, double level, double measured);
// How far the distribution is from what was measured (continuous ranked probability score, Gneiting
// and Raftery 2007), over what was measured: the mean absolute error of a forecast without
// interval, less where the interval says rightly how far off it may be.
double relative_crps(const Spread& spread, double measured);

// Levels that a reliability diagram shows.
inline constexpr std::array kReliabilityLevels = {0.1, 0.2, 0.3, 0.4, 0.5,
                                                  0.6, 0.7, 0.8, 0.9, 0.95};

}  // namespace foreshard
