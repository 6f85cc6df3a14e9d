// calls.txt line by line: a letter, numbers, and for names the rest of the line. What each letter's numbers are is a
// table; a letter that is not in it is an error, so that nothing is left out silently.
#include <cxxabi.h>
#include <fmt/format.h>
#include <zlib.h>

#include <charconv>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>

#include "interop/capture/capture_import.h"
#include "sim/base/error.h"
#include "sim/base/json_document.h"

namespace foreshard {
namespace {

using Kind = CapturedCall::Kind;

// Where a letter's numbers go, behind host time and thread: s stream, n name, v the next value.
struct Letter {
  char letter;
  Kind kind;
  std::string_view numbers;
  bool more = false;  // further values may follow
};
constexpr Letter kLetters[] = {
    {'L', Kind::kLaunch, "snvvvvvvvvvvv", true}, {'G', Kind::kProduct, "snvvvvvvvv"},
    {'A', Kind::kLibrary, "snv", true}, {'C', Kind::kCopy, "svvv"}, {'X', Kind::kCollective, "svnvv", true},
    {'E', Kind::kRecordEvent, "sv"}, {'W', Kind::kWaitEvent, "sv"}, {'Y', Kind::kHostWait, "vv"},
    {'M', Kind::kMemory, "svvvv"}, {'H', Kind::kMark, "n"}, {'R', Kind::kBlindRead, "vn"},
    {'P', Kind::kGraphLaunch, "v", true}, {'K', Kind::kCommunicator, "vvvn"}, {'D', Kind::kDeviceMemory, "vv"},
    {'d', Kind::kDeviceMemory, "v"}, {'V', Kind::kFault, "n"}, {'U', Kind::kMark, "n"},  // where Python is from here on
};

const Letter* letter_of(char c) {
  for (const Letter& letter : kLetters)
    if (letter.letter == c) return &letter;
  return nullptr;
}

// What a file holds, unpacked; zlib reads a plain one as it is.
std::string read_packed(const std::filesystem::path& path) {
  constexpr std::size_t kMost = std::size_t{4} << 30;
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> file(gzopen(path.c_str(), "rb"), gzclose);
  if (!file) throw invalid_input("{}: cannot be read", path.string());
  std::string text;
  std::string block(std::size_t{1} << 20, '\0');
  int count = 0;
  while ((count = gzread(file.get(), block.data(), static_cast<unsigned>(block.size()))) > 0) {
    text.append(block, 0, at(count));
    if (text.size() > kMost) throw invalid_input("{}: is larger than {} GiB unpacked", path.string(), kMost >> 30);
  }
  int code = Z_OK;
  const char* const words = gzerror(file.get(), &code);
  if (count < 0 || (code != Z_OK && code != Z_STREAM_END))
    throw invalid_input("{}: the compressed file is damaged: {}", path.string(), words);
  return text;
}

std::string readable(std::string_view name) {
  if (!name.starts_with("_Z")) return std::string(name);
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(
      abi::__cxa_demangle(std::string(name).c_str(), nullptr, nullptr, &status), std::free);
  return status == 0 ? text.get() : std::string(name);
}

class CallReader {
 public:
  CallReader(std::string file, Capture& capture) : file_(std::move(file)), capture_(capture) {}

  void read(std::string_view text) {
    while (!text.empty()) {
      ++line_;
      const std::size_t end = text.find('\n');
      // The process may have been stopped while it wrote its last line.
      if (end == std::string_view::npos) break;
      read_line(text.substr(0, end));
      text.remove_prefix(end + 1);
    }
  }

 private:
  [[noreturn]] void fail(const std::string& what, const std::string& expected) const {
    throw ConfigError({file_, line_, 0, ""}, what, expected);
  }

  std::optional<std::int64_t> number(std::string_view& rest) const {
    if (rest.empty()) return std::nullopt;
    if (rest.front() != ' ') fail("a number is due", "numbers separated by spaces");
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(rest.data() + 1, rest.data() + rest.size(), value);
    if (error != std::errc()) fail("a number is due", "an integer of 64 bits");
    rest.remove_prefix(at(end - rest.data()));
    return value;
  }
  std::int64_t due(std::string_view& rest) const {
    const std::optional<std::int64_t> value = number(rest);
    if (!value) fail("the line is short", "as docs/capture.md lists");
    return *value;
  }

  void read_name(std::string_view rest) {
    const std::int64_t id = due(rest);
    if (id != std::ssize(capture_.names))
      fail(fmt::format("name {} follows name {}", id, std::ssize(capture_.names) - 1), "names in order");
    capture_.names.push_back(readable(rest.empty() ? rest : rest.substr(1)));
  }

  void read_line(std::string_view line) {
    if (line.empty()) fail("an empty line", "a call");
    std::string_view rest = line.substr(1);
    if (line.front() == 'N') return read_name(rest);
    const Letter* const letter = letter_of(line.front());
    if (letter == nullptr) {
      fail(fmt::format("no call is written '{}'", line.front()),
          "a letter that docs/capture.md lists: the capture may be of a newer foreshard-null");
    }
    CapturedCall call;
    call.kind = letter->kind;
    call.host_ns = due(rest);
    call.thread = static_cast<std::int32_t>(due(rest));
    std::size_t values = 0;
    for (const char what : letter->numbers) {
      const std::int64_t value = due(rest);
      if (what == 's') call.stream = value;
      if (what == 'v') call.values[values++] = value;
      if (what != 'n') continue;
      if (value < 0 || value >= std::ssize(capture_.names))
        fail(fmt::format("there is no name {}", value), "one that a line before gave");
      call.name = static_cast<std::int32_t>(value);
    }
    if (letter->letter == 'U') {
      places_[call.thread] = call.name;
      return;
    }
    const auto place = places_.find(call.thread);
    if (place != places_.end()) call.place = place->second;
    while (letter->more && values < CapturedCall::kValues) {
      const std::optional<std::int64_t> value = number(rest);
      if (!value) break;
      call.values[values++] = *value;
    }
    capture_.calls.push_back(call);
  }

  std::string file_;
  Capture& capture_;
  int line_ = 0;
  std::unordered_map<std::int32_t, std::int32_t> places_;  // where Python is, by thread
};

void read_model(const std::filesystem::path& path, Capture& capture) {
  if (!std::filesystem::exists(path)) return;
  const Json document = read_json_document(path);
  capture.model = document.value("class", "");
  std::int64_t shards = 1;
  const Json units = document.value("units", Json::array());
  if (!units.empty()) {
    const Json mesh = units.back().value("mesh", Json::array());
    if (!mesh.empty() && mesh.back().is_number_integer()) shards = mesh.back().get<std::int64_t>();
  }
  for (const Json& parameter : document.value("parameters", Json::array())) {
    CapturedParameter read;
    read.name = parameter.value("name", "");
    std::int64_t elements = 1;
    const Json shape = parameter.value("shape", Json::array());
    for (const Json& extent : shape) elements *= extent.is_number_integer() ? extent.get<std::int64_t>() : 0;
    capture.parameters += elements;
    if (shape.empty() || elements == 0) continue;
    read.rows = shape[0].get<std::int64_t>();
    read.row_elements = elements / read.rows;
    read.shards = shards;
    capture.parameter_list.push_back(std::move(read));
  }
  const Json graphs = document.value("graphs", Json::array());  // behind each step
  if (const std::size_t n = graphs.size(); n > 1)
    capture.compiled = graphs[n - 1].get<std::int64_t>() - graphs[n - 2].get<std::int64_t>();
  const Json peaks = document.value("peaks", Json::object());
  capture.told_allocated = peaks.value("allocated", std::int64_t{0});
  capture.told_requested = peaks.value("requested", std::int64_t{0});
  const Json versions = document.value("versions", Json::object());
  for (const auto& [name, version] : versions.items())
    if (version.is_string()) capture.versions.emplace_back(name, version.get<std::string>());
}

}

Capture read_capture(const std::filesystem::path& folder) {
  const std::filesystem::path head = folder / "capture.json";
  if (!std::filesystem::exists(head)) {
    throw invalid_input(
        "{}: is no capture: capture.json is not there; expected the folder that foreshard-null wrote (foreshard-null "
        "--rank 0 --world 8 --gpu h100 -- python3 train.py)",
        folder.string());
  }
  Capture capture;
  capture.path = folder.string();
  const Json document = read_json_document(head);
  try {
    capture.gpu = document.at("gpu").get<std::string>();
    capture.world = document.at("world").get<std::int64_t>();
    capture.rank = document.at("rank").get<std::int64_t>();
    capture.command = document.value("command", "");
    capture.processor = document.value("processor", 1.0);
    read_model(folder / "model.json", capture);
  } catch (const Json::exception& error) {
    throw ConfigError({head.string(), 0, 0, ""}, error.what(), "what foreshard-null writes");
  }
  if (capture.world < 1 || capture.rank < 0 || capture.rank >= capture.world || !(capture.processor > 0)) {
    throw ConfigError({head.string(), 0, 0, "world"}, "ranks that cannot be",
        "a world of 1 or more, a rank within it, a processor above 0");
  }
  const bool packed = !std::filesystem::exists(folder / "calls.txt");
  const std::filesystem::path calls = folder / (packed ? "calls.txt.gz" : "calls.txt");
  CallReader(calls.string(), capture).read(read_packed(calls));
  return capture;
}

}
