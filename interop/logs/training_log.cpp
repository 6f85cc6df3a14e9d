// A trainer's line is known by words that no other writes; numbers are found behind their names, so
// that columns may come and go between versions. Figures of steps are medians without the first
// quarter, in which caches fill and kernels are chosen.
#include "interop/logs/training_log.h"

#include <algorithm>
#include <regex>
#include <sstream>

#include "sim/base/error.h"
#include "sim/base/quantile.h"
#include "sim/base/text_file.h"

namespace foreshard {
namespace {

constexpr double kMebi = 1024.0 * 1024, kGibi = 1024 * kMebi;

std::optional<double> number_in(std::string text) {
  text.erase(std::remove(text.begin(), text.end(), ','), text.end());
  if (text.empty()) return std::nullopt;
  double times = 1;
  switch (text.back()) {
    case 'K':
      times = 1e3;
      break;
    case 'M':
      times = 1e6;
      break;
    case 'B':
    case 'G':
      times = 1e9;
      break;
    default:
      break;
  }
  try {
    return std::stod(text) * times;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

// The number behind a name, the name being a regular expression.
std::optional<double> behind(const std::string& line, const std::regex& name_and_number) {
  std::smatch match;
  if (!std::regex_search(line, match, name_and_number)) return std::nullopt;
  return number_in(match[1].str());
}

std::regex pattern(const char* text) { return std::regex(text, std::regex::optimize); }
#define FORESHARD_NUMBER "([0-9][0-9.,]*(?:e[+-]?[0-9]+)?[KMBG]?)"

struct Series {
  std::vector<double> step_s, per_gpu, all, data, reserved;
};

std::optional<double> usual(std::vector<double> values) {
  if (values.empty()) return std::nullopt;
  values.erase(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 4));
  return quartiles(std::move(values)).median;
}

void keep_most(std::optional<double>& most, const std::optional<double>& value, double unit) {
  if (value) most = std::max(most.value_or(0), *value * unit);
}

void add(std::vector<double>& series, const std::optional<double>& value, double unit) {
  if (value && *value > 0) series.push_back(*value * unit);
}

bool read_torchtitan(const std::string& line, TrainingLog& log, Series& series) {
  static const std::regex step = pattern("step: *" FORESHARD_NUMBER " +loss:");
  static const std::regex rate = pattern("(?:tps|wps): *" FORESHARD_NUMBER);
  static const std::regex memory = pattern("memory: *" FORESHARD_NUMBER " ?GiB");
  static const std::regex data = pattern("data_loading\\(%\\): *" FORESHARD_NUMBER);
  if (!std::regex_search(line, step)) return false;
  add(series.per_gpu, behind(line, rate), 1);
  add(series.reserved, behind(line, memory), kGibi);
  keep_most(log.reserved_bytes, behind(line, memory), kGibi);
  add(series.data, behind(line, data), 0.01);
  ++log.steps;
  return true;
}

bool read_megatron(const std::string& line, TrainingLog& log, Series& series) {
  static const std::regex time = pattern("elapsed time per iteration \\(ms\\): *" FORESHARD_NUMBER);
  static const std::regex allocated = pattern("max allocated: *" FORESHARD_NUMBER);
  static const std::regex reserved = pattern("max reserved: *" FORESHARD_NUMBER);
  if (line.find("memory (MB)") != std::string::npos) {
    keep_most(log.memory_bytes, behind(line, allocated), kMebi);
    keep_most(log.reserved_bytes, behind(line, reserved), kMebi);
  }
  const std::optional<double> ms = behind(line, time);
  if (!ms) return false;
  add(series.step_s, ms, 1e-3);
  ++log.steps;
  return true;
}

bool read_nanotron(const std::string& line, TrainingLog& log, Series& series) {
  static const std::regex time = pattern("time_per_iteration_ms: *" FORESHARD_NUMBER);
  static const std::regex rate = pattern("tokens_per_sec_per_gpu: *" FORESHARD_NUMBER);
  const std::optional<double> ms = behind(line, time);
  if (!ms) return false;
  add(series.step_s, ms, 1e-3);
  add(series.per_gpu, behind(line, rate), 1);
  ++log.steps;
  return true;
}

bool read_trainer(const std::string& line, TrainingLog& log, Series& series) {
  static const std::regex rate = pattern("'train_steps_per_second': *'?" FORESHARD_NUMBER);
  static const std::regex tokens =
      pattern("'train_tokens_per_second(?:_per_gpu)?': *'?" FORESHARD_NUMBER);
  const std::optional<double> per_second = behind(line, rate);
  if (!per_second) return false;
  if (*per_second > 0) series.step_s.push_back(1 / *per_second);
  add(series.per_gpu, behind(line, tokens), 1);
  ++log.steps;
  return true;
}

// "10/100 [00:35<05:10,  3.45s/it]"
bool read_bar(const std::string& line, TrainingLog& log, Series& series) {
  static const std::regex slow = pattern("[0-9]+/[0-9]+ \\[[^\\]]*?" FORESHARD_NUMBER "s/it");
  static const std::regex quick = pattern("[0-9]+/[0-9]+ \\[[^\\]]*?" FORESHARD_NUMBER "it/s");
  const std::optional<double> seconds = behind(line, slow);
  const std::optional<double> rate = behind(line, quick);
  if (!seconds && !rate) return false;
  if (seconds) add(series.step_s, seconds, 1);
  if (rate && *rate > 0) series.step_s.push_back(1 / *rate);
  ++log.steps;
  return true;
}

double bytes(const std::smatch& match, std::size_t at) {
  const double value = number_in(match[at].str()).value_or(0);
  const std::string unit = match[at + 1].str();
  return value * (unit == "GiB" ? kGibi : unit == "MiB" ? kMebi : 1024);
}

std::optional<OutOfMemory> read_out_of_memory(const std::string& line) {
#define FORESHARD_BYTES "([0-9.]+) ?([KMG]iB)"
  static const std::regex tried = pattern("out of memory\\. Tried to allocate " FORESHARD_BYTES);
  static const std::regex total = pattern("total capacity of " FORESHARD_BYTES);
  static const std::regex early_total = pattern("; " FORESHARD_BYTES " total capacity");
  static const std::regex free = pattern("of which " FORESHARD_BYTES " is free");
  static const std::regex allocated = pattern(FORESHARD_BYTES " is allocated by PyTorch");
  static const std::regex early_allocated = pattern(FORESHARD_BYTES " already allocated");
  static const std::regex unused = pattern(FORESHARD_BYTES " is reserved by PyTorch but unalloc");
#undef FORESHARD_BYTES
  std::smatch match;
  if (!std::regex_search(line, match, tried)) return std::nullopt;
  OutOfMemory found;
  found.tried = bytes(match, 1);
  const auto read = [&](std::initializer_list<const std::regex*> forms) -> std::optional<double> {
    for (const std::regex* form : forms) {
      if (std::regex_search(line, match, *form)) return bytes(match, 1);
    }
    return std::nullopt;
  };
  found.capacity = read({&total, &early_total});
  found.free = read({&free});
  found.allocated = read({&allocated, &early_allocated});
  found.reserved_unallocated = read({&unused});
  return found;
}
#undef FORESHARD_NUMBER

void read_other(const std::string& line, int number, TrainingLog& log) {
  static const std::regex retries = pattern("([0-9]+) (?:CUDA memory )?alloc(?:ation)?[_ ]retries");
  static const std::regex flushes = pattern("([0-9]+) pytorch allocator cache flushes");
  static const std::regex parameters = pattern(
      "size: *([0-9,]+) total parameters|(?:Number of (?:trainable )?parameters|total number "
      "of parameters)[^0-9]*([0-9,]{7,})");
  for (const std::regex* form : {&retries, &flushes}) {
    if (const auto count = behind(line, *form)) log.retries = log.retries.value_or(0) + *count;
  }
  std::smatch match;
  if (!log.parameters && std::regex_search(line, match, parameters)) {
    log.parameters = number_in(match[1].matched ? match[1].str() : match[2].str());
    log.parameters_line = number;
  }
  if (auto memory = read_out_of_memory(line)) {
    memory->line = number;
    log.out_of_memory = std::move(memory);
  }
}

}  // namespace

TrainingLog read_training_log(const std::string& text) {
  constexpr std::size_t kMostWords = 256 * 1024, kLongest = 4096;
  struct Format {
    const char* name;
    bool (*read)(const std::string&, TrainingLog&, Series&);
  };
  static constexpr Format kFormats[] = {{"torchtitan", read_torchtitan},
                                        {"megatron", read_megatron},
                                        {"nanotron", read_nanotron},
                                        {"trainer", read_trainer},
                                        {"tqdm", read_bar}};
  TrainingLog log;
  Series series;
  log.words = text.substr(0, kMostWords);
  std::string spread = text;
  std::ranges::replace(spread, '\r', '\n');  // a bar is drawn over itself
  std::istringstream lines(spread);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    line.resize(std::min(line.size(), kLongest));
    read_other(line, number, log);
    for (const Format& format : kFormats) {
      if (!format.read(line, log, series)) continue;
      // The Trainer's summary is of the whole run: better than its bar.
      if (log.trainer.empty() || std::string_view(format.name) == "trainer") {
        if (log.trainer == "tqdm")
          series.step_s.erase(series.step_s.begin(), series.step_s.end() - 1);
        log.trainer = format.name;
      }
      break;
    }
  }
  log.step_s = usual(series.step_s);
  log.tokens_per_s_per_gpu = usual(series.per_gpu);
  log.tokens_per_s = usual(series.all);
  if (const auto share = usual(series.data); share && log.step_s) log.data_s = *share * *log.step_s;
  if (series.reserved.size() >= 8) {
    log.memory_growth_bytes = series.reserved.back() - series.reserved[series.reserved.size() / 4];
  }
  return log;
}

// Longer logs are read by their end of interest: cut them first.
constexpr std::size_t kMostBytes = std::size_t{64} << 20;

TrainingLog read_training_log_file(const std::filesystem::path& file) {
  TrainingLog log = read_training_log(read_text_file(file, kMostBytes));
  if (log.steps == 0 && !log.out_of_memory && !log.retries) {
    throw ConfigError({file.string(), 1, 0, ""}, "has no line of a step that is known",
                      "torchtitan's \"step: 10  loss: ... tps: ...\", Trainer's "
                      "'train_steps_per_second', a bar with s/it, Megatron's \"elapsed time per "
                      "iteration (ms)\", nanotron's time_per_iteration_ms, or PyTorch's out of "
                      "memory message");
  }
  return log;
}

}  // namespace foreshard
