// Quantities with units as people write them: "80GiB", "400Gbit/s", "989TFLOP/s", "12us".
//
// Parsing is strict: B is byte and b (or bit) is bit, G is 10^9 and Gi is 2^30, case counts, one
// space may stand between number and unit. A missing, unknown or misspelt unit, a negative or
// non-finite number, and a value beyond 64 bits throw std::invalid_argument whose what() is the
// plain reason with an example; the config reader adds where it stands.
// Formatting is for the text output only: three significant digits, a space before the unit.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "sim/base/units.h"

namespace foreshard {

// B, kB, MB, GB, TB, PB and KiB, MiB, GiB, TiB, PiB; fractions round to the nearest byte.
Bytes parse_bytes(std::string_view text);
// The units of parse_bytes and bit, kbit, Mbit, Gbit, Tbit (short: kb, Mb, Gb, Tb), each with "/s".
BytesPerSecond parse_bandwidth(std::string_view text);
// GFLOP/s, TFLOP/s, PFLOP/s.
FlopsPerSecond parse_flop_rate(std::string_view text);
// ns, us, ms, s, min, h, d; fractions round to the nearest nanosecond.
Time parse_time(std::string_view text);
double parse_power(std::string_view text);      // W, kW; in W
double parse_frequency(std::string_view text);  // MHz, GHz; in Hz
double parse_price(std::string_view text);      // USD/h

std::string format_bytes(Bytes bytes);              // "2.18 GiB"
std::string format_time(Time time);                 // "84.9 ms"
std::string format_count(std::int64_t count);       // "8,030,261,248"
std::string format_bandwidth(BytesPerSecond rate);  // "450 GB/s"
std::string format_flop_rate(FlopsPerSecond rate);  // "989 TFLOP/s"

}
