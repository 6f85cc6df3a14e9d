// Run folders: any files give a record that survives writing and reading, or an Error for bad
// input.
//
// The input is the files one after another, each behind a line "== name". Lengths and hashes in
// run.json are set right here, else nothing behind them would be reached.
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "reports/run_folder.h"
#include "reports/run_record.h"
#include "sim/base/error.h"

namespace {

using namespace foreshard;
namespace fs = std::filesystem;

// In memory where that can be had; one per process, for fuzzers run side by side.
const fs::path& scratch() {
  static const fs::path folder = [] {
    const fs::path base = fs::is_directory("/dev/shm") ? "/dev/shm" : fs::temp_directory_path();
    return base / ("foreshard-fuzz-" + std::to_string(getpid()));
  }();
  static const int registered = std::atexit([] { fs::remove_all(scratch()); });
  (void)registered;
  return folder;
}

std::map<std::string, std::string> split(std::string_view text) {
  std::map<std::string, std::string> files;
  std::string* file = nullptr;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size() - 1);
    const std::string_view line = text.substr(0, end + 1);
    text.remove_prefix(end + 1);
    if (line.starts_with("== ")) {
      std::string name(line.substr(3, line.size() - 4));
      const bool is_plain = name == kRunFile || name == kPlanFile || name == kModelFile ||
                            name == kStepsFile || name == timeline_file(0) ||
                            name == timeline_file(1);
      file = is_plain ? &files[name] : nullptr;
    } else if (file != nullptr) {
      *file += line;
    }
  }
  return files;
}

void set_right(std::map<std::string, std::string>& files) {
  nlohmann::json root = nlohmann::json::parse(files[kRunFile], nullptr, false);
  if (!root.is_object()) return;
  nlohmann::json list = nlohmann::json::array();
  for (const auto& [name, text] : files) {
    if (name == kRunFile) continue;
    list.push_back({{"name", name}, {"bytes", text.size()}, {"hash", hash_of(text)}});
  }
  root["files"] = list;
  files[kRunFile] = root.dump(1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::map<std::string, std::string> files = split({reinterpret_cast<const char*>(data), size});
  set_right(files);
  const fs::path folder = scratch() / "run";
  fs::remove_all(folder);
  fs::create_directories(folder);
  for (const auto& [name, text] : files) std::ofstream(folder / name, std::ios::binary) << text;
  RunRecord record;
  try {
    record = read_run_folder(folder);
  } catch (const Error& error) {
    if (error.exit_code() != ExitCode::kInvalidInput) std::abort();
    return 0;
  }
  tokens_per_second(record);
  const fs::path again = scratch() / "again";
  write_run_folder(again, record);
  if (read_run_folder(again).losses.size() != record.losses.size()) std::abort();
  return 0;
}
