// A shell script that calls a trainer, as the file that the trainer would read: `--key value` is a
// line's key, on its own line of the script.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <nlohmann/json.hpp>

#include "interop/frameworks/frameworks.h"
#include "sim/base/lookup.h"

namespace foreshard {
namespace {

struct ShellWord {
  std::string text;
  std::int64_t line = 0;
};

constexpr std::string_view kEnd = ";";  // of a command

// Without comments; a backslash at the end of a line continues it.
std::vector<ShellWord> shell_words(std::string_view script) {
  std::vector<ShellWord> words;
  ShellWord word;
  char quote = 0;
  std::int64_t line = 0, nested = 0;  // `$(expr 16 / 2)` is a word
  const auto end = [&] {
    if (!word.text.empty()) words.push_back(std::exchange(word, {}));
  };
  for (std::size_t i = 0; i < script.size(); ++i) {
    const char c = script[i];
    if (c == '\n') ++line;
    if (quote != 0) {
      if (c == quote) quote = 0;
      else word.text += c;
    } else if (nested == 0 && (std::isspace(static_cast<unsigned char>(c)) != 0)) {
      end();
      if (c == '\n') words.push_back({std::string(kEnd), line});
    } else if (c == '#' && word.text.empty()) {
      while (i + 1 < script.size() && script[i + 1] != '\n') ++i;
    } else if (c == '\\' && i + 1 < script.size()) {
      if (script[++i] != '\n') {
        word.text += script[i];
      } else {
        ++line;
        end();
      }
    } else {
      if (word.text.empty()) word.line = line;
      nested += c == '(' ? 1 : c == ')' ? -1 : 0;
      if (c == '"' || c == '\'') quote = c;
      else word.text += c;
    }
  }
  end();
  return words;
}

// As YAML: what the shell would fill in nobody knows here.
std::string shell_value(const ShellWord& word) {
  const std::string& text = word.text;
  if (contains(text, "$")) return "auto";
  const bool is_json = text.starts_with('{') || text.starts_with('[');
  const bool is_plain = std::ranges::all_of(text, [](unsigned char c) {
    return std::isalnum(c) != 0 || contains(std::string_view("_.+-/"), static_cast<char>(c));
  });
  return is_json || (is_plain && !text.empty()) ? text : Json(text).dump();
}

}

ConfigNode read_trainer_script(std::string_view text, const std::string& file) {
  const std::vector<ShellWord> words = shell_words(text);
  static constexpr std::string_view kPrograms[] = {"swift", "trl", "llamafactory-cli"};
  static constexpr std::string_view kTrain[] = {"sft", "pt", "rlhf", "dpo", "kto", "reward", "train"};
  std::map<std::string, std::pair<std::int64_t, std::string>> found;
  bool runs = false;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i].text;
    if (word == kEnd) {
      if (!found.empty()) break;
      runs = false;
    } else if (!runs && i > 0 && contains(kPrograms, words[i - 1].text) && contains(kTrain, word)) {
      runs = true;
      if (word == "rlhf") found["rlhf_type"] = {words[i].line, "dpo"};
      if (words[i - 1].text == "swift") found.try_emplace("tuner_type", words[i].line, "lora");
      if (words[i - 1].text == "trl") found["stage"] = {words[i].line, word};
    } else if (!runs) {
      runs = word.ends_with(".py") || word.starts_with("verl.trainer.");
    } else if (const std::size_t equal = word.find('='); !word.starts_with("--") && equal != std::string::npos) {
      found[word.substr(word.front() == '+' ? 1 : 0, equal - (word.front() == '+' ? 1 : 0))] = {
          words[i].line, shell_value({word.substr(equal + 1)})};  // Hydra's
    } else if (word.starts_with("--")) {
      std::string key = word.substr(2), value = "true";
      if (const std::size_t equal = key.find('='); equal != std::string::npos) {
        value = shell_value({key.substr(equal + 1)});
        key.resize(equal);
      }
      std::ranges::replace(key, '-', '_');
      std::vector<std::string> values;
      const std::int64_t line = words[i].line;
      while (i + 1 < words.size() && !words[i + 1].text.starts_with("--") && words[i + 1].text != kEnd)
        values.push_back(shell_value(words[++i]));
      if (values.size() == 1) value = values.front();
      if (values.size() > 1) value = fmt::format("[{}]", fmt::join(values, ", "));
      found[key] = {line, value};
    }
  }
  std::vector<std::pair<std::int64_t, std::string>> lines;
  for (const auto& [key, each] : found)
    lines.emplace_back(each.first, fmt::format("{}: {},", Json(key).dump(), each.second));
  std::ranges::sort(lines);
  std::string yaml = "{";
  std::int64_t line = 0;
  for (const auto& [number, entry] : lines) {
    for (; line < number; ++line) yaml += '\n';
    yaml += entry;
  }
  return parse_yaml(yaml + "}", file);
}

}
