// What a fit is judged by.
#include <algorithm>
#include <cmath>
#include <utility>

#include "calibration/fit/fit.h"
#include "sim/base/error.h"
#include "sim/base/quantile.h"

namespace foreshard {

FitError fit_error(std::string what, const std::vector<double>& predicted,
                   const std::vector<double>& measured) {
  FORESHARD_CHECK(!measured.empty() && predicted.size() == measured.size(),
                  "an error over no rows: " + what);
  FitError error;
  error.what = std::move(what);
  error.rows = std::ssize(measured);
  std::vector<double> absolute;
  std::vector<double> logs;
  for (std::size_t i = 0; i < measured.size(); ++i) {
    absolute.push_back(std::abs(predicted[i] / measured[i] - 1));
    logs.push_back(std::log(predicted[i] / measured[i]));
  }
  std::ranges::sort(absolute);
  std::ranges::sort(logs);
  error.median = quantile(absolute, 0.5);
  error.p90 = quantile(absolute, 0.9);
  error.log_bias = quantile(logs, 0.5);
  return error;
}

}  // namespace foreshard
