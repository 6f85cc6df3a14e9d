// The errors of the two parts of a forecast are normal and independent, so the margin's is.
#include "sim/memory/capacity.h"

#include <cmath>

namespace foreshard {

double fit_probability(const Fit& fit) {
  const double reserved = kReservedLogSd * static_cast<double>(fit.reserved.count());
  const double outside =
      kOutsideSpread / kStandardDeviations * static_cast<double>(fit.outside.count());
  const double sd = std::hypot(reserved, outside);
  const auto margin = static_cast<double>(fit.margin().count());
  if (sd <= 0) return margin >= 0 ? 1.0 : 0.0;
  return std::erfc(-margin / (sd * std::sqrt(2.0))) / 2;
}

bool fits(const Fit& fit, const MemoryTerms& terms) {
  return static_cast<double>((fit.reserved + fit.outside).count()) <=
         std::floor(static_cast<double>(fit.capacity.count()) * terms.max_memory);
}

bool holds(const Fit& fit, const MemoryTerms& terms) {
  return fits(fit, terms) && fit_probability(fit) >= terms.confidence;
}

Bytes room(const Cluster& cluster, Bytes outside, const MemoryTerms& terms) {
  const auto is_enough = [&](std::int64_t reserved) {
    return holds(fit_in(cluster, Bytes(), Bytes(reserved), outside), terms);
  };
  // More reserved memory never makes it surer: a bisection.
  std::int64_t enough = -1, too_much = cluster.gpu.memory.count() + 1;
  while (too_much - enough > 1) {
    const std::int64_t middle = enough + (too_much - enough) / 2;
    (is_enough(middle) ? enough : too_much) = middle;
  }
  return Bytes(enough);
}

}  // namespace foreshard
