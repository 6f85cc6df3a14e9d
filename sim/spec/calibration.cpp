// The order of Evidence is from the best founded to the least.
#include "sim/spec/calibration.h"

#include <algorithm>

namespace foreshard {

Evidence weaker(Evidence a, Evidence b) { return std::max(a, b); }

}
