// Times in CSV files: seconds with nine decimals, which is exact for whole nanoseconds.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "sim/base/units.h"

namespace foreshard {

// Far more than any step, and far from overflow in sums and differences.
inline constexpr Time kLongestTime = Time::ns(1'000'000'000'000'000'000);  // 31 years

std::string exact_seconds(Time time);  // "-0.000001500"
// Digits, at most nine decimals; nullopt for anything else and beyond kLongestTime.
std::optional<Time> parse_exact_seconds(std::string_view text);

}
