// Rows of two sequences side by side, for whoever must see where they part.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "reports/conform/recording.h"
#include "sim/graph/host_log.h"

namespace foreshard {

// "all_gather layers.0 AG 786688 -> 6293504 bf16 shard:8 demand forward"; `on` is put in brackets.
std::string describe(const RecordedEvent& event);
// "+ 262144 D activation"
std::string describe(const RecordedAllocation& allocation);

// An event of the log in the recorder's words. Names are the recorder's names of the units.
RecordedEvent in_recorders_words(const HostEvent& event, const std::vector<std::string>& names);

// Lines from 3 rows before `at` to 2 after it, recorded on the left, predicted on the right, those
// that differ marked with '!'. `label` is what stands before row i: "seq 64".
struct SideBySide {
  std::size_t recorded = 0;  // rows of each side
  std::size_t predicted = 0;
  std::function<std::string(std::size_t)> recorded_row, predicted_row, label;
};
std::string around(const SideBySide& sides, std::size_t at);

}  // namespace foreshard
