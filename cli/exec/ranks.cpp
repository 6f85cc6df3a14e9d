#include "cli/exec/ranks.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <torch/headeronly/version.h>

#include <cstdlib>
#include <ctime>
#include <fstream>

#include "exec/launch/spawn.h"
#include "sim/base/lookup.h"

namespace foreshard {

std::optional<ExitCode> spawn_if_asked(const SpawnRequest& request) {
  if (request.ranks == 0) return std::nullopt;
  const Launch launch = resolve_launch(process_environment());
  if (launch.launcher != "none") {
    throw Error(ExitCode::kUsage, "--spawn starts ranks, but this process is a rank of {} already; leave --spawn out",
        launch.launcher);
  }
  SpawnOptions options = {.arguments = {"foreshard-exec"}};
  append(options.arguments, request.arguments);
  options.interrupt_grace = request.grace;
  return static_cast<ExitCode>(spawn_ranks(request.ranks, options));
}

int set_threads(std::optional<int> threads) {
  int count = threads.value_or(0);
  if (count == 0) {
    const char* variable = std::getenv("OMP_NUM_THREADS");
    count = variable == nullptr ? 1 : std::atoi(variable);
    if (count < 1) count = 1;
  }
  at::set_num_threads(count);
  return count;
}

std::string cpu_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "";
}

std::vector<std::pair<std::string, std::string>> engine_versions() {
  return {{"foreshard", FORESHARD_VERSION}, {"torch", TORCH_VERSION}, {"blas", at::get_mkl_version()},
      {"onednn", at::get_mkldnn_version()}};
}

std::string utc_now() {
  std::time_t seconds = std::time(nullptr);
  if (const char* fixed = std::getenv("SOURCE_DATE_EPOCH")) seconds = static_cast<std::time_t>(std::atoll(fixed));
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(seconds));
}

}
