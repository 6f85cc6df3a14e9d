// What a training script writes beside its trace, NAME.timed.json (schema "foreshard.timed/1"; the
// exported script, interop/record/timed.py).
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "interop/traces/trace_bytes.h"
#include "sim/base/units.h"

namespace foreshard {

struct TimedFile {
  std::string host, created;
  std::int64_t rank = -1, world = -1;
  std::vector<std::pair<std::string, std::string>> versions;
  bool lists_collectives = false;
  std::vector<TracedCollectiveCall> collectives;  // of one step
  Bytes peak_allocated, peak_reserved;            // of the GPU; 0: not recorded
};

// Throws Error(kInvalidInput), naming file and key.
TimedFile read_timed_file(const std::filesystem::path& path);

}  // namespace foreshard
