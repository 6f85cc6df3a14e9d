// FabricCurves and sweeps of a profile as JSON (keys `fabrics` and `sweeps`,
// calibration/README.md).
#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "sim/base/config.h"
#include "sim/base/json.h"
#include "sim/spec/calibration.h"

namespace foreshard {

inline constexpr std::array<std::string_view, 5> kEvidence = {
    "measured", "interpolated", "extrapolated", "datasheet", "assumed"};

Json fabrics_json(const std::vector<FabricCurve>& fabrics);
Json sweeps_json(const std::vector<CollectiveSweep>& sweeps);

// Strict, as read_calibration. Throw ConfigError; a kind of fabric twice, sizes that do not ascend.
std::vector<FabricCurve> read_fabrics(const ConfigNode& node);
std::vector<CollectiveSweep> read_sweeps(const ConfigNode& node);

}  // namespace foreshard
