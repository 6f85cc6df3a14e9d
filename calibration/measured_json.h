// MeasuredPoints as JSON: part of profiles of machines that were measured themselves.
#pragma once

#include "sim/base/config.h"
#include "sim/base/json.h"
#include "sim/spec/calibration.h"

namespace foreshard {

// What a measured row says, in profiles and in measurements.
inline constexpr double kShortestTime = 1e-9;  // s
inline constexpr double kLongestTime = 1e6;
inline constexpr std::int64_t kLargestSize = std::int64_t{1}
                                             << 20;  // products of three fit 64 bits
std::string_view name_of(Pass pass);
std::int64_t measured_size(const ConfigNode& row, std::string_view key);
Pass pass_of(const ConfigNode& row);
bool is_fp32(const ConfigNode& row);
Function function_of(const ConfigNode& row);
CollectiveOperation operation_of(const ConfigNode& row);
ReductionOrder order_of(const ConfigNode& row);

Json to_json(const MeasuredPoints& points);
// Strict. Throws ConfigError: unknown keys, no points, bytes not ascending, times falling.
MeasuredPoints read_measured_points(const ConfigNode& node);

}  // namespace foreshard
