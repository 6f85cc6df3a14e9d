// One reader per kind of row; each names all keys of its rows, so that a misspelt one is an error.
#include "calibration/measurements.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <span>

#include "calibration/fit/least_squares.h"
#include "calibration/measured_json.h"
#include "sim/base/config.h"
#include "sim/base/error.h"

namespace foreshard {
namespace {

constexpr std::string_view kMeasurementsSchema = "foreshard.measurements/1";
constexpr std::array<std::string_view, 3> kHostWork = {"row", "hook", "collective"};
constexpr std::int64_t kMostRowBytes = std::int64_t{1} << 40;
constexpr std::int64_t kLargestHead = 4096;
constexpr double kLongestHostWork = 1;  // s

constexpr Range kAnyTime = {kShortestTime, kLongestTime};

double seconds(const ConfigNode& row, std::string_view key, const Range& range = kAnyTime) {
  return row.at(key, "seconds").as_double(range.low, range.high);
}

MeasuredSeconds read_spread(const ConfigNode& row, const Range& range = kAnyTime) {
  const ConfigNode node = row.at("seconds", R"({"median": 0.01, "low": 0.009, "high": 0.011})");
  node.allow_only({"median", "low", "high"});
  const MeasuredSeconds spread{seconds(node, "median", range), seconds(node, "low", range),
                               seconds(node, "high", range)};
  if (spread.low > spread.median || spread.median > spread.high) {
    throw node.error("quartiles are not in order", "low <= median <= high");
  }
  return spread;
}

// Keys that rows of every kind may have.
void allow(const ConfigNode& row, std::initializer_list<std::string_view> own) {
  std::vector<std::string_view> keys = {"kind", "ranks", "repeats"};
  keys.insert(keys.end(), own);
  row.allow_only(std::span<const std::string_view>(keys));
  if (const ConfigNode* repeats = row.find("repeats")) repeats->as_int(1, kLargestSize);
}

void read_gemm(const ConfigNode& row, std::int64_t ranks, Measurements& out) {
  allow(row, {"pass", "dtype", "m", "n", "k", "seconds"});
  const MeasuredSeconds spread = read_spread(row);
  out.gemm.push_back({ranks,
                      {pass_of(row), is_fp32(row), measured_size(row, "m"), measured_size(row, "n"),
                       measured_size(row, "k"), spread.median},
                      spread});
}

void read_attention(const ConfigNode& row, std::int64_t ranks, Measurements& out) {
  allow(row, {"pass", "dtype", "batch", "sequence", "heads", "kv_heads", "head_dim", "causal",
              "seconds", "kernel"});
  const MeasuredSeconds spread = read_spread(row);
  const ConfigNode* kernel = row.find("kernel");
  out.attention.push_back(
      {ranks,
       {pass_of(row), is_fp32(row), row.at("causal").as_bool(), measured_size(row, "batch"),
        measured_size(row, "sequence"), measured_size(row, "heads"), measured_size(row, "kv_heads"),
        row.at("head_dim").as_int(1, kLargestHead), spread.median,
        kernel == nullptr ? "" : kernel->as_string()},
       spread});
}

void read_memory(const ConfigNode& row, std::int64_t ranks, Measurements& out) {
  allow(row, {"function", "pass", "dtype", "bytes", "seconds"});
  const Function function = function_of(row);
  if (function == Function::kMatrixProduct || function == Function::kAttention) {
    throw row.at("function").error("is not memory-bound", "kind: gemm or attention for it");
  }
  const MeasuredSeconds spread = read_spread(row);
  out.functions.push_back(
      {ranks,
       {function, pass_of(row), is_fp32(row), as_double(row.at("bytes").as_int(1, kMostRowBytes))},
       spread});
}

void read_collective(const ConfigNode& row, std::int64_t ranks, Measurements& out) {
  allow(row, {"operation", "order", "group", "nodes", "bytes", "seconds"});
  const MeasuredSeconds spread = read_spread(row);
  CollectiveTime sample;
  sample.operation = operation_of(row);
  sample.order = order_of(row);
  sample.group = row.at("group").as_int(2, ranks < 2 ? 2 : ranks);
  if (const ConfigNode* nodes = row.find("nodes")) sample.nodes = nodes->as_int(1, sample.group);
  sample.bytes = as_double(row.at("bytes").as_int(1, kMostRowBytes));
  out.collectives.push_back({ranks, sample, spread});
}

void read_host_work(const ConfigNode& row, std::int64_t ranks, Measurements& out) {
  allow(row, {"what", "seconds"});
  out.host_work.push_back({ranks,
                           static_cast<HostWork>(row.at("what").as_choice(std::span(kHostWork))),
                           read_spread(row, {0, kLongestHostWork})});
}

void read_contention(const ConfigNode& row, std::int64_t ranks, Measurements& out) {
  allow(row, {"compute_alone_s", "compute_beside_s", "collective_alone_s", "collective_beside_s"});
  out.contention.emplace_back(
      ranks,
      ContentionTimes{seconds(row, "compute_alone_s"), seconds(row, "compute_beside_s"),
                      seconds(row, "collective_alone_s"), seconds(row, "collective_beside_s")});
}

void read_outside(const ConfigNode& row, std::int64_t ranks, Measurements& out) {
  allow(row, {"bytes"});
  out.memory_outside.emplace_back(ranks, row.at("bytes").as_int(0, kMostRowBytes));
}

void read_row(const ConfigNode& row, Measurements& out) {
  using Reader = void (*)(const ConfigNode&, std::int64_t, Measurements&);
  static constexpr std::array<std::string_view, 7> kKinds = {
      "gemm", "attention", "memory", "collective", "host", "contention", "memory_outside"};
  static constexpr std::array<Reader, 7> kReaders = {
      read_gemm,      read_attention,  read_memory, read_collective,
      read_host_work, read_contention, read_outside};
  const std::size_t kind = row.at("kind", "such as gemm").as_choice(std::span(kKinds));
  constexpr std::int64_t kMostRanks = 4096;
  kReaders[kind](row, row.at("ranks").as_int(1, kMostRanks), out);
}

bool is_utc(std::string_view text) {
  constexpr std::string_view kPattern = "0000-00-00T00:00:00Z";
  return std::equal(
      text.begin(), text.end(), kPattern.begin(), kPattern.end(),
      [](char c, char wanted) { return wanted == '0' ? c >= '0' && c <= '9' : c == wanted; });
}

std::string read_time(const ConfigNode& node) {
  if (!is_utc(node.text())) throw node.error("is no time", "UTC such as 2026-01-31T12:00:00Z");
  return node.as_string();
}

MeasuredDevice read_device(const ConfigNode& node) {
  node.allow_only({"name", "capability", "multiprocessors", "memory_bytes"});
  return {node.at("name").as_string(), node.at("capability").as_int(0, 10'000),
          node.at("multiprocessors").as_int(0, 1'000'000),
          Bytes(node.at("memory_bytes").as_int(0))};
}

Measurements read(const ConfigNode& root, std::string_view file_name) {
  // `extra` rows of a GPU are kept for people; nothing is fitted to them.
  root.allow_only(
      {"schema", "created", "host", "device", "versions", "command", "threads", "rows", "extra"});
  if (const ConfigNode schema = root.at("schema"); schema.as_string() != kMeasurementsSchema) {
    throw schema.error(fmt::format("unknown schema '{}'", schema.text()),
                       std::string(kMeasurementsSchema));
  }
  Measurements out;
  out.files = {std::string(file_name)};
  out.created = read_time(root.at("created"));
  out.host = read_host(root.at("host"));
  if (const ConfigNode* device = root.find("device")) out.device = read_device(*device);
  const ConfigNode versions = root.at("versions");
  for (const ConfigItem& item : versions.items()) {
    out.versions.emplace_back(item.key, item.value.as_string());
  }
  out.command = root.at("command").as_string();
  out.threads = root.at("threads").as_int(1, 4096);
  const ConfigNode rows = root.at("rows");
  for (const ConfigNode& row : rows.elements()) read_row(row, out);
  if (rows.elements().empty()) throw rows.error("is empty", "measured rows");
  return out;
}

template <typename Row>
void append(std::vector<Row>& to, const std::vector<Row>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

}  // namespace

MeasuredHost read_host(const ConfigNode& node) {
  node.allow_only({"name", "cpu", "cores", "memory_bytes", "kernel"});
  return {node.at("name").as_string(), node.at("cpu").as_string(),
          node.at("cores").as_int(1, 1'000'000), Bytes(node.at("memory_bytes").as_int(1)),
          node.at("kernel").as_string()};
}

Measurements parse_measurements(std::string_view json, std::string_view file_name) {
  return read(parse_json(json, file_name), file_name);
}

Measurements read_measurements(const std::filesystem::path& path) {
  return read(read_json_file(path), path.string());
}

Measurements joined(const std::vector<Measurements>& parts) {
  FORESHARD_CHECK(!parts.empty(), "nothing to join");
  Measurements all = parts.front();
  for (std::size_t i = 1; i < parts.size(); ++i) {
    const Measurements& part = parts[i];
    const bool is_same = part.host.cpu == all.host.cpu && part.host.cores == all.host.cores &&
                         part.threads == all.threads && part.device == all.device;
    if (!is_same) {
      throw Error(
          ExitCode::kInvalidInput,
          fmt::format("{} and {} are of different machines or threads: {} with {} cores, {} "
                      "thread(s) per rank, and {} with {} cores, {} thread(s)",
                      all.files.front(), part.files.front(), all.host.cpu, all.host.cores,
                      all.threads, part.host.cpu, part.host.cores, part.threads));
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

}  // namespace foreshard
