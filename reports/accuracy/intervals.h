// Unions of time intervals, half open.
#pragma once

#include <vector>

#include "sim/base/units.h"

namespace foreshard {

struct Interval {
  Time begin;
  Time end;
  Time length() const { return end - begin; }
  bool operator==(const Interval&) const = default;
};

// Disjoint, ascending, without empty ones.
std::vector<Interval> united(std::vector<Interval> intervals);
Time total_length(const std::vector<Interval>& disjoint);
// Length of what lies in both; each is a result of united().
Time overlap(const std::vector<Interval>& a, const std::vector<Interval>& b);

}
