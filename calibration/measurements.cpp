// One list of keys per kind of row, so that a misspelt one is an error.
#include "calibration/measurements.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "calibration/measured_fields.h"
#include "sim/base/config.h"
#include "sim/base/error.h"
#include "sim/base/lookup.h"

namespace foreshard {
namespace {

constexpr std::string_view kMeasurementsSchema = "foreshard.measurements/1";
constexpr std::array<std::string_view, 3> kHostWork = {"row", "hook", "collective"};
constexpr std::int64_t kMostRowBytes = std::int64_t{1} << 40;

// Keys that rows of every kind may have.
void row_fields(auto& io, std::int64_t& ranks) {
  constexpr std::int64_t kMostRanks = 4096;
  std::string kind;
  std::int64_t repeats = 1;
  io("kind", kind);
  io("ranks", ranks, 1, kMostRanks);
  io.optional(true, "repeats", repeats, 1, kLargestSize);
}

void spread_fields(auto& io, MeasuredSeconds& spread, double least = kShortestTime, double most = kLongestTime) {
  io("seconds", [&](auto& part) {
    part("median", spread.median, least, most);
    part("low", spread.low, least, most);
    part("high", spread.high, least, most);
  });
  io.require(spread.low <= spread.median && spread.median <= spread.high, "seconds", "quartiles are not in order",
      "low <= median <= high");
}

void bytes_field(auto& io, double& bytes) {
  auto whole = static_cast<std::int64_t>(bytes);
  io("bytes", whole, 1, kMostRowBytes);
  bytes = as_double(whole);
}

void shape_fields(auto& io, FunctionTime& time) {
  io("function", time.function, kFunctionWords);
  io("pass", time.pass, kPassWords);
  io("dtype", time.fp32, kIsFp32Words);
  bytes_field(io, time.bytes);
  io.require(time.function != Function::kMatrixProduct && time.function != Function::kAttention, "function",
      "is not memory-bound", "kind: gemm or attention for it");
}

void shape_fields(auto& io, CollectiveTime& time) {
  io("operation", time.operation, kOperationWords);
  io("order", time.order, kOrderWords);
  io("group", time.group, 2);
  io.optional(true, "nodes", time.nodes, 1, time.group);
  bytes_field(io, time.bytes);
}

template <typename Point>
void read_point(const ConfigNode& node, std::vector<MeasuredRow<Point>>& rows) {
  MeasuredRow<Point>& row = rows.emplace_back();
  read_fields(
      node,
      [&](auto& io) {
        row_fields(io, row.ranks);
        shape_fields(io, row.point);
        spread_fields(io, row.spread);
        if constexpr (
            requires { row.point.kernel; })
          io.optional(true, "kernel", row.point.kernel);
        if constexpr (
            requires { row.point.group; })
          io.require(row.point.group <= std::max<std::int64_t>(2, row.ranks), "group",
              "is larger than the ranks that ran", fmt::format("2 to {}", row.ranks));
      });
  if constexpr (requires { row.point.seconds; }) row.point.seconds = row.spread.median;
}

void read_host_work(const ConfigNode& node, Measurements& out) {
  constexpr double kLongestHostWork = 1;  // s
  MeasuredRow<HostWork>& row = out.host_work.emplace_back();
  read_fields(node, [&](auto& io) {
    row_fields(io, row.ranks);
    io("what", row.point, kHostWork);
    spread_fields(io, row.spread, 0, kLongestHostWork);
  });
}

void read_contention(const ConfigNode& node, Measurements& out) {
  auto& [ranks, times] = out.contention.emplace_back();
  read_fields(node, [&](auto& io) {
    row_fields(io, ranks);
    io("compute_alone_s", times.compute_alone, kShortestTime, kLongestTime);
    io("compute_beside_s", times.compute_beside, kShortestTime, kLongestTime);
    io("collective_alone_s", times.collective_alone, kShortestTime, kLongestTime);
    io("collective_beside_s", times.collective_beside, kShortestTime, kLongestTime);
  });
}

void read_outside(const ConfigNode& node, Measurements& out) {
  auto& [ranks, bytes] = out.memory_outside.emplace_back();
  read_fields(node, [&](auto& io) {
    row_fields(io, ranks);
    io("bytes", bytes, 0, kMostRowBytes);
  });
}

void read_row(const ConfigNode& row, Measurements& out) {
  using Reader = void (*)(const ConfigNode&, Measurements&);
  static constexpr std::array<std::string_view, 7> kKinds = {
      "gemm", "attention", "memory", "collective", "host", "contention", "memory_outside"};
  static constexpr std::array<Reader, 7> kReaders = {
      [](const ConfigNode& node, Measurements& to) { read_point(node, to.gemm); },
      [](const ConfigNode& node, Measurements& to) { read_point(node, to.attention); },
      [](const ConfigNode& node, Measurements& to) { read_point(node, to.functions); },
      [](const ConfigNode& node, Measurements& to) { read_point(node, to.collectives); }, read_host_work,
      read_contention, read_outside};
  kReaders[row.at("kind", "such as gemm").as_choice(std::span(kKinds))](row, out);
}

bool is_utc(std::string_view text) {
  constexpr std::string_view kPattern = "0000-00-00T00:00:00Z";
  return std::equal(text.begin(), text.end(), kPattern.begin(), kPattern.end(),
      [](char c, char wanted) { return wanted == '0' ? c >= '0' && c <= '9' : c == wanted; });
}

Measurements read(const ConfigNode& root, std::string_view file_name) {
  Measurements out;
  MeasuredDevice device;
  out.files = {std::string(file_name)};
  read_fields(root, [&](auto& io) {
    io.schema(kMeasurementsSchema);
    io("created", out.created);
    io.require(is_utc(out.created), "created", "is no time", "UTC such as 2026-01-31T12:00:00Z");
    io("host", out.host);
    io.optional(true, "device", [&](auto& part) {
      part("name", device.name);
      part("capability", device.capability, 0, 10'000);
      part("multiprocessors", device.multiprocessors, 0, 1'000'000);
      part("memory_bytes", device.memory, 0);
    });
    io("versions", out.versions);
    io("command", out.command);
    io("threads", out.threads, 1, 4096);
    io.ignore("rows");   // below
    io.ignore("extra");  // rows of a GPU that are kept for people; nothing is fitted to them
  });
  if (root.has("device")) out.device = device;
  const ConfigNode rows = root.at("rows");
  for (const ConfigNode& row : rows.elements()) read_row(row, out);
  if (rows.elements().empty()) throw rows.error("is empty", "measured rows");
  return out;
}

}

Measurements parse_measurements(std::string_view json, std::string_view file_name) {
  return read(parse_json(json, file_name), file_name);
}

Measurements read_measurements(const std::filesystem::path& path) { return read(read_json_file(path), path.string()); }

Measurements joined(const std::vector<Measurements>& parts) {
  FORESHARD_CHECK(!parts.empty(), "nothing to join");
  Measurements all = parts.front();
  for (std::size_t i = 1; i < parts.size(); ++i) {
    const Measurements& part = parts[i];
    const bool is_same = part.host.cpu == all.host.cpu && part.host.cores == all.host.cores &&
                         part.threads == all.threads && part.device == all.device;
    if (!is_same) {
      throw invalid_input(
          "{} and {} are of different machines or threads: {} with {} cores, {} thread(s) per rank, and {} with {} "
          "cores, {} thread(s)",
          all.files.front(), part.files.front(), all.host.cpu, all.host.cores, all.threads, part.host.cpu,
          part.host.cores, part.threads);
    }
    all.created = std::max(all.created, part.created);
    append(all.gemm, part.gemm);
    append(all.attention, part.attention);
    append(all.functions, part.functions);
    append(all.collectives, part.collectives);
    append(all.host_work, part.host_work);
    append(all.contention, part.contention);
    append(all.memory_outside, part.memory_outside);
    append(all.files, part.files);
  }
  return all;
}

}
