#include "planner/local_profiles.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>
#include <system_error>
#include <thread>
#include <tuple>

#include "sim/base/error.h"

namespace foreshard {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// "2026-01-31T12-00-00Z" at the end of a profile's name; "" where it ends otherwise.
std::string time_of(const std::filesystem::path& path) {
  static constexpr std::string_view kPattern = "0000-00-00T00-00-00Z";
  const std::string stem = path.stem().string();
  if (stem.size() < kPattern.size()) return "";
  std::string time = stem.substr(stem.size() - kPattern.size());
  for (std::size_t i = 0; i < time.size(); ++i) {
    const bool is_digit = time[i] >= '0' && time[i] <= '9';
    if (kPattern[i] == '0' ? !is_digit : time[i] != kPattern[i]) return "";
  }
  return time;
}

std::string cpu_name() {
  static constexpr std::string_view kKey = "model name";
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(kKey)) continue;
    const std::size_t begin = line.find_first_not_of(" \t", line.find(':') + 1);
    if (begin != std::string::npos) return line.substr(begin);
  }
  return "this machine";
}

}  // namespace

std::filesystem::path profile_folder() {
  const std::filesystem::path own = "foreshard/profiles";
  // A relative path in the variable is to be ignored (XDG base directory specification).
  if (const std::filesystem::path data = variable("XDG_DATA_HOME"); data.is_absolute()) {
    return data / own;
  }
  const std::string home = variable("HOME");
  if (home.empty()) {
    throw Error(ExitCode::kMissingCapability,
                "there is no folder for profiles: neither XDG_DATA_HOME nor HOME is set; name the "
                "file with --profile FILE or --out FILE");
  }
  return std::filesystem::path(home) / ".local/share" / own;
}

std::filesystem::path history_file() { return profile_folder().parent_path() / "history.sqlite"; }

std::optional<std::filesystem::path> newest_profile() {
  std::vector<std::filesystem::path> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(profile_folder(), error)) {
    if (entry.path().extension() == ".json") found.push_back(entry.path());
  }
  const auto newest = std::ranges::max_element(found, [](const auto& a, const auto& b) {
    return std::tuple(time_of(a), a) < std::tuple(time_of(b), b);
  });
  if (newest == found.end()) return std::nullopt;
  return *newest;
}

MeasuredHost this_machine() {
  MeasuredHost host;
  host.name = "this machine";
  host.cpu = cpu_name();
  host.cores = std::max(1U, std::thread::hardware_concurrency());
  const long pages = ::sysconf(_SC_PHYS_PAGES);
  const long size = ::sysconf(_SC_PAGESIZE);
  constexpr std::int64_t kUnknown = std::int64_t{8} << 30;
  host.memory = Bytes(pages > 0 && size > 0 ? std::int64_t{pages} * size : kUnknown);
  return host;
}

}  // namespace foreshard
