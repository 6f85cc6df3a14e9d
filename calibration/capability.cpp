#include "calibration/capability.h"

#include <optional>
#include <utility>

#include "calibration/published.h"
#include "sim/base/error.h"

namespace foreshard {

ComputeCapability capability_of(const Gpu& gpu) {
  const CsvTable table = calibration_table("machines/capabilities.csv");
  std::optional<std::size_t> found;
  for (std::size_t row = 0; row < table.rows(); ++row) {
    const std::string& name = table.text(row, "gpu");
    if (name == gpu.key) found = row;
    if (name == gpu.architecture && !found) found = row;
  }
  if (!found) {
    throw Error(
        ExitCode::kMissingCapability, "{} is no CUDA device; expected a GPU of NVIDIA (foreshard machines)", gpu.name);
  }
  const auto number = [&](const char* column) { return static_cast<std::int64_t>(table.number(*found, column)); };
  return {number("major"), number("minor"), number("shared_per_multiprocessor_kb") << 10,
      number("shared_per_block_kb") << 10, number("threads_per_multiprocessor"), number("blocks_per_multiprocessor"),
      number("l2_mb") << 20};
}

std::string chip_of_key(std::string_view key) {
  // The same multiprocessors and caches, with other links or memory (NVIDIA's product briefs:
  // machines/). H20 is not: most of its matrix units are off.
  static constexpr std::pair<std::string_view, std::string_view> kSameChip[] = {
      {"a800", "a100"}, {"h800", "h100"}, {"h200", "h100"}, {"gh200", "h100"}};
  const std::string_view card = key.substr(0, key.find('-'));
  for (const auto& [other, chip] : kSameChip)
    if (card == other) return std::string(chip);
  return std::string(card);
}

}
