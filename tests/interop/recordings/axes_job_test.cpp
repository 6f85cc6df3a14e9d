// torchtitan's own models over the axes of a mesh, as PyTorch recorded them (tests/axes/nd).
#include "interop/recordings/axes_job.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

namespace foreshard {
namespace {

ConformanceFolder recorded() {
  RecordingLibrary library;
  const auto folder = std::filesystem::path(FORESHARD_SOURCE_DIR) / "tests" / "axes" / "nd";
  return conform_folder(library, library.open(folder), {});
}

template <std::size_t N>
bool is_in(const std::array<std::string_view, N>& names, const std::string& id) {
  return std::find(names.begin(), names.end(), id) != names.end();
}

// Refused by name: no fully_shard, FlexAttention, and latent attention under tensor parallel.
constexpr std::array<std::string_view, 7> kRefused = {
    "tp2_only", "tp4_only",     "tp8_only_no_loss_parallel", "tp2_only_selective",
    "cp2_flex", "cp2_flex_tp2", "deepseek_tp2_dp2_no_ep"};

TEST(AxesRecordings, OrderGroupsAndBytesAreTorchtitans) {
  std::size_t compared = 0;
  for (const Conformance& row : recorded().rows) {
    if (row.state == Conformance::State::kNotForecast) {
      EXPECT_TRUE(is_in(kRefused, row.id)) << row.id << ": " << row.reason;
      continue;
    }
    ++compared;
    EXPECT_FALSE(is_in(kRefused, row.id)) << row.id << " is forecast now";
    EXPECT_TRUE(row.schedule_identical) << row.id;
    EXPECT_TRUE(row.bytes_identical) << row.id;
  }
  EXPECT_EQ(compared, 60U);
}

TEST(AxesRecordings, PeaksOfAllMemoryAreWithinTenPercentAndMostWithinAFifthOfOne) {
  std::size_t close = 0;
  for (const Conformance& row : recorded().rows) {
    if (row.state == Conformance::State::kNotForecast) continue;
    const auto measured = static_cast<double>(row.peak_measured_bytes.value());
    const auto predicted = static_cast<double>(row.peak_predicted_bytes.value());
    EXPECT_NEAR(predicted / measured, 1, 0.1) << row.id;
    if (std::abs(predicted / measured - 1) <= 0.002) ++close;
  }
  EXPECT_GE(close, 52U);
}

}  // namespace
}  // namespace foreshard
