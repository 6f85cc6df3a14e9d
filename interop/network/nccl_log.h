// Output of nccl-tests, as text (any launcher's prefixes, warnings in between, cut off anywhere) or
// as JSON (`-J`), as sweeps for a profile.
//
// Columns are found by the names of the header lines, so that releases from 2.0 to 2.19 read; a log
// without them is read by position, and the ledger says so. What cannot be told (which collective,
// how many ranks) is an error that names file and line.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "interop/frameworks/import_ledger.h"
#include "sim/cost/nccl.h"
#include "sim/spec/calibration.h"

namespace foreshard {

struct NcclTests {
  std::vector<CollectiveSweep> sweeps;  // one per test, sizes ascending; a size again: its median
  std::string gpu;                      // name of the first device, "" where the log has none
  NcclVersion version;
  ImportLedger ledger;
};

// Throws ConfigError. `file_name` is what errors and the ledger call the text.
NcclTests parse_nccl_tests(std::string_view text, std::string_view file_name);

inline constexpr std::size_t kMaxNcclTestsBytes = std::size_t{16} << 20;  // a sweep has kilobytes

// Whether a text may be one: told by its first kNcclTestsHead bytes, so that other files get their own errors.
inline constexpr std::size_t kNcclTestsHead = 1 << 16;
bool looks_like_nccl_tests(std::string_view text);

}
