#include "reports/diagnose/threads.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <set>
#include <span>
#include <string_view>

#include "sim/base/embedded.h"
#include "sim/base/units.h"

namespace foreshard {

std::span<const EmbeddedFile> thread_files();

namespace {

// Of 174 threads, each by the others, and of 145 drawn later 0.1 to 0.4 are alike (docs/diagnose.md).
constexpr double kTemper = 0.2;
constexpr double kPriorThreads = 5;   // of every cause, that have a word as often as all have
constexpr double kMostOfAWord = 3;    // natural logarithm
constexpr double kPost = 60;          // words and pairs: a log's many say no more than a post's
constexpr double kLeastLikeness = 8;  // some two words that few threads have, or four that more have

constexpr std::string_view kFillers =
    " the a an of and to in is it on at by with for that this was as are be from i my we which after than when but not "
    "only each all or no so one two # ";

bool is_filler(const std::string& word) {
  return word.size() < 2 || kFillers.find(' ' + word + ' ') != std::string_view::npos;
}

std::string stem(std::string word) {
  if (word.size() > 5) {
    for (const std::string_view end : {"ions", "ing", "ion", "ed", "es", "s"}) {
      if (!word.ends_with(end)) continue;
      word.resize(word.size() - end.size());
      break;
    }
  }
  return word;
}

// Stems in order; a number is "#".
std::vector<std::string> stems_of(const std::string& text) {
  std::vector<std::string> stems;
  const auto kind = [](char letter) {
    const auto byte = static_cast<unsigned char>(letter);
    return std::isdigit(byte) ? 1 : std::isalpha(byte) || letter == '_' ? 2 : 0;
  };
  for (std::size_t start = 0, end = 0; start < text.size(); start = end) {
    const int of = kind(text[start]);
    while (end < text.size() && kind(text[end]) == of) ++end;
    if (of == 1) stems.emplace_back("#");
    if (of != 2) continue;
    std::string word = text.substr(start, end - start);
    std::ranges::transform(
        word, word.begin(), [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
    stems.push_back(stem(std::move(word)));
  }
  return stems;
}

using Features = std::set<std::string>;

Features features_of(const std::string& text) {
  const std::vector<std::string> stems = stems_of(text);
  Features features;
  for (std::size_t i = 0; i < stems.size(); ++i) {
    if (!is_filler(stems[i])) features.insert(stems[i]);
    if (i > 0) features.insert(stems[i - 1] + ' ' + stems[i]);
  }
  return features;
}

struct Thread {
  std::string source, cause;
  Features features;
};

std::vector<Thread> own_threads() {
  const EmbeddedFile& file = thread_files().front();
  std::vector<Thread> threads;
  for (const PublishedThread& thread : read_threads(parse_yaml(file.content, file.path)))
    threads.push_back({thread.source, thread.cause.as_string(), features_of(thread.said)});
  return threads;
}

}

std::vector<PublishedThread> read_threads(const ConfigNode& file) {
  std::vector<PublishedThread> threads;
  for (const ConfigNode& node : file.elements()) {
    node.allow_only({"source", "said", "cause", "found"});
    threads.push_back({node.at("source").as_string(), node.at("said").as_string(), node.at("cause")});
  }
  return threads;
}

LikeThreads like_threads(const std::string& words, const std::string& without) {
  static const std::vector<Thread> all = own_threads();
  const Features features = features_of(words);
  LikeThreads like;                                             // by cause
  std::map<std::string, std::map<std::string, double>> having;  // by feature and cause
  double count = 0;
  for (const Thread& thread : all) {
    if (thread.source == without) continue;
    ++count;
    ++like.count[thread.cause];
    for (const std::string& feature : thread.features)
      if (features.contains(feature)) ++having[feature][thread.cause];
  }
  std::map<std::string, double> share;  // of all threads, that have what is known: what two have at the least
  for (const auto& [feature, causes] : having) {
    double total = 0;
    for (const auto& [cause, number] : causes) total += number;
    if (total >= 2) share[feature] = (total + 0.5) / (count + 1);
  }
  const double temper = kTemper * std::min(1.0, kPost / std::max(1.0, as_double(share.size())));
  for (const auto& [cause, number] : like.count) {
    double log = 0;
    for (const auto& [feature, usual] : share) {
      const std::map<std::string, double>& causes = having.at(feature);
      const auto own = causes.find(cause);
      const double here = ((own == causes.end() ? 0 : own->second) + kPriorThreads * usual) / (number + kPriorThreads);
      log += std::clamp(std::log(here / usual), -kMostOfAWord, kMostOfAWord);
    }
    like.times[cause] = std::exp(temper * log);
  }
  std::map<std::string, double> most;
  for (const Thread& thread : all) {
    if (thread.source == without) continue;
    double likeness = 0;
    for (const std::string& feature : thread.features) {
      const auto usual = share.find(feature);
      if (usual != share.end()) likeness -= std::log(usual->second);
    }
    double& best = most.try_emplace(thread.cause, kLeastLikeness).first->second;
    if (likeness <= best) continue;
    best = likeness;
    like.source[thread.cause] = thread.source;
  }
  return like;
}

}
