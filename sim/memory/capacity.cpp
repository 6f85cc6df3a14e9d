// The errors of the two parts of a forecast are normal and independent, so the margin's is. What a
// code keeps besides it does or does not, each by itself: a sum over all combinations.
#include "sim/memory/capacity.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "sim/memory/memory_alternatives.h"

namespace foreshard {
namespace {

// Bytes and probability of every combination, the fewest bytes first.
std::vector<std::pair<Bytes, double>> combinations(const Fit& fit) {
  std::vector<std::pair<Bytes, double>> all = {{Bytes(), 1.0}};
  for (const KeptBesides& each : fit.besides) {
    if (each.weight <= 0) continue;
    const std::size_t without = all.size();
    for (std::size_t i = 0; i < without; ++i) {
      all.emplace_back(all[i].first + each.bytes, all[i].second * each.weight);
      all[i].second *= 1 - each.weight;
    }
  }
  std::ranges::sort(all);
  return all;
}

}

double fit_probability(const Fit& fit) {
  const ReservedError error = reserved_error(fit);
  const auto forecast = as_double(fit.reserved.count());
  const double reserved = error.log_sd * forecast;
  const double outside = kOutsideSpread / kStandardDeviations * as_double(fit.outside.count());
  const double sd = std::hypot(reserved, outside);
  double sum = 0;
  for (const auto& [more, weight] : combinations(fit)) {
    const double margin = as_double((fit.margin() - more).count()) - error.log_mean * forecast;
    const double sure = margin >= 0 ? 1.0 : 0.0;
    sum += weight * (sd <= 0 ? sure : std::erfc(-margin / (sd * std::sqrt(2.0))) / 2);
  }
  return sum;
}

Bytes kept_besides(const Fit& fit, double probability) {
  const std::vector<std::pair<Bytes, double>> all = combinations(fit);
  double sum = 0;
  for (const auto& [bytes, weight] : all) {
    sum += weight;
    if (sum >= probability) return bytes;
  }
  return all.back().first;
}

bool fits(const Fit& fit, const MemoryTerms& terms) {
  return as_double((fit.reserved + fit.outside).count()) <=
         std::floor(as_double(fit.capacity.count()) * terms.max_memory);
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

}
