// Figures that every report has, whatever it is of.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "reports/report.h"
#include "sim/memory/memory_profile.h"

namespace foreshard {

// numerator / seconds, 0 where that is no number.
Quantity rate(double numerator, const Quantity& seconds);

// Memory outside of the allocator, which nobody measures on every machine.
Quantity outside_quantity(Bytes outside);

// Reserved and outside the allocator: their errors are independent.
Quantity total_memory(const Report& report);

// Categories that hold something at the peak, the largest first.
std::vector<std::pair<std::string, Bytes>> categories_at_peak(const MemoryProfile& memory);

}
