// A line of the file: number of the plan, verdict (0 simulated, 1 does not fit), step in ns, peak
// and outside in bytes, and the hash of the search's key and these figures: a line that was edited,
// or comes from the state of another search, does not have it.
#include "planner/search_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "calibration/profile.h"
#include "sim/base/hash.h"
#include "sim/base/text_file.h"
#include "sim/spec/network/routes.h"
#include "sim/spec/plan_config.h"

namespace foreshard {
namespace {

constexpr std::string_view kSchema = "foreshard.search_state/2";
constexpr std::string_view kAnySchema = "foreshard.search_state/";
constexpr std::size_t kMaxStateBytes = std::size_t{256} << 20;  // of some 4,000,000 plans

std::string figures_of(std::size_t number, const JudgedPlan& plan) {
  return fmt::format("{} {} {} {} {}", number, plan.verdict == Verdict::kSimulated ? 0 : 1, plan.step.nanoseconds(),
      plan.peak_allocated.count(), plan.outside_allocator.count());
}

std::string seal_of(std::string_view figures, std::string_view key) {
  return Fingerprint().add(key).add(figures).hex();
}

// The next of the words that blanks separate; -1 where it is no number.
std::int64_t take_number(std::string_view& text) {
  const std::size_t end = std::min(text.find(' '), text.size());
  std::int64_t value = -1;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + end, value);
  const bool is_number = error == std::errc() && stop == text.data() + end;
  text.remove_prefix(std::min(end + 1, text.size()));
  return is_number ? value : -1;
}

}

SearchRecord parse_search_state(std::string_view text, const std::string& file, std::string_view key) {
  const std::string_view first = text.substr(0, text.find('\n'));
  if (!first.starts_with(kAnySchema)) {
    throw ConfigError(
        {file, 1, 1, ""}, "is no state of a search", fmt::format("a file that --resume wrote, beginning {}", kSchema));
  }
  if (!first.starts_with(fmt::format("{} ", kSchema))) {
    throw ConfigError(
        {file, 1, 1, ""}, "is the state of a search of another version", fmt::format("{}, or a new file", kSchema));
  }
  if (first != fmt::format("{} {}", kSchema, key))
    throw ConfigError({file, 1, 1, ""}, "is of another search", "the same job, axes and profile, or a new file");
  SearchRecord record;
  int line = 0;
  while (true) {
    const std::size_t end = text.find('\n', record.whole_bytes);
    if (end == std::string_view::npos) return record;  // a line that was cut off is left out
    const std::string_view content = text.substr(record.whole_bytes, end - record.whole_bytes);
    record.whole_bytes = end + 1;
    if (++line == 1) continue;
    const std::size_t seal = content.rfind(' ');
    std::string_view rest = content.substr(0, seal);
    const auto number = at(take_number(rest));
    const std::int64_t verdict = take_number(rest);
    const std::int64_t step = take_number(rest);
    const std::int64_t peak = take_number(rest);
    const std::int64_t outside = take_number(rest);
    const JudgedPlan plan{
        verdict == 0 ? Verdict::kSimulated : Verdict::kDoesNotFit, Time::ns(step), Bytes(peak), Bytes(outside)};
    const std::string figures = figures_of(number, plan);
    const bool is_plan =
        std::min({step, peak, outside}) >= 0 && (verdict == 0 || verdict == 1) && content.substr(0, seal) == figures;
    if (!is_plan || seal == std::string_view::npos || content.substr(seal + 1) != seal_of(figures, key)) {
      throw ConfigError({file, line, 1, ""}, is_plan ? "was edited: its hash does not fit" : "is no judged plan",
          "a line as --resume wrote it; without it the plan is judged again");
    }
    record.known.emplace(number, plan);
  }
}

std::string search_key(const std::vector<JobVariant>& variants, const MemoryTerms& terms) {
  std::string text;
  for (const JobVariant& variant : variants) {
    const auto& [job, space] = variant;
    const Cluster& c = job.cluster;
    text += fmt::format("{} {} {} {} {} {}\n", job.model.name, job.model.parameters(),
        job.model.training_flops_per_sequence(space.base.batch.sequence).count(), c.spec, terms.max_memory,
        terms.confidence);
    text += fmt::format("{} {} {} {} {} {} {} {} {}\n", c.gpu.memory.count(), c.gpu.peak_bf16.value(),
        c.gpu.memory_bandwidth.value(), c.node.gpus, c.node.gpu_link.value(), c.node.nics, c.node.nic_rate.value(),
        c.network.oversubscription, c.degraded.size());
    if (c.routes)
      for (const Wire& wire : c.routes->topology().wires)
        text += fmt::format("{} {} {} {}\n", wire.a, wire.b, wire.rate.value(), wire.latency.nanoseconds());
    text += to_text(to_json(cost_model(job).calibration()));
    for (const Plan& plan : plans_of(variant)) text += to_yaml(plan);
  }
  return Fingerprint().add(text).hex();
}

SearchState::SearchState(const std::string& path, const std::string& key) : key_(key) {
  std::error_code ignored;
  const bool is_there = std::filesystem::exists(path, ignored) && read(path);
  file_ = std::fopen(path.c_str(), is_there ? "a" : "w");
  if (file_ == nullptr) throw invalid_input("{}: cannot be written: {}", path, std::strerror(errno));
  if (!is_there) fmt::print(file_, "{} {}\n", kSchema, key);
}

SearchState::~SearchState() {
  if (file_ != nullptr) std::fclose(file_);
}

bool SearchState::read(const std::string& path) {
  const std::string text = read_text_file(path, kMaxStateBytes);
  if (text.empty()) return false;
  SearchRecord record = parse_search_state(text, path, key_);
  known_ = std::move(record.known);
  // What goes on being written follows on a line of its own.
  if (record.whole_bytes < text.size()) std::filesystem::resize_file(path, record.whole_bytes);
  return record.whole_bytes > 0;
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
    if (known_.contains(number) || !written_.insert(number).second) return;
    const std::string figures = figures_of(number, plan);
    fmt::print(file_, "{} {}\n", figures, seal_of(figures, key_));
  };
  return memory;
}

}
