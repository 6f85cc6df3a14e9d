// What training codes keep in memory that no key of a plan says: the named part of what a forecast
// of memory leaves open where nobody has read the code.
#pragma once

#include <vector>

#include "sim/memory/capacity.h"
#include "sim/spec/model_spec.h"
#include "sim/spec/plan.h"

namespace foreshard {

struct MemoryAlternative {
  const char* name;     // "fp32 logits and their gradient"
  const char* settles;  // what to find out
  const char* set;      // the keys that say it
  Bytes bytes;          // per GPU, that a code which does so needs more
  double weight = 0;    // of first looks at codes without a preset, how many did so
};

// Those that are more than nothing under this plan, the largest expected bytes first; at most as many as a Fit holds.
std::vector<MemoryAlternative> memory_alternatives(const ModelSpec& model, const Plan& plan);

// The fit of a code that nobody has read; without what the GPU could not hold were there nothing else.
Fit with_alternatives(Fit fit, const ModelSpec& model, const Plan& plan);

// What a forecast of reserved memory is off by, the mean and the standard deviation of the
// logarithm of what is reserved over what was forecast: those of recordings (0, kReservedLogSd),
// or, where alternatives are open, of codes that nobody has read, besides those.
struct ReservedError {
  double log_mean = 0, log_sd = kReservedLogSd;
};
ReservedError reserved_error(const Fit& fit);

// How far all of them at once reach above a forecast of so many bytes, as a logarithm: the first
// look that kept two of them was off by their sum.
double log_reach(const std::vector<MemoryAlternative>& alternatives, Bytes forecast);

}
