// Amounts on a command line: "1T" tokens, "2M" USD, "30d", lists of GPU counts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace foreshard {

// A number above zero, with k, M, B (or G) or T for thousands, millions, billions, trillions; 1e12
// too. `flag` and `example` are for the Error(kUsage) of everything else.
double parse_amount(const std::string& flag, const std::string& text, const char* example);
// A time above zero with its unit (s, min, h, d, w), in s. `example` is what a number without one is answered with.
double parse_duration(const std::string& flag, const std::string& text, const char* example);
// The same, where a number without a unit can only mean days.
double parse_days(const std::string& flag, const std::string& text);
// A length of sequences: "8k" is 8192 and "1M" 1,048,576, as contexts are named; other text, which
// the plan's reader judges, is returned as it is.
std::string sequence_length(const std::string& text);
// "64,128,256": each at least 1.
std::vector<std::int64_t> parse_counts(const std::string& flag, const std::string& text);

}
