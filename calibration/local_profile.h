// The profile of a machine of CPU ranks that was measured itself: what `foreshard calibrate` writes and
// `--cluster local` reads.
//
// Schema "foreshard.local_profile/1" (calibration/README.md): the machine, and one variant per number of ranks that ran
// at once, because they share caches and memory bandwidth. Rates are of one rank.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "calibration/measurements.h"
#include "sim/base/json.h"
#include "sim/spec/calibration.h"
#include "sim/spec/cluster.h"

namespace foreshard {

struct LocalVariant {
  std::int64_t ranks = 1;
  FlopsPerSecond peak_fp32;  // best measured product
  FlopsPerSecond peak_bf16;
  BytesPerSecond memory_bandwidth;  // best measured copy, bytes read plus written
  Bytes memory_outside;             // of a rank's process: what is there before the arenas
  std::string outside_source;
  Calibration calibration;
};

struct LocalProfile {
  std::string id;  // "<host>-<created>", without colons: also the name of its file
  std::string created;
  MeasuredHost host;
  std::vector<std::pair<std::string, std::string>> versions;
  std::string command;  // that measured
  std::int64_t threads = 1;
  std::vector<LocalVariant> variants;  // by ascending ranks, at least one
};

std::string profile_id(const Measurements& measurements);

Json to_json(const LocalProfile& profile);
// Strict. Throws ConfigError.
LocalProfile parse_local_profile(std::string_view json, std::string_view file_name);
LocalProfile read_local_profile(const std::filesystem::path& path);

// Round figures of a CPU core, all assumed: for schedules, whose order needs no times.
LocalProfile nominal_local_profile(const MeasuredHost& host);

struct LocalMachine {
  Cluster cluster;
  Calibration calibration;
};
// `ranks` ranks on the machine: those of the variant with as many, else of the next larger one,
// else of the largest; every cost then grows by the share of a core that a rank loses where ranks
// exceed cores. A rank has memory / ranks. Precondition: ranks >= 1.
LocalMachine local_machine(const LocalProfile& profile, std::int64_t ranks);

}
