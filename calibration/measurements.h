// Raw micro-measurements of a machine, as `foreshard-exec measure` writes them.
//
// Schema "foreshard.measurements/1", described in calibration/README.md. Every row says how many
// ranks of the machine ran the same thing at the same time (`ranks`): costs differ, for caches and
// memory bandwidth are shared. Nothing here is a training step.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/spec/calibration.h"

namespace foreshard {

// Of the repeats: median and quartiles, in seconds.
struct MeasuredSeconds {
  double median = 0;
  double low = 0;
  double high = 0;
};

// The seconds of each point are the median; `spread` belongs to it.
template <typename Point>
struct MeasuredRow {
  std::int64_t ranks = 1;
  Point point;
  MeasuredSeconds spread;
};

template <typename Point>
std::vector<Point> points_of(const std::vector<MeasuredRow<Point>>& rows) {
  return list_of<Point>(
      rows, [&](const auto& row) { return row.point; });
}

struct FunctionTime {
  Function function = Function::kCopy;
  Pass pass = Pass::kForward;
  bool fp32 = true;
  double bytes = 0;
};

struct CollectiveTime {
  CollectiveOperation operation = CollectiveOperation::kAllGather;
  ReductionOrder order = ReductionOrder::kMicrobatch;
  std::int64_t group = 2;
  std::int64_t nodes = 1;  // the group's ranks are on
  double bytes = 0;
};

// Host work before a row, a unit's hook, or a collective.
enum class HostWork : std::uint8_t { kRow, kHook, kCollective };

struct ContentionTimes {
  double compute_alone = 0, compute_beside = 0;
  double collective_alone = 0, collective_beside = 0;
};

struct MeasuredHost {
  std::string name;
  std::string cpu;
  std::int64_t cores = 0;
  Bytes memory;
  std::string kernel;
  bool operator==(const MeasuredHost&) const = default;
};

// The GPU that was measured instead of CPU ranks.
struct MeasuredDevice {
  std::string name;  // as the driver says: "NVIDIA H100 80GB HBM3"
  std::int64_t capability = 0;
  std::int64_t multiprocessors = 0;
  Bytes memory;
  bool operator==(const MeasuredDevice&) const = default;
};

struct Measurements {
  std::string created;  // UTC, "2026-01-31T12:00:00Z"; of several files the latest
  MeasuredHost host;
  std::optional<MeasuredDevice> device;  // none: rows are of CPU ranks
  std::vector<std::pair<std::string, std::string>> versions;
  std::string command;
  std::int64_t threads = 1;  // compute threads of a rank
  std::vector<MeasuredRow<GemmPoint>> gemm;
  std::vector<MeasuredRow<AttentionPoint>> attention;
  std::vector<MeasuredRow<FunctionTime>> functions;
  std::vector<MeasuredRow<CollectiveTime>> collectives;
  std::vector<MeasuredRow<HostWork>> host_work;
  std::vector<std::pair<std::int64_t, ContentionTimes>> contention;   // by ranks
  std::vector<std::pair<std::int64_t, std::int64_t>> memory_outside;  // by ranks, bytes per rank
  std::vector<std::string> files;
};

// Throws ConfigError: unknown or missing keys, a wrong kind or name, counts below one, times that
// are not above zero or not in order.
Measurements parse_measurements(std::string_view json, std::string_view file_name);
Measurements read_measurements(const std::filesystem::path& path);

// The rows of all in order. Throws Error(kInvalidInput), naming the files, where they are of
// different machines or numbers of threads. Precondition: at least one.
Measurements joined(const std::vector<Measurements>& parts);

}
