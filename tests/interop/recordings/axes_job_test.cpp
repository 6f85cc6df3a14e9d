// torchtitan's own models over the axes of a mesh, as PyTorch recorded them (tests/axes).
#include <gtest/gtest.h>

#include <cstddef>
#include <filesystem>
#include <vector>

#include "interop/recordings/recorded_job.h"
#include "sim/base/lookup.h"

namespace foreshard {
namespace {

// nd: what the rules were written by; nd_more: recorded by the same recorder to find what they lack.
std::vector<Conformance> recorded() {
  std::vector<Conformance> rows;
  for (const char* name : {"nd", "nd_more"}) {
    RecordingLibrary library;
    const auto folder = std::filesystem::path(FORESHARD_SOURCE_DIR) / "tests" / "axes" / name;
    const ConformanceFolder found = conform_folder(library, library.open(folder), {});
    append(rows, found.rows);
  }
  return rows;
}

TEST(AxesRecordings, OrderGroupsAndBytesAreTorchtitans) {
  std::size_t compared = 0;
  for (const Conformance& row : recorded()) {
    ++compared;
    EXPECT_NE(row.state, Conformance::State::kNotForecast) << row.id << ": " << row.reason;
    EXPECT_TRUE(row.schedule_identical) << row.id;
    EXPECT_TRUE(row.bytes_identical) << row.id;
  }
  EXPECT_EQ(compared, 55U + 19U);
}

TEST(AxesRecordings, PeaksOfAllMemoryAreToTheByte) {
  for (const Conformance& row : recorded()) {
    EXPECT_EQ(row.peak_measured_bytes, row.peak_predicted_bytes) << row.id;
    EXPECT_TRUE(row.memory_within_tolerance) << row.id << ": " << row.worst_peak;
  }
}

}
}
