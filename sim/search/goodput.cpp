// Daly's complete model. A segment is `interval` of training and the save after it. It takes
//   E[T] = mean_between * exp(restart / mean_between) * (exp((interval + save) / mean_between) - 1)
// until it is through, failures during restarts included.
//
// The scatter of the whole run: failures come about wall / mean_between times, each loses a time evenly spread over the
// segment and a restart, so the variance is that number times E[loss^2] (compound Poisson).
#include "sim/search/goodput.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace foreshard {

double checkpoint_interval(const Interruptions& x) {
  if (!std::isfinite(x.mean_between)) return std::numeric_limits<double>::infinity();
  if (x.save >= 2 * x.mean_between) return x.mean_between;
  const double ratio = x.save / (2 * x.mean_between);
  return std::sqrt(2 * x.save * x.mean_between) * (1 + std::sqrt(ratio) / 3 + ratio / 9) - x.save;
}

double goodput(const Interruptions& x, double interval) {
  if (!std::isfinite(x.mean_between)) return std::isfinite(interval) ? interval / (interval + x.save) : 1;
  if (!std::isfinite(interval)) return 0;
  const double segment =
      x.mean_between * std::exp(x.restart / x.mean_between) * std::expm1((interval + x.save) / x.mean_between);
  return std::isfinite(segment) && segment > 0 ? std::min(1.0, interval / segment) : 0;
}

WallTime wall_time(double work, const Interruptions& x, double interval) {
  const double share = goodput(x, interval);
  WallTime wall = {.mean = share > 0 ? work / share : std::numeric_limits<double>::infinity()};
  if (!std::isfinite(x.mean_between) || share <= 0) return wall;
  const double segment = interval + x.save;
  const double squared_loss =
      segment * segment / 3 + segment * x.restart + x.restart * x.restart;  // E[(U + restart)^2]
  wall.sd = std::sqrt(wall.mean / x.mean_between * squared_loss);
  return wall;
}

}
