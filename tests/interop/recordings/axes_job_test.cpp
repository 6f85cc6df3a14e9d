// torchtitan's own models over the axes of a mesh, as PyTorch recorded them (tests/axes/nd).
#include "interop/recordings/axes_job.h"

#include <gtest/gtest.h>

#include <cstddef>

namespace foreshard {
namespace {

ConformanceFolder recorded() {
  RecordingLibrary library;
  const auto folder = std::filesystem::path(FORESHARD_SOURCE_DIR) / "tests" / "axes" / "nd";
  return conform_folder(library, library.open(folder), {});
}

TEST(AxesRecordings, OrderGroupsAndBytesAreTorchtitans) {
  std::size_t compared = 0;
  for (const Conformance& row : recorded().rows) {
    ++compared;
    EXPECT_NE(row.state, Conformance::State::kNotForecast) << row.id << ": " << row.reason;
    EXPECT_TRUE(row.schedule_identical) << row.id;
    EXPECT_TRUE(row.bytes_identical) << row.id;
  }
  EXPECT_EQ(compared, 67U);
}

TEST(AxesRecordings, PeaksOfAllMemoryAreWithinAFifthOfOnePercentMostToTheByte) {
  std::size_t exact = 0;
  for (const Conformance& row : recorded().rows) {
    const auto measured = static_cast<double>(row.peak_measured_bytes.value());
    const auto predicted = static_cast<double>(row.peak_predicted_bytes.value());
    EXPECT_NEAR(predicted / measured, 1, 0.002) << row.id;
    if (row.peak_measured_bytes == row.peak_predicted_bytes) ++exact;
  }
  EXPECT_GE(exact, 59U);
}

}  // namespace
}  // namespace foreshard
