// The likelihood of a severity is the product over what was measured of Student's t with 4 degrees of freedom: one
// figure that something else has changed besides does not rule a cause out. A cause is the mean of those of its
// severities that change what was measured. Two causes at once change what each of them changes: ratios multiply, parts
// of the step add up; either of them gets half of what the two are worth. Beside the causes stands one that nobody
// knows, which makes every figure equally likely over a wide range: where it wins, nothing explains what was measured.
// A job that ran out of memory says what it needed at the least: any forecast above that is as likely. A cause that
// changes nothing of what was measured is none, unless words speak for it.
#include "reports/diagnose/diagnosis.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <span>

#include "reports/diagnose/threads.h"
#include "sim/base/config.h"
#include "sim/base/embedded.h"
#include "sim/base/error.h"

namespace foreshard {

std::span<const EmbeddedFile> diagnosis_files();

namespace {

constexpr double kAsForecast = 30;  // of a hundred jobs that somebody asks about, nothing is wrong
constexpr const char* kNothing = "as_forecast";
constexpr double kMoreThreads = 20;  // of each cause, that nobody has published
constexpr double kPartSd = 0.03;     // of the step, of parts of it
constexpr double kImpossible = 0.1;
constexpr double kAlsoAnother = 0.3;  // assumed: of jobs with a cause, how many have a second one
constexpr double kTold = 3;           // times as likely: something was said
constexpr double kMostWords = 2000;   // that signs of one cause may multiply to

struct Sign {
  std::regex pattern;
  double times = 1;
};
struct KnownCause {
  std::string name, text, test, fix;
  std::vector<Sign> signs;
};

// What was noticed, where and when: it speaks for causes and against others.
struct Symptom {
  std::regex words;
  std::map<std::string, double> likelier;
};
struct Known {
  std::vector<KnownCause> causes;
  std::vector<Symptom> symptoms;
};

Known read_known() {
  const EmbeddedFile& file = diagnosis_files().front();
  const ConfigNode root = parse_yaml(file.content, file.path);
  root.allow_only({"symptoms", "causes"});
  Known known;
  std::vector<KnownCause>& causes = known.causes;
  const ConfigNode list = root.at("causes"), symptoms = root.at("symptoms");
  for (const ConfigNode& node : list.elements()) {
    node.allow_only({"name", "text", "test", "fix", "signs"});
    KnownCause& cause = causes.emplace_back();
    cause.name = node.at("name").as_string();
    cause.text = node.at("text").as_string();
    cause.test = node.at("test").as_string();
    cause.fix = node.at("fix").as_string();
    const ConfigNode signs = node.at("signs");
    for (const ConfigNode& sign : signs.elements()) {
      const std::span<const ConfigNode> parts = sign.elements();
      if (parts.size() != 2) throw sign.error("is no sign", "[PATTERN, TIMES]");
      cause.signs.push_back({std::regex(parts[0].as_string(), std::regex::optimize), parts[1].as_double(1, 1000)});
    }
  }
  for (const ConfigNode& node : symptoms.elements()) {
    node.allow_only({"words", "likelier"});
    Symptom& symptom =
        known.symptoms.emplace_back(Symptom{std::regex(node.at("words").as_string(), std::regex::optimize), {}});
    const ConfigNode likelier = node.at("likelier");
    for (const std::string& name : likelier.keys()) {
      if (name != kNothing && std::ranges::find(causes, name, &KnownCause::name) == causes.end())
        throw node.error("speaks for " + name, "a name of causes");
      symptom.likelier[name] = likelier.at(name).as_double(0.01, 100);
    }
  }
  return known;
}

const Known& known() {
  static const Known all = read_known();
  return all;
}

bool is_there(const std::regex& pattern, const std::vector<std::string>& lines) {
  return std::ranges::any_of(
      lines, [&](const std::string& line) { return std::regex_search(line, pattern); });
}

// How much likelier the words make the cause; short lines keep a pattern from reaching too far.
double likelihood_of_words(const KnownCause& cause, const std::vector<std::string>& lines) {
  double product = 1;
  for (const Sign& sign : cause.signs)
    if (is_there(sign.pattern, lines)) product *= sign.times;
  return std::min(product, kMostWords);
}

std::vector<std::string> lines_of(const std::string& words) {
  constexpr std::size_t kLongest = 600;  // std::regex recurses over what it reads
  std::vector<std::string> lines(1);
  for (const char letter : words)
    if (letter == '\n' || lines.back().size() >= kLongest) lines.emplace_back();
    else lines.back() += static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  return lines;
}

double log_student(double z) { return -2.5 * std::log1p(z * z / 4); }

struct Part {
  std::optional<double> Signals::*field;
  double sd;      // of the logarithm, or of the share of the step
  double widest;  // of the same, that a cause nobody knows may make of it
  bool is_share;
  bool is_least = false;
};

std::vector<Part> parts_of(double step_log_sd, double memory_log_sd, bool ran_out) {
  std::vector<Part> parts = {{&Signals::step, step_log_sd, 1.5, false},
      {&Signals::memory, memory_log_sd, 1, false, ran_out}, {&Signals::reserved, 2 * memory_log_sd, 1, false, ran_out},
      {&Signals::in_use, 2 * memory_log_sd, 1, false, ran_out}, {&Signals::retries, 0.3, 3, false}};
  for (std::optional<double> Signals::*field : {&Signals::compute, &Signals::communication, &Signals::exposed,
           &Signals::waiting, &Signals::idle, &Signals::data})
    parts.push_back({field, kPartSd, 1, true});
  return parts;
}

// Of what both have: how far apart, in standard deviations. `scale`: the measured step.
std::optional<double> distance(const Part& part, const Signals& is, const Signals& would, double scale) {
  const std::optional<double>&a = is.*part.field, &b = would.*part.field;
  if (!a || !b) return std::nullopt;
  if (part.is_least && *b >= *a) return 0;
  if (part.is_share) {
    // Parts of a long time are known as shares of it only.
    return (*a - *b) / (part.sd * scale + 0.1 * std::max(*a, *b));
  }
  if (part.field == &Signals::retries) return (std::log1p(*a) - std::log1p(*b)) / part.sd;
  return std::log(*a / *b) / part.sd;
}

// `log_of`: of a part that is so many standard deviations away.
template <typename LogOf>
double sum_of_logs(const std::vector<Part>& parts, const Signals& is, const Signals& would, LogOf log_of) {
  const double scale = is.step.value_or(would.step.value_or(1));
  double sum = 0;
  for (const Part& part : parts)
    if (const auto z = distance(part, is, would, scale)) sum += log_of(part, *z);
  return sum;
}

double log_likelihood(const std::vector<Part>& parts, const Signals& is, const Signals& would) {
  return sum_of_logs(
      parts, is, would, [](const Part&, double z) { return log_student(z); });
}

// Two causes at once, of which the forecasts are known alone.
Signals both(const std::vector<Part>& parts, const Signals& right, const Signals& a, const Signals& b) {
  Signals result;
  for (const Part& part : parts) {
    const std::optional<double>&base = right.*part.field, &one = a.*part.field, &other = b.*part.field;
    if (!base || !one || !other) continue;
    const bool adds = part.is_share || part.field == &Signals::retries || *base <= 0;
    result.*part.field = adds ? std::max(0.0, *one + *other - *base) : *one * *other / *base;
  }
  return result;
}

// Every figure is as forecast, or anywhere within +- widest, as likely one as the other.
double log_likelihood_of_unknown(const std::vector<Part>& parts, const Signals& is, const Signals& would) {
  return sum_of_logs(
      parts, is, would,
      [](const Part& part, double z) { return std::log((std::exp(log_student(z)) + part.sd / part.widest) / 2); });
}

// Whether the cause changes any of what was measured, by one in a hundred.
bool changes(const std::vector<Part>& parts, const Signals& is, const Signals& would, const Signals& right) {
  return std::ranges::any_of(
      parts,
      [&](const Part& part) {
        const std::optional<double>&a = would.*part.field, &b = right.*part.field;
        if (!(is.*part.field) || !a || !b) return false;
        return std::abs(*a - *b) > 0.01 * (part.is_share ? right.step.value_or(1) : *b);
      });
}

double mean_likelihood(const std::vector<double>& logs, double most) {
  double sum = 0;
  for (const double log : logs) sum += std::exp(log - most);
  return sum / as_double(logs.size());
}

}

void Signals::take(const StepMetrics& measured) {
  step = measured.seconds;
  compute = measured.compute;
  communication = measured.communication;
  exposed = measured.exposed_communication;
  waiting = measured.waiting;
  idle = measured.idle;
}

Diagnosis diagnose(
    const Measured& measured, const std::vector<CauseForecast>& forecasts, double step_log_sd, double memory_log_sd) {
  const std::vector<Part> parts = parts_of(step_log_sd, memory_log_sd, measured.ran_out);
  const bool has_figures = !forecasts.empty() && !(measured.signals == Signals());
  std::map<std::string, std::vector<double>> logs;  // by cause, of its severities
  std::map<std::pair<std::string, std::string>, std::vector<double>> logs_of_two;
  double most = -1e300;
  std::vector<bool> counts;  // forecasts that change something
  for (const CauseForecast& each : forecasts) {
    const double log = log_likelihood(parts, measured.signals, each.signals);
    std::vector<double>& of_cause = logs[each.cause];
    counts.push_back(changes(parts, measured.signals, each.signals, forecasts.front().signals));
    if (!counts.back() && each.cause != kNothing) continue;
    of_cause.push_back(log);
    most = std::max(most, log);
  }
  for (std::size_t i = 1; i < forecasts.size(); ++i) {
    for (std::size_t j = 1; j < i; ++j) {
      const CauseForecast &a = forecasts[j], &b = forecasts[i];
      if (a.cause == b.cause || !counts[i] || !counts[j]) continue;
      const Signals would = both(parts, forecasts.front().signals, a.signals, b.signals);
      const double log = log_likelihood(parts, measured.signals, would);
      logs_of_two[std::minmax(a.cause, b.cause)].push_back(log);
      most = std::max(most, log);
    }
  }
  const double unknown_log =
      forecasts.empty() ? 0 : log_likelihood_of_unknown(parts, measured.signals, forecasts.front().signals);
  most = forecasts.empty() ? 0 : std::max(most, unknown_log);
  const auto mean_of = [&](const std::string& cause) {
    if (forecasts.empty()) return 1.0;
    const auto found = logs.find(cause);
    // The plan cannot have it, or it changes nothing there, so far as is known.
    const bool is_open = found != logs.end() && !has_figures;
    if (found == logs.end() || found->second.empty()) return (is_open ? 1 : kImpossible) * std::exp(unknown_log - most);
    return mean_likelihood(found->second, most);
  };
  const std::vector<std::string> lines = lines_of(measured.said + '\n' + measured.words);
  Diagnosis diagnosis;
  bool has_words = false;
  std::map<std::string, std::size_t> index;
  std::vector<double> prior;  // with what words say
  LikeThreads like = like_threads(measured.said, measured.thread);
  double threads = 0;
  for (const KnownCause& cause : known().causes) {
    like.count[cause.name] += kMoreThreads;
    threads += like.count[cause.name];
  }
  // Figures say better what was noticed.
  std::map<std::string, double> noticed;
  if (!has_figures || measured.ran_out) {
    noticed = like.times;
    for (const Symptom& symptom : known().symptoms) {
      if (!is_there(symptom.words, lines)) continue;
      for (const auto& [name, times] : symptom.likelier) noticed.try_emplace(name, 1).first->second *= times;
    }
  }
  for (const KnownCause& cause : known().causes) {
    const double words = likelihood_of_words(cause, lines);
    const auto found = logs.find(cause.name);
    const bool is_none = has_figures && words <= 1 && found != logs.end() && found->second.empty();
    index[cause.name] = prior.size();
    const auto symptoms = noticed.find(cause.name);
    const double told = words * (symptoms == noticed.end() ? 1 : symptoms->second);
    has_words = has_words || words > 1 || told > kTold;
    prior.push_back(is_none ? 0 : 100 * like.count[cause.name] / threads * told);
    const double odds = prior.back() * mean_of(cause.name);
    diagnosis.causes.push_back({cause.name, cause.text, odds, cause.test, cause.fix, like.source[cause.name]});
  }
  for (const auto& [two, severities] : logs_of_two) {
    const std::size_t a = index.at(two.first), b = index.at(two.second);
    const double odds = kAlsoAnother * prior[a] * prior[b] / 100 * mean_likelihood(severities, most);
    diagnosis.causes[a].probability += odds / 2;
    diagnosis.causes[b].probability += odds / 2;
  }
  double total = sum_of<double>(diagnosis.causes, &DiagnosedCause::probability);
  // A plan that does not fit is memory's trouble, too.
  const double told = measured.ran_out && noticed.contains(kNothing) ? noticed.at(kNothing) : 1;
  const double nothing = forecasts.empty() ? 0 : kAsForecast * told * mean_of(kNothing);
  const double unknown = 3 * std::exp(unknown_log - most);
  total += nothing + unknown;
  for (DiagnosedCause& cause : diagnosis.causes) cause.probability /= total;
  diagnosis.as_forecast = nothing / total;
  std::ranges::stable_sort(
      diagnosis.causes, [](const auto& a, const auto& b) { return a.probability > b.probability; });
  diagnosis.explained = (has_figures || has_words) && unknown / total < 0.5;
  if (!forecasts.empty()) {
    const Signals& would = forecasts.front().signals;
    const auto ratio = [](const std::optional<double>& is, const std::optional<double>& was) {
      return is && was && *was > 0 ? std::optional<double>(*is / *was) : std::nullopt;
    };
    diagnosis.step_ratio = ratio(measured.signals.step, would.step);
    diagnosis.memory_ratio = ratio(measured.signals.memory, would.memory);
    if (!diagnosis.memory_ratio) diagnosis.memory_ratio = ratio(measured.signals.reserved, would.reserved);
    diagnosis.ran_out = measured.ran_out;
    if (measured.ran_out && diagnosis.memory_ratio < 1.0) diagnosis.memory_ratio.reset();
  }
  return diagnosis;
}

std::string diagnosis_text(const Diagnosis& diagnosis, Color color) {
  const Paint paint(color);
  std::vector<std::string> lines;
  std::string head;
  if (diagnosis.step_ratio) head += fmt::format("the step takes {:.2f} times its forecast", *diagnosis.step_ratio);
  if (diagnosis.memory_ratio) {
    head += fmt::format("{}memory is {}{:.2f} times its forecast", head.empty() ? "" : ", ",
        diagnosis.ran_out ? "at least " : "", *diagnosis.memory_ratio);
  }
  if (!head.empty()) lines.push_back(paint.bold(head));
  for (const std::string& finding : diagnosis.findings) lines.push_back("  " + finding);
  if (!diagnosis.explained) lines.push_back("no cause that is known explains what was measured");
  if (diagnosis.causes.empty() || diagnosis.as_forecast > diagnosis.causes.front().probability) {
    lines.push_back(fmt::format("as forecast, with a probability of {}: {}", percent_text(diagnosis.as_forecast),
        diagnosis.ran_out ? "so much does not fit" : "nothing is wrong"));
  }
  constexpr std::size_t kShown = 5;
  constexpr double kLeast = 0.01;
  for (std::size_t i = 0; i < std::min(kShown, diagnosis.causes.size()); ++i) {
    const DiagnosedCause& cause = diagnosis.causes[i];
    if (cause.probability < kLeast) break;
    lines.push_back(fmt::format("  {:>6}  {}", percent_text(cause.probability), cause.text));
    lines.push_back(fmt::format("          test: {}", cause.test));
    lines.push_back(fmt::format("          fix:  {}", cause.fix));
    if (!cause.like.empty()) lines.push_back(fmt::format("          like: {}", cause.like));
  }
  return fmt::format("{}\n", fmt::join(lines, "\n"));
}

Json to_json(const Diagnosis& diagnosis) {
  const auto number = [](const std::optional<double>& value) { return value ? Json(*value) : Json(); };
  Json causes = json_list(diagnosis.causes, [&](const DiagnosedCause& cause) -> Json {
    return {{"name", cause.name}, {"text", cause.text}, {"probability", cause.probability}, {"test", cause.test},
        {"fix", cause.fix}, {"like", cause.like}};
  });
  return {{"causes", std::move(causes)}, {"explained", diagnosis.explained}, {"as_forecast", diagnosis.as_forecast},
      {"step_ratio", number(diagnosis.step_ratio)}, {"memory_ratio", number(diagnosis.memory_ratio)},
      {"ran_out", diagnosis.ran_out}, {"findings", diagnosis.findings}};
}

}
