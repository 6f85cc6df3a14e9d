// Text: line by line. A launcher's prefix goes first ("[1,0]<stdout>:", "0: ", "node-3: "). Lines with # are headers,
// devices and footers; lines that begin with a number are rows; all others (NCCL INFO, warnings of MPI) are counted and
// ignored. A test begins with its "Collective test starting" line or with "nThread", and ends with the next.
#include "interop/network/nccl_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include "interop/network/topology_lines.h"
#include "sim/base/config.h"
#include "sim/base/error.h"
#include "sim/base/letters.h"
#include "sim/base/lookup.h"
#include "sim/base/parse.h"
#include "sim/base/quantile.h"
#include "sim/cost/collective.h"

namespace foreshard {
namespace {

// The words of a line of nccl-tests' output, behind whatever a launcher put in front of it.
using Words = std::vector<std::string>;

struct Device {
  std::string host;
  std::string name;
};

// Bytes of the launcher's mark that the text begins with: "[1,0]<stdout>: ", "0: ", or "node-3: "
// where a comment or a row follows.
std::size_t launcher_mark(std::string_view text) {
  if (text.empty()) return 0;
  if (text[0] == '[') {
    std::size_t at = text.find(']');
    if (at == std::string_view::npos) return 0;
    ++at;
    if (at < text.size() && text[at] == '<') {
      const std::size_t end = skip(text, at + 1, [](char c) { return c >= 'a' && c <= 'z'; });
      if (end > at + 1 && end < text.size() && text[end] == '>') at = end + 1;
    }
    if (at < text.size() && text[at] == ':') ++at;
    return skip(text, at, is_space);
  }
  const bool is_number = is_digit(text[0]);
  if (!is_number && std::isalpha(static_cast<unsigned char>(text[0])) == 0) return 0;
  const std::size_t colon = skip(text, 0, [&](char c) { return is_number ? is_digit(c) : is_name_letter(c); });
  if (colon >= text.size() || text[colon] != ':') return 0;
  const std::size_t end = skip(text, colon + 1, is_space);
  if (end == colon + 1) return 0;
  const bool follows = end < text.size() && (text[end] == '#' || is_digit(text[end]));
  return is_number || follows ? end : 0;
}

bool is_count(const std::string& word) { return !word.empty() && std::ranges::all_of(word, is_digit); }

// The whole word as a finite number.
std::optional<double> number_of(const std::string& word) {
  const std::optional<double> value = parse_number<double>(word);
  return value && std::isfinite(*value) ? value : std::nullopt;
}

// Bytes of the launcher's prefix ("[1,0]<stdout>:", "0: ", "node-3: "): up to two marks, not beyond a '#'.
std::size_t launcher_prefix(std::string_view line) {
  const std::size_t begin = skip(line, 0, is_space);
  std::size_t at = begin;
  for (int i = 0; i < 2; ++i) at += launcher_mark(line.substr(at));
  return at == begin || at > line.find('#') ? 0 : at;
}

// The operation in "all_gather_perf" or a path that ends so.
std::optional<CollectiveOperation> operation_in(const std::string& text) {
  std::optional<CollectiveOperation> found;
  std::size_t where = 0;
  const auto look = [&](const char* name, CollectiveOperation operation) {
    const std::size_t at = text.rfind(name);
    // "reduce" is inside "all_reduce" and "reduce_scatter", which begin earlier or there.
    if (at == std::string::npos || (found && at < where)) return;
    found = operation;
    where = at;
  };
  look("reduce_perf", CollectiveOperation::kReduce);
  look("broadcast", CollectiveOperation::kBroadcast);
  look("sendrecv", CollectiveOperation::kSendRecv);
  look("alltoall", CollectiveOperation::kAllToAll);
  for (std::size_t i = 0; i < 3; ++i) {
    const auto operation = static_cast<CollectiveOperation>(i);
    const std::size_t at = text.rfind(to_string(operation));
    if (at != std::string::npos && (!found || at + 4 >= where)) found = operation, where = at;
  }
  return found;
}

// Of "Rank 0 Group 0 Pid 1234 on host device 0 [0x1b] NVIDIA H100", in any case.
std::optional<Device> device_in(std::string_view text, const Words& words) {
  std::size_t at = 0;
  const auto word = [&](std::string_view wanted) {
    const bool same = at < words.size() && words[at].size() == wanted.size() &&
                      std::equal(
                          wanted.begin(), wanted.end(), words[at].begin(),
                          [](char a, char b) { return a == std::tolower(static_cast<unsigned char>(b)); });
    at += same ? 1 : 0;
    return same;
  };
  const auto count = [&] { return at < words.size() && is_count(words[at]) && ++at != 0; };
  while (at < words.size() && !word("rank")) ++at;
  if (!count()) return std::nullopt;
  if (word("group") && !count()) return std::nullopt;
  if (!word("pid") || !count() || !word("on") || at >= words.size()) return std::nullopt;
  Device device{words[at++], ""};
  if (!word("device") || !count()) return std::nullopt;
  if (at >= words.size() || words[at][0] != '[') return std::nullopt;
  const std::size_t close = text.find(']');
  if (close == std::string_view::npos) return std::nullopt;
  device.name = text.substr(skip(text, close + 1, is_space));
  return device;
}

struct TableRow {
  double bytes = 0;
  double microseconds = 0;
  double algbw = 0;
  double busbw = 0;
  int line = 0;
};

struct Test {
  std::optional<CollectiveOperation> operation;
  std::size_t ranks = 0;
  std::set<std::string> hosts;
  Words header;
  std::vector<TableRow> rows;
  int line = 0;
};

// Ranks from the ratio of bus bandwidth to bandwidth of the largest row.
std::int64_t ranks_by_ratio(CollectiveOperation operation, const std::vector<TableRow>& rows) {
  const TableRow* best = nullptr;
  for (const TableRow& row : rows)
    if (row.algbw > 0 && (best == nullptr || row.algbw > best->algbw)) best = &row;
  if (best == nullptr) return 0;
  const double ratio = best->busbw / best->algbw;
  double ranks = 0;
  if (operation == CollectiveOperation::kAllReduce && ratio < 2) ranks = 2 / (2 - ratio);
  if (busbw_factor(operation, 2) == 0.5 && ratio < 1) ranks = 1 / (1 - ratio);
  const double whole = std::round(ranks);
  return whole >= 2 && std::abs(ranks - whole) < 0.05 * whole && whole <= 64 ? static_cast<std::int64_t>(whole) : 0;
}

class LogReader : LedgerWriter<NcclTests> {
 public:
  using LedgerWriter::LedgerWriter;

  NcclTests text(std::string_view text) {
    int line = 0;
    for (std::size_t at = 0; at <= text.size();) {
      std::size_t end = text.find_first_of("\r\n", at);
      if (end == std::string_view::npos) end = text.size();
      ++line;
      read_line(text.substr(at, end - at), line);
      at = end + (text.substr(end).starts_with("\r\n") ? 2 : 1);
    }
    if (ignored_ > 0) {
      note(Mapping::kIgnored, fmt::format("{} lines of other programs", ignored_), "", "the first: " + first_ignored_,
          ignored_line_);
    }
    return finish();
  }

  NcclTests json(std::string_view text) {
    const ConfigNode root = parse_json(text, file());
    if (const ConfigNode* version = root.find("nccl_version")) {
      out.version = parse_nccl_version(version->text());
      note(Mapping::kMapped, "nccl_version", std::string(version->text()), "", version->location().line);
    }
    Test test = {.line = root.location().line};
    if (const ConfigNode* args = root.find("args"); args != nullptr && args->is_sequence()) {
      for (const ConfigNode& arg : args->elements())
        if (!test.operation) test.operation = operation_in(std::string(arg.text()));
    }
    if (const ConfigNode* config = root.find("config"); config != nullptr && config->is_mapping()) {
      if (const ConfigNode* devices = config->find("devices")) add_devices(*devices, test);
    }
    for (const ConfigNode& result : root.at("results", "the rows of the test").elements()) {
      const ConfigNode* place = result.find("out_of_place");
      if (place == nullptr || place->is_null()) place = result.find("in_place");
      if (place == nullptr || !place->is_mapping()) {
        note(Mapping::kIgnored, "a result without times", "", "", result.location().line);
        continue;
      }
      const ConfigNode time = place->has("time") ? place->at("time") : place->at("cpu_time");
      add_row(test, {result.at("size").as_double(0, 1e15), time.as_double(), place->at("alg_bw").as_double(),
                        place->at("bus_bw").as_double(), result.location().line});
    }
    tests_.push_back(std::move(test));
    return finish();
  }

 private:
  void add_devices(const ConfigNode& devices, Test& test) {
    for (const ConfigNode& device : devices.elements()) {
      ++test.ranks;
      if (const ConfigNode* host = device.find("hostname")) test.hosts.emplace(host->text());
      if (const ConfigNode* info = device.find("device_info")) set_gpu(std::string(info->text()));
    }
    note(Mapping::kMapped, fmt::format("{} devices", test.ranks),
        fmt::format("{} ranks on {} nodes", test.ranks, test.hosts.size()), "", devices.location().line);
  }

  void set_gpu(std::string name) {
    if (out.gpu.empty()) out.gpu = std::move(name);
  }

  void read_line(std::string_view raw, int line) {
    const std::string_view text = raw.substr(launcher_prefix(raw));
    const Words words = words_of_line(text);
    if (words.empty()) return;
    if (words[0][0] == '#') {
      read_comment(text.substr(text.find('#') + 1), line);
    } else if (number_of(words[0]) && !contains(words[0], '.') && words.size() > 3) {
      read_row(words, line);
    } else {
      if (ignored_++ == 0) {
        first_ignored_ = std::string(text.substr(0, 80));
        ignored_line_ = line;
      }
    }
  }

  Test& test(int line) {
    if (tests_.empty()) {
      tests_.emplace_back();
      tests_.back().line = line;
    }
    return tests_.back();
  }

  void begin(int line) {
    if (!tests_.empty() && tests_.back().rows.empty()) return;  // its own further headers
    tests_.emplace_back();
    tests_.back().line = line;
  }

  void read_comment(std::string_view text, int line) {
    const Words words = words_of_line(text);
    if (words.empty()) return;
    constexpr std::string_view kLibrary = "nccl-library=";
    const std::size_t library = text.find(kLibrary);
    const std::size_t number = library + kLibrary.size();
    if (const auto device = device_in(text, words)) {
      Test& here = test(line);
      ++here.ranks;
      here.hosts.insert(device->host);
      set_gpu(device->name);
    } else if (contains(text, "Collective test starting")) {
      begin(line);
      tests_.back().operation = operation_in(std::string(text));
      note(Mapping::kMapped, words.back(), "the operation", "", line);
    } else if (library != std::string_view::npos && number < text.size() && is_digit(text[number])) {
      const auto* const stop = std::find_if_not(text.begin() + number, text.end(), is_digit);
      const auto end = at(stop - text.begin());
      out.version = parse_nccl_version(text.substr(number, end - number));
      note(Mapping::kMapped, std::string(text.substr(library, end - library)), "the version of NCCL", "", line);
    } else if (words[0] == "nThread") {
      begin(line);
      note(Mapping::kIgnored, "settings of the test", "", "", line);
    } else if (words[0] == "size") {
      test(line).header = words;
    } else if (contains(text, "Out of bounds values") && !contains(text, "OK")) {
      note(Mapping::kUnsupported, "wrong results", "", "times of a run that failed its own check", line);
    } else if (!tests_.empty() && contains(text, "Avg bus bandwidth")) {
      note(Mapping::kIgnored, "average bus bandwidth", "", "a mean over all sizes", line);
    }
  }

  void read_row(const Words& words, int line) {
    Test& here = test(line);
    std::size_t at = 0;
    if (!here.header.empty()) {
      const auto column = std::ranges::find_if(
          here.header, [](const std::string& name) { return name == "time" || name == "cputime"; });
      if (column == here.header.end()) fail(line, "the header names no time", "time or cputime");
      at = static_cast<std::size_t>(column - here.header.begin());
    } else {
      // size count type [redop] [root] time algbw busbw: the first number with a point.
      at = 3;
      while (at < words.size() && !contains(words[at], '.')) ++at;
      if (!told_position_) {
        note(Mapping::kDefaulted, "columns", "by position", "the log has no header line", line);
        told_position_ = true;
      }
    }
    if (at + 2 >= words.size()) {
      note(Mapping::kIgnored, "a row that is cut off", "", fmt::format("{} columns", words.size()), line);
      return;
    }
    const auto bytes = number_of(words[0]);
    const auto time = number_of(words[at]);
    const auto algbw = number_of(words[at + 1]);
    const auto busbw = number_of(words[at + 2]);
    if (!bytes || !time || !algbw || !busbw) {
      note(Mapping::kIgnored, "a row whose times are no numbers", "", words[at], line);
      return;
    }
    add_row(here, {*bytes, *time, *algbw, *busbw, line});
  }

  void add_row(Test& test, const TableRow& row) {
    if (row.bytes <= 0) return;  // nccl-tests prints sizes below one element per rank as 0
    if (!(row.microseconds > 0) || row.microseconds > 3.6e9) {
      note(Mapping::kIgnored, fmt::format("{} bytes", row.bytes), "", "its time is no time", row.line);
      return;
    }
    const double algbw = row.bytes / row.microseconds / 1000;
    // Two decimals are printed, and short times with two as well.
    if (std::abs(algbw - row.algbw) > 0.02 + 0.02 * algbw) {
      note(Mapping::kIgnored, fmt::format("{} bytes", row.bytes), "",
          fmt::format("time and bandwidth disagree: {:.3g} and {:.3g} GB/s", algbw, row.algbw), row.line);
      return;
    }
    test.rows.push_back(row);
  }

  NcclTests finish() {
    for (const Test& test : tests_)
      if (!test.rows.empty()) add_sweep(test);
    if (out.sweeps.empty()) fail(1, "has no row of nccl-tests", "lines of size, count, type ... time, algbw, busbw");
    return std::move(out);
  }

  void add_sweep(const Test& test) {
    std::optional<CollectiveOperation> operation = test.operation;
    const int line = test.rows.front().line;
    if (!operation) {
      operation = operation_in(file());
      if (!operation) {
        fail(test.line, "says nowhere which collective it measured",
            "a line '# Collective test starting: all_gather_perf' or a file named after it");
      }
      note(Mapping::kDefaulted, "the operation", to_string(*operation), "from the file's name", line);
    }
    CollectiveSweep sweep;
    sweep.operation = *operation;
    sweep.ranks = static_cast<std::int64_t>(test.ranks);
    sweep.nodes = std::ssize(test.hosts);
    if (sweep.ranks < 2) {
      sweep.ranks = ranks_by_ratio(*operation, test.rows);
      sweep.nodes = std::max<std::int64_t>(1, sweep.ranks / 8);
      if (sweep.ranks < 2) fail(line, "does not say how many ranks there were", "its '# Rank' lines");
      note(Mapping::kDefaulted, "ranks and nodes", fmt::format("{} on {}", sweep.ranks, sweep.nodes),
          "no '# Rank' lines: from busbw over algbw, 8 a node", line);
    }
    if (sweep.nodes < 1) {
      sweep.nodes = std::max<std::int64_t>(1, sweep.ranks / 8);
      note(Mapping::kDefaulted, "nodes", std::to_string(sweep.nodes), "the devices name no host: 8 a node", line);
    }
    std::map<double, std::vector<double>> seconds;
    for (const TableRow& row : test.rows) seconds[row.bytes].push_back(row.microseconds / 1e6);
    for (auto& [bytes, all] : seconds) {
      std::ranges::sort(all);
      sweep.points.push_back({bytes, quantile(all, 0.5)});
    }
    sweep.source = fmt::format("{}:{}", file(), line);
    note(Mapping::kMapped, fmt::format("{} rows", test.rows.size()),
        fmt::format("{} of {} ranks on {} nodes, {} sizes", to_string(*operation), sweep.ranks, sweep.nodes,
            sweep.points.size()),
        "", line);
    out.sweeps.push_back(std::move(sweep));
  }

  std::vector<Test> tests_;
  bool told_position_ = false;
  int ignored_ = 0;
  int ignored_line_ = 0;
  std::string first_ignored_;
};

}

bool looks_like_nccl_tests(std::string_view text) {
  const std::string head(text.substr(0, kNcclTestsHead));
  if (head.find_first_not_of(" \t\r\n") == std::string::npos) return false;
  if (head[head.find_first_not_of(" \t\r\n")] == '{')
    return contains(head, "\"alg_bw\"") || (contains(head, "\"nccl_version\"") && contains(head, "\"results\""));
  constexpr const char* kMarks[] = {
      "nThread", "nccl-tests version", "Collective test starting", "algbw", "Using devices"};
  return std::ranges::any_of(kMarks, [&](const char* mark) { return contains(head, mark); });
}

NcclTests parse_nccl_tests(std::string_view text, std::string_view file_name) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  LogReader reader(file_name);
  if (first != std::string_view::npos && text[first] == '{') return reader.json(text);
  return reader.text(text);
}

}
