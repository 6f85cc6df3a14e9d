// Forecast steps of DDP, FSDP1 and DeepSpeed ZeRO against recordings of the real libraries: order
// and bytes, row by row, buckets and the recorder's own counts.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "reports/conform/conform.h"
#include "sim/graph/host_log.h"

namespace foreshard {

struct LibraryRecordedEvent {
  std::int64_t step = 0;  // 0: construction
  std::int64_t microbatch = 0;
  std::int64_t seq = 0;  // from 0 in each step
  std::string kind, unit, dtype, group, note;
  std::int64_t bytes_in = 0;
  std::int64_t bytes_out = 0;
};

struct LibraryRecording {
  std::string id;
  std::string version;                       // of the library, where the index says it
  std::string events_file, buckets_file;     // for messages
  std::vector<LibraryRecordedEvent> events;  // in file order
  // Steps of which every row is stored; of the others collectives and markers only, with the
  // positions that they have among all.
  std::set<std::int64_t> whole_steps;
  std::vector<LibraryBucket> buckets;
  std::map<std::string, std::int64_t> facts;
  std::map<std::string, std::string> words;
};

Conformance conform(const LibraryRecording& recording, const LibraryRun& run);

}  // namespace foreshard
