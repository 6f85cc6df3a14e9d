#include "calibration/capability.h"

#include <fmt/format.h>

#include <optional>
#include <span>

#include "calibration/csv_table.h"
#include "sim/base/embedded.h"
#include "sim/base/error.h"

namespace foreshard {

std::span<const EmbeddedFile> calibration_files();

ComputeCapability capability_of(const Gpu& gpu) {
  for (const EmbeddedFile& file : calibration_files()) {
    if (!file.path.ends_with("/capabilities.csv")) continue;
    const CsvTable table(file.content, std::string(file.path));
    std::optional<std::size_t> found;
    for (std::size_t row = 0; row < table.rows(); ++row) {
      const std::string& name = table.text(row, "gpu");
      if (name == gpu.key) found = row;
      if (name == gpu.architecture && !found) found = row;
    }
    if (!found) break;
    const auto number = [&](const char* column) {
      return static_cast<std::int64_t>(table.number(*found, column));
    };
    return {number("major"),
            number("minor"),
            number("shared_per_multiprocessor_kb") << 10,
            number("shared_per_block_kb") << 10,
            number("threads_per_multiprocessor"),
            number("blocks_per_multiprocessor"),
            number("l2_mb") << 20};
  }
  throw Error(
      ExitCode::kMissingCapability,
      fmt::format("{} is no CUDA device; expected a GPU of NVIDIA (foreshard machines)", gpu.name));
}

}  // namespace foreshard
