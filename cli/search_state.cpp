// A line of the file: number of the plan, verdict (0 simulated, 1 does not fit), step in ns, peak
// and outside in bytes.
#include "cli/search_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "calibration/profile.h"
#include "sim/base/hash.h"
#include "sim/base/text_file.h"
#include "sim/spec/plan_config.h"

namespace foreshard {
namespace {

constexpr std::string_view kSchema = "foreshard.search_state/1";

std::optional<std::pair<std::size_t, JudgedPlan>> parse_line(const std::string& line) {
  std::istringstream fields(line);
  std::size_t number = 0;
  int verdict = 0;
  std::int64_t step = 0, peak = 0, outside = 0;
  std::string rest;
  if (!(fields >> number >> verdict >> step >> peak >> outside) || (fields >> rest)) {
    return std::nullopt;
  }
  if (verdict < 0 || verdict > 1 || step < 0 || peak < 0 || outside < 0) return std::nullopt;
  return std::pair(number, JudgedPlan{verdict == 0 ? Verdict::kSimulated : Verdict::kDoesNotFit,
                                      Time::ns(step), Bytes(peak), Bytes(outside)});
}

}  // namespace

std::string search_key(const std::vector<JobVariant>& variants, const MemoryTerms& terms) {
  std::string text;
  for (const auto& [job, space] : variants) {
    const Cluster& c = job.cluster;
    text += fmt::format("{} {} {} {} {} {}\n", job.model.name, job.model.parameters(),
                        job.model.training_flops_per_sequence(space.base.batch.sequence).count(),
                        c.spec, terms.max_memory, terms.confidence);
    text += fmt::format("{} {} {} {} {} {} {} {} {}\n", c.gpu.memory.count(),
                        c.gpu.peak_bf16.value(), c.gpu.memory_bandwidth.value(), c.node.gpus,
                        c.node.gpu_link.value(), c.node.nics, c.node.nic_rate.value(),
                        c.network.oversubscription, c.degraded.size());
    text += to_text(to_json(cost_model(job).calibration()));
    for (const Plan& plan : enumerate(space, job.model, job.cluster)) text += to_yaml(plan);
  }
  return Fingerprint().add(text).hex();
}

SearchState::SearchState(const std::string& path, const std::string& key) {
  std::error_code ignored;
  const bool is_there =
      std::filesystem::exists(path, ignored) && std::filesystem::file_size(path, ignored) > 0;
  if (is_there) read(path, key);
  file_ = std::fopen(path.c_str(), is_there ? "a" : "w");
  if (file_ == nullptr) {
    throw Error(ExitCode::kInvalidInput,
                fmt::format("{}: cannot be written: {}", path, std::strerror(errno)));
  }
  if (!is_there) fmt::print(file_, "{} {}\n", kSchema, key);
}

SearchState::~SearchState() {
  if (file_ != nullptr) std::fclose(file_);
}

void SearchState::read(const std::string& path, const std::string& key) {
  std::istringstream text(read_text_file(path));
  std::string line;
  std::getline(text, line);
  if (!line.starts_with(kSchema)) {
    throw ConfigError({path, 1, 1, ""}, "is no state of a search",
                      fmt::format("a file that --resume wrote, beginning {}", kSchema));
  }
  if (line != fmt::format("{} {}", kSchema, key)) {
    throw ConfigError({path, 1, 1, ""}, "is of another search",
                      "the same job, axes and profile, or a new file");
  }
  int number = 1;
  while (std::getline(text, line)) {
    ++number;
    const bool is_cut = text.eof();
    const auto parsed = parse_line(line);
    if (parsed && !is_cut) {
      known_.insert(*parsed);
    } else if (!is_cut) {
      throw ConfigError({path, number, 1, ""}, "is no judged plan",
                        "number, verdict, step in ns, peak and outside in bytes");
    } else if (!line.empty()) {
      // The rest of the line follows on a line of its own.
      std::filesystem::resize_file(path, std::filesystem::file_size(path) - line.size());
    }
  }
}

SearchMemory SearchState::memory() {
  SearchMemory memory;
  memory.recall = [this](std::size_t number) -> std::optional<JudgedPlan> {
    const auto found = known_.find(number);
    if (found == known_.end()) return std::nullopt;
    return found->second;
  };
  memory.remember = [this](std::size_t number, const JudgedPlan& plan) {
    const std::lock_guard<std::mutex> guard(mutex_);
    fmt::print(file_, "{} {} {} {} {}\n", number, plan.verdict == Verdict::kSimulated ? 0 : 1,
               plan.step.nanoseconds(), plan.peak_allocated.count(),
               plan.outside_allocator.count());
  };
  return memory;
}

}  // namespace foreshard
