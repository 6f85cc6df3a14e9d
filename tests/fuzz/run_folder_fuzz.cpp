// Run folders: any files give a record that survives writing and reading, or an Error for bad
// input.
//
// The input is the files one after another, each behind a line "== name". Lengths and hashes in
// run.json are set right here, else nothing behind them would be reached.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "reports/validate/run_folder.h"
#include "reports/validate/run_record.h"
#include "sim/base/error.h"
#include "tests/fuzz/scratch.h"

namespace {

using namespace foreshard;
namespace fs = std::filesystem;

// What a run folder holds; other files are left out.
std::map<std::string, std::string> split(std::string_view text) {
  std::map<std::string, std::string> files = split_files(text);
  std::erase_if(files, [](const auto& file) {
    const std::string& name = file.first;
    return name != kRunFile && name != kPlanFile && name != kModelFile && name != kStepsFile &&
           name != timeline_file(0) && name != timeline_file(1);
  });
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

}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::map<std::string, std::string> files = split({reinterpret_cast<const char*>(data), size});
  set_right(files);
  const fs::path folder = scratch() / "run";
  fs::remove_all(folder);
  fs::create_directories(folder);
  for (const auto& [name, text] : files) in_scratch("run/" + name, text);
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
