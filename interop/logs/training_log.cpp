// A trainer's line is known by words that no other writes; numbers are found behind their names, so
// that columns may come and go between versions. Figures of steps are medians without the first
// quarter, in which caches fill and kernels are chosen.
#include "interop/logs/training_log.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <regex>
#include <sstream>

#include "sim/base/error.h"
#include "sim/base/lookup.h"
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
    case 'K': times = 1e3; break;
    case 'M': times = 1e6; break;
    case 'B':
    case 'G': times = 1e9; break;
    default: break;
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
  values.erase(values.begin(), values.begin() + (values.size() / 4));
  return quartiles(std::move(values)).median;
}

// A figure that a line may have, and where it goes.
struct Figure {
  std::regex form;
  std::vector<double> Series::*series = nullptr;       // where above 0
  std::optional<double> TrainingLog::*most = nullptr;  // the most of any line
  double unit = 1;
  bool is_rate = false;  // 1 over it
};

struct Format {
  const char* name;
  std::vector<std::regex> signs;  // a step's line has one of them
  std::vector<Figure> figures;
};

const std::vector<Format>& formats() {
  constexpr const char* kElapsed = "elapsed time per iteration \\(ms\\): *" FORESHARD_NUMBER;
  constexpr const char* kPerIteration = "time_per_iteration_ms: *" FORESHARD_NUMBER;
  constexpr const char* kSteps = "'train_steps_per_second': *'?" FORESHARD_NUMBER;
  // "10/100 [00:35<05:10,  3.45s/it]"
  constexpr const char* kSlow = "[0-9]+/[0-9]+ \\[[^\\]]*?" FORESHARD_NUMBER "s/it";
  constexpr const char* kQuick = "[0-9]+/[0-9]+ \\[[^\\]]*?" FORESHARD_NUMBER "it/s";
  static const std::vector<Format> kFormats = {
      {"torchtitan", {pattern("step: *" FORESHARD_NUMBER " +loss:")},
          {{pattern("(?:tps|wps): *" FORESHARD_NUMBER), &Series::per_gpu},
              {pattern("memory: *" FORESHARD_NUMBER " ?GiB"), &Series::reserved, &TrainingLog::reserved_bytes, kGibi},
              {pattern("data_loading\\(%\\): *" FORESHARD_NUMBER), &Series::data, nullptr, 0.01}}},
      {"megatron", {pattern(kElapsed)}, {{pattern(kElapsed), &Series::step_s, nullptr, 1e-3}}},
      {"nanotron", {pattern(kPerIteration)},
          {{pattern(kPerIteration), &Series::step_s, nullptr, 1e-3},
              {pattern("tokens_per_sec_per_gpu: *" FORESHARD_NUMBER), &Series::per_gpu}}},
      {"trainer", {pattern(kSteps)},
          {{pattern(kSteps), &Series::step_s, nullptr, 1, true},
              {pattern("'train_tokens_per_second(?:_per_gpu)?': *'?" FORESHARD_NUMBER), &Series::per_gpu}}},
      {"tqdm", {pattern(kSlow), pattern(kQuick)},
          {{pattern(kSlow), &Series::step_s}, {pattern(kQuick), &Series::step_s, nullptr, 1, true}}}};
  return kFormats;
}

void keep_most(std::optional<double>& most, const std::optional<double>& value, double unit) {
  if (value) most = std::max(most.value_or(0), *value * unit);
}

bool read_step(const Format& format, const std::string& line, TrainingLog& log, Series& series) {
  const auto says = [&](const std::regex& sign) { return behind(line, sign).has_value(); };
  if (std::ranges::none_of(format.signs, says)) return false;
  for (const Figure& figure : format.figures) {
    const std::optional<double> value = behind(line, figure.form);
    if (figure.most != nullptr) keep_most(log.*figure.most, value, figure.unit);
    if (!value || *value <= 0) continue;
    (series.*figure.series).push_back(figure.is_rate ? 1 / *value : *value * figure.unit);
  }
  ++log.steps;
  return true;
}

double bytes(const std::smatch& match) {
  const double value = number_in(match[1].str()).value_or(0);
  const std::string unit = match[2].str();
  return value * (unit == "GiB" ? kGibi : unit == "MiB" ? kMebi : 1024);
}

std::optional<OutOfMemory> read_out_of_memory(const std::string& line) {
#define FORESHARD_BYTES "([0-9.]+) ?([KMG]iB)"
  static const std::regex tried = pattern("out of memory\\. Tried to allocate " FORESHARD_BYTES);
  static const std::regex total = pattern("total capacity of " FORESHARD_BYTES);
  static const std::regex early_total = pattern("; " FORESHARD_BYTES " total capacity");
  static const std::regex free = pattern("of which " FORESHARD_BYTES " is free");
  static const std::regex early_free = pattern("allocated; " FORESHARD_BYTES " free");
  static const std::regex allocated = pattern(FORESHARD_BYTES " is allocated by PyTorch");
  static const std::regex early_allocated = pattern(FORESHARD_BYTES " already allocated");
  static const std::regex early_held = pattern(FORESHARD_BYTES " reserved in total");
  static const std::regex early_cached = pattern(FORESHARD_BYTES " cached");
  static const std::regex unused = pattern(FORESHARD_BYTES " is reserved by PyTorch but unalloc");
  static const std::regex own = pattern("this process has " FORESHARD_BYTES);
  static const std::regex process = pattern("Process [0-9]+ has " FORESHARD_BYTES " memory in use");
#undef FORESHARD_BYTES
  std::smatch match;
  if (!std::regex_search(line, match, tried)) return std::nullopt;
  OutOfMemory found = {.tried = bytes(match)};
  const auto read = [&](std::initializer_list<const std::regex*> forms) -> std::optional<double> {
    for (const std::regex* form : forms)
      if (std::regex_search(line, match, *form)) return bytes(match);
    return std::nullopt;
  };
  found.capacity = read({&total, &early_total});
  found.free = read({&free, &early_free});
  found.allocated = read({&allocated, &early_allocated});
  found.reserved_unallocated = read({&unused});
  std::vector<double> processes;
  for (std::sregex_iterator each(line.begin(), line.end(), process), end; each != end; ++each)
    processes.push_back(bytes(*each));
  // A container does not know its own by number.
  if (!read({&own}) && !processes.empty()) {
    const double pytorch = found.allocated.value_or(0) + found.reserved_unallocated.value_or(0);
    processes.erase(std::ranges::min_element(processes, {}, [&](double used) { return std::abs(used - pytorch); }));
  }
  found.others = std::accumulate(processes.begin(), processes.end(), 0.0);
  // PyTorch before 2.1 names no processes: what is neither free, nor its own, nor a context and its libraries. Until
  // 1.3 it said what it had cached besides.
  const auto cached = read({&early_cached}), held = read({&early_held});
  if (cached || held) {
    const double own_bytes = found.allocated.value_or(0), all = held ? *held : own_bytes + *cached;
    found.reserved_unallocated = std::max(0.0, all - own_bytes);
    found.others = std::max(0.0, found.capacity.value_or(0) - found.free.value_or(0) - all - kGibi);
  }
  return found;
}

void read_other(const std::string& line, int number, TrainingLog& log) {
  static const std::regex allocated = pattern("max allocated: *" FORESHARD_NUMBER);
  static const std::regex reserved = pattern("max reserved: *" FORESHARD_NUMBER);
  if (contains(line, "memory (MB)")) {  // Megatron's
    keep_most(log.memory_bytes, behind(line, allocated), kMebi);
    keep_most(log.reserved_bytes, behind(line, reserved), kMebi);
  }
  static const std::regex retries = pattern("([0-9]+) (?:CUDA memory )?alloc(?:ation)?[_ ]retries");
  static const std::regex flushes = pattern("([0-9]+) pytorch allocator cache flushes");
  static const std::regex parameters = pattern(
      "size: *([0-9,]+) total parameters|(?:Number of (?:trainable )?parameters|total number "
      "of parameters)[^0-9]*([0-9,]{7,})");
  for (const std::regex* form : {&retries, &flushes})
    if (const auto count = behind(line, *form)) log.retries = log.retries.value_or(0) + *count;
  std::smatch match;
  if (!log.parameters && std::regex_search(line, match, parameters)) {
    log.parameters = number_in(match[1].matched ? match[1].str() : match[2].str());
    log.parameters_line = number;
  }
  if (auto memory = read_out_of_memory(line)) {
    memory->line = number;
    // It speaks of fragments whatever happened: its figures count, not its words.
    static const std::regex message =
        pattern("\\. Tried to allocate.*(unallocated\\.|free\\.|in use\\.|\\)|fragmentation\\.|CONF)");
    std::smatch said;
    if (const std::size_t at = log.words.find(line); at != std::string::npos && std::regex_search(line, said, message))
      log.words.erase(at + said.prefix().str().size(), said.str().size());
    log.out_of_memory = std::move(memory);
  }
}
#undef FORESHARD_NUMBER

// Without what colours a terminal: ESC [ ... m, which torchtitan writes into files, too.
std::string uncoloured(std::string text) {
  std::size_t to = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::size_t end = text.compare(i, 2, "\x1b[") == 0 ? text.find_first_not_of("0123456789;", i + 2) : text.npos;
    if (end != text.npos && text[end] == 'm') i = end;
    else text[to++] = text[i];
  }
  text.resize(to);
  return text;
}

}

TrainingLog read_training_log(const std::string& text) {
  constexpr std::size_t kMostWords = 256 * 1024, kLongest = 4096;
  TrainingLog log;
  Series series;
  log.words = text.substr(0, kMostWords);
  std::string spread = uncoloured(text);
  std::ranges::replace(spread, '\r', '\n');  // a bar is drawn over itself
  std::istringstream lines(spread);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    line.resize(std::min(line.size(), kLongest));
    read_other(line, number, log);
    for (const Format& format : formats()) {
      if (!read_step(format, line, log, series)) continue;
      // The Trainer's summary is of the whole run: better than its bar.
      if (log.trainer.empty() || std::string_view(format.name) == "trainer") {
        if (log.trainer == "tqdm") series.step_s.erase(series.step_s.begin(), series.step_s.end() - 1);
        log.trainer = format.name;
      }
      break;
    }
  }
  log.step_s = usual(series.step_s);
  log.tokens_per_s_per_gpu = usual(series.per_gpu);
  log.tokens_per_s = usual(series.all);
  if (const auto share = usual(series.data); share && log.step_s) log.data_s = *share * *log.step_s;
  if (series.reserved.size() >= 8)
    log.memory_growth_bytes = series.reserved.back() - series.reserved[series.reserved.size() / 4];
  return log;
}

// Longer logs are read by their end of interest: cut them first.
constexpr std::size_t kMostBytes = std::size_t{64} << 20;

TrainingLog read_training_log_file(const std::filesystem::path& file) {
  TrainingLog log = read_training_log(read_text_file(file, kMostBytes));
  if (log.steps == 0 && !log.out_of_memory && !log.retries) {
    throw ConfigError({file.string(), 1, 0, ""}, "has no line of a step that is known",
        "torchtitan's \"step: 10  loss: ... tps: ...\", Trainer's 'train_steps_per_second', a bar with s/it, "
        "Megatron's \"elapsed time per iteration (ms)\", nanotron's time_per_iteration_ms, or PyTorch's out of memory "
        "message");
  }
  return log;
}

}
