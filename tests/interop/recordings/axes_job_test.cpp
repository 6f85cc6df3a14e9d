// torchtitan's own models over the axes of a mesh, as PyTorch recorded them (tests/axes/nd).
#include "interop/recordings/axes_job.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
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

// Refused by name: FlexAttention.
constexpr std::array<std::string_view, 2> kRefused = {"cp2_flex", "cp2_flex_tp2"};

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
  EXPECT_EQ(compared, 65U);
}

TEST(AxesRecordings, PeaksOfAllMemoryAreWithinAFifthOfOnePercentMostToTheByte) {
  std::size_t exact = 0;
  for (const Conformance& row : recorded().rows) {
    if (row.state == Conformance::State::kNotForecast) continue;
    const auto measured = static_cast<double>(row.peak_measured_bytes.value());
    const auto predicted = static_cast<double>(row.peak_predicted_bytes.value());
    EXPECT_NEAR(predicted / measured, 1, 0.002) << row.id;
    if (row.peak_measured_bytes == row.peak_predicted_bytes) ++exact;
  }
  EXPECT_GE(exact, 59U);
}

}  // namespace
}  // namespace foreshard
