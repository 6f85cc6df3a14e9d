#include "sim/cost/heat.h"

#include <algorithm>
#include <cmath>

namespace foreshard {

double product_heat(const HeatCurve& curve, const HeatLoad& load, double power_limit) {
  const double seconds = load.products + load.others;
  if (load.products <= 0) return curve.cool;
  // A limit near idle would stop the clock; none is sold.
  const double left = std::max(power_limit - curve.idle, curve.idle / 10);
  const double demand = load.joules / seconds / left;
  if (demand <= 1) return curve.cool;
  // Slower products stretch the row, and it draws less: to first order by their share of it.
  const double share = load.products / seconds;
  const double log_clock =
      -std::log(demand) / (curve.energy_exponent + curve.rate_exponent * share);
  return curve.cool * std::exp(-curve.rate_exponent * log_clock);
}

}  // namespace foreshard
