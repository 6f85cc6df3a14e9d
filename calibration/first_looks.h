// What a training code does that no column and no key says: kernels nobody named, copies, passes
// besides, what the loss keeps alive. How far that moves a step and its memory is known only from
// first looks: forecasts that were frozen before anybody had read the code (reports/unseen/).
//
// Of each set of them the logarithms of measured over forecast were fitted by a shift and a skewed
// spread around it, which follow from facts of the job: how well its code is described, whose code
// it is, how much of its step is products at the peak.
// calibration/evidence/first_looks.json holds the fit to all sets and, for a row of one of them,
// the fit to the others; reports/unseen/first_looks.py makes it.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/base/config.h"
#include "sim/spec/cluster.h"
#include "sim/spec/plan.h"

namespace foreshard {

// Name and size of each fact, 0 where it does not hold; the order does not matter.
using CodeFacts = std::vector<std::pair<std::string, double>>;

// How far a step is below half of the peak (below_half_peak in sim/cost/cost_model.h).
inline constexpr const char* kBelowPeakFact = "below_half_peak";

// What a plan and its GPU say of them, and the preset that the code has, "" for none.
CodeFacts code_facts(const Plan& plan, const Cluster& cluster, std::string_view stack);

// How far the 5 and the 95 % quantile are from the median, as logarithms; both are positive.
struct LogReach {
  double down = 0, up = 0;
  bool operator==(const LogReach&) const = default;
};

// Scales of a set of first looks: exp(base + sum of slope * fact), times or over exp(skew) above
// and below their median, which is above the forecast by the sum of shift * fact, a logarithm.
struct FirstLookFit {
  std::string without;  // the set that had no say; "": all had
  double base = 0, skew = 0;
  std::vector<std::pair<std::string, double>> slopes, shifts;  // by fact
};
struct FirstLookSet {
  std::string name;
  std::vector<std::string> families;
};
struct FirstLooks {
  std::vector<FirstLookSet> sets;
  std::vector<FirstLookFit> time, memory;
};

// Throws ConfigError.
FirstLooks read_first_looks(const ConfigNode& root);
// The file that is built in.
const FirstLooks& first_looks();

// By the fit that no set with this family had a say in; "": by all.
double code_shift(
    const FirstLooks& looks, const std::vector<FirstLookFit>& fits, const CodeFacts& facts, std::string_view family);
LogReach code_reach(
    const FirstLooks& looks, const std::vector<FirstLookFit>& fits, const CodeFacts& facts, std::string_view family);

}
