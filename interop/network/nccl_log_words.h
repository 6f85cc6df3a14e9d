// The words of a line of nccl-tests' output, behind whatever a launcher put in front of it.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/spec/calibration.h"

namespace foreshard::nccl_log {

using Words = std::vector<std::string>;

// The whole word as a finite number.
std::optional<double> number_of(const std::string& word);

// Bytes of the launcher's prefix ("[1,0]<stdout>:", "0: ", "node-3: "): up to two marks, not beyond
// a
// '#'.
std::size_t launcher_prefix(std::string_view line);

// The operation in "all_gather_perf" or a path that ends so.
std::optional<CollectiveOperation> operation_in(const std::string& text);

struct Device {
  std::string host;
  std::string name;
};
// Of "Rank 0 Group 0 Pid 1234 on host device 0 [0x1b] NVIDIA H100", in any case.
std::optional<Device> device_in(std::string_view text, const Words& words);

}  // namespace foreshard::nccl_log
