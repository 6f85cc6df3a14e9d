#include "planner/local_profiles.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>
#include <thread>
#include <tuple>

#include "planner/job.h"
#include "reports/page/page.h"
#include "reports/view/layout.h"
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

}

std::filesystem::path profile_folder() {
  const std::filesystem::path own = "foreshard/profiles";
  // A relative path in the variable is to be ignored (XDG base directory specification).
  if (const std::filesystem::path data = variable("XDG_DATA_HOME"); data.is_absolute()) return data / own;
  const std::string home = variable("HOME");
  if (home.empty()) {
    throw Error(ExitCode::kMissingCapability,
        "there is no folder for profiles: neither XDG_DATA_HOME nor HOME is set; name the file with --profile FILE or "
        "--out FILE");
  }
  return std::filesystem::path(home) / ".local/share" / own;
}

std::filesystem::path history_file() { return profile_folder().parent_path() / "history.sqlite"; }

std::optional<std::filesystem::path> newest_profile() {
  std::vector<std::filesystem::path> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(profile_folder(), error))
    if (entry.path().extension() == ".json") found.push_back(entry.path());
  const auto newest = std::ranges::max_element(
      found, [](const auto& a, const auto& b) { return std::tuple(time_of(a), a) < std::tuple(time_of(b), b); });
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

// Each factor goes to the ends of its own interval while the others stay (factor_moves); the
// step's movement is what a measurement would take away. Saying the training code takes away what
// lies between those that it may be.

namespace {

std::string command_for(Factor factor) {
  std::string device = "foreshard-exec measure --device cuda";
  switch (factor) {
    case Factor::kGemm: return device + ", or a table gpu,m,n,k,dtype,latency_us of six large products";
    case Factor::kIntraNode: return "all_gather_perf -b 64K -e 4G -f 2 -g 8 (nccl-tests), and reduce_scatter_perf";
    case Factor::kInterNode:
      return "mpirun -np RANKS -N 8 all_gather_perf -b 64K -e 4G -f 2 -g 1 (nccl-tests), and reduce_scatter_perf";
    default: return device;
  }
}

}

std::vector<NextMeasurement> next_measurements(const std::string& profile, const std::string& gpu) {
  JobOptions options = {.model = "llama-3.1-8b", .cluster = "64x" + gpu, .profile = profile};
  options.assignments.push_back({"recompute=full"});  // fits every machine
  const Job job = load_job(options);
  const CostModel costs = cost_model(job);
  const Forecast usual = forecast(job.model, job.resolved.plan, costs);
  const double step = usual.timeline.period.seconds();
  std::vector<NextMeasurement> next;
  for (const FactorMove& move : factor_moves(usual, costs))
    next.push_back({factor_words(move.factor), std::abs(move.high - move.low) / 2 / step, command_for(move.factor)});
  const OpenStack open = summarize(usual, costs, 0, stack_set(job, costs).of(job.resolved.plan)).open_stack;
  if (!open.outcomes.empty()) {
    const auto [least, most] = std::ranges::minmax(open.outcomes, {}, &StackOutcome::seconds);
    next.push_back(
        {"training code", (most.seconds - least.seconds) / 2 / step, "say it: foreshard predict --set stack=NAME"});
  }
  std::ranges::stable_sort(next, [](const auto& a, const auto& b) { return a.share > b.share; });
  return next;
}

std::string next_text(const std::vector<NextMeasurement>& next) {
  constexpr std::size_t kShown = 3;
  std::string text = "what would narrow forecasts most (Llama-3.1-8B on 64 of them), of the step:\n";
  for (std::size_t i = 0; i < std::min(kShown, next.size()); ++i)
    text += fmt::format("  +-{}  {}: {}\n", percent_text(next[i].share), next[i].factor, next[i].command);
  return text;
}

Json next_json(const std::vector<NextMeasurement>& next) {
  return json_list(
      next,
      [&](const NextMeasurement& each) -> Json {
        return {{"factor", each.factor}, {"share", each.share}, {"command", each.command}};
      });
}

}
