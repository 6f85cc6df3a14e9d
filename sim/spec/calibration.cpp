// The order of Evidence is from the best founded to the least.
#include "sim/spec/calibration.h"

#include <algorithm>

namespace foreshard {

const char* to_string(Evidence evidence) {
  switch (evidence) {
    case Evidence::kMeasured:
      return "measured";
    case Evidence::kInterpolated:
      return "interpolated";
    case Evidence::kExtrapolated:
      return "extrapolated";
    case Evidence::kDatasheet:
      return "datasheet";
    case Evidence::kAssumed:
      return "assumed";
  }
  return "assumed";
}

Evidence weaker(Evidence a, Evidence b) { return std::max(a, b); }

}  // namespace foreshard
