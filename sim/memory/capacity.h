// Whether a step fits a GPU, and how sure that is. One rule for predict, search and recommend.
#pragma once

#include <array>

#include "sim/base/units.h"
#include "sim/spec/cluster.h"

namespace foreshard {

// What a training code that nobody has read may keep in memory besides (memory_alternatives.h), and
// which share of such codes does; 0: nothing.
struct KeptBesides {
  const char* name = "";
  Bytes bytes;
  double weight = 0;
};

struct Fit {
  Bytes capacity;   // what the driver reports
  Bytes outside;    // CUDA context, NCCL: sim/memory/outside_allocator.h
  Bytes allocated;  // predicted peak
  Bytes reserved;   // predicted peak of what is taken from the driver: forecast_reserved()
  std::array<KeptBesides, 3> besides = {};
  Bytes margin() const { return capacity - outside - reserved; }
  bool fits() const { return margin() >= Bytes(0); }
};

inline Fit fit_in(const Cluster& cluster, Bytes peak_allocated, Bytes peak_reserved, Bytes outside) {
  return {cluster.gpu.memory, outside, peak_allocated, peak_reserved};
}

// What forecasts of memory are off by. Reserved: the root mean square of 19 published figures (reports/conformance.md),
// of the logarithm. Outside the allocator: half of a 90 % interval, of what is forecast; assumed.
inline constexpr double kReservedLogSd = 0.048;
inline constexpr double kOutsideSpread = 0.3;
// Of a normal distribution, from the mean to the 95 % quantile.
inline constexpr double kStandardDeviations = 1.645;

// That the step fits, by the error of the forecast and what the code may keep besides: 0..1,
// without that 1/2 where nothing is left to spare.
double fit_probability(const Fit& fit);
// What it keeps besides at most, with this probability.
Bytes kept_besides(const Fit& fit, double probability);

// What a plan has to meet to be chosen.
struct MemoryTerms {
  double confidence = 0.95;  // that it fits
  double max_memory = 1;     // of the GPU's, that reserved memory and what is outside may take
};
inline constexpr double kConfidence = MemoryTerms().confidence;

// By the forecast alone: within max_memory.
bool fits(const Fit& fit, const MemoryTerms& terms);
// That, and sure enough.
bool holds(const Fit& fit, const MemoryTerms& terms);

// The most that may be reserved for a step to hold; negative where nothing would.
Bytes room(const Cluster& cluster, Bytes outside, const MemoryTerms& terms);

}
