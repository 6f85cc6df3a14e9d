// The ledger is written as keys are asked for; what was never asked for comes last, in file order.
#include "interop/hf/hf_keys.h"

#include <fmt/format.h>

#include "sim/base/letters.h"
#include "sim/base/lookup.h"

namespace foreshard {

std::string_view to_string(KeyUse use) { return word_at(use, {"mapped", "defaulted", "ignored"}, ""); }

KeyReader::KeyReader(ConfigNode node, std::string prefix, std::vector<HfKey>& ledger)
    : node_(std::move(node)), prefix_(std::move(prefix)), ledger_(ledger) {
  // Reports that the object is none before a key of it is said to be missing.
  if (!node_.is_mapping()) throw node_.error("this is not an object", "keys and values");
}

const ConfigNode* KeyReader::find(Spellings spellings) {
  const ConfigNode* found = nullptr;
  std::string_view found_as;
  for (const std::string_view spelling : spellings) {
    const ConfigNode* value = node_.find(spelling);
    if (value == nullptr || value->is_null()) continue;
    used_.emplace_back(spelling);
    if (found == nullptr) {
      found = value;
      found_as = spelling;
    } else if (!value->is_scalar() || !found->is_scalar() || value->text() != found->text()) {
      throw value->error("differs from " + std::string(found_as) + ", which means the same");
    }
  }
  if (found != nullptr) note(found_as, KeyUse::kMapped, found->is_scalar() ? std::string(found->text()) : "");
  return found;
}

void KeyReader::provide(std::string_view defaults) {
  while (!defaults.empty()) {
    const std::string_view word = cut(defaults, " ");
    const std::size_t equals = word.find('=');
    provided_.emplace_back(word.substr(0, equals), word.substr(equals + 1));
  }
}

const std::string* KeyReader::provided(Spellings spellings) const {
  for (const auto& [key, value] : provided_)
    if (contains(spellings, key)) return &value;
  return nullptr;
}

std::int64_t KeyReader::size(Spellings spellings) {
  if (const ConfigNode* value = find(spellings)) return value->as_int(1, kLargestHfSize);
  if (const std::string* value = provided(spellings)) {
    assume(*spellings.begin(), *value);
    return std::stoll(*value);
  }
  // Throws where the key is missing and where it is null.
  return node_.at(*spellings.begin(), "a size, for example 4096").as_int(1, kLargestHfSize);
}

std::int64_t KeyReader::size_or(Spellings spellings, std::int64_t fallback) {
  if (const ConfigNode* value = find(spellings)) return value->as_int(1, kLargestHfSize);
  if (const std::string* value = provided(spellings)) fallback = std::stoll(*value);
  assume(*spellings.begin(), std::to_string(fallback));
  return fallback;
}

std::int64_t KeyReader::count_or(std::string_view key, std::int64_t fallback) {
  if (const ConfigNode* value = find({key})) return value->as_int(0, kLargestHfSize);
  if (const std::string* value = provided({key})) fallback = std::stoll(*value);
  assume(key, std::to_string(fallback));
  return fallback;
}

bool KeyReader::flag_or(std::string_view key, bool fallback) {
  if (const ConfigNode* value = find({key})) return value->as_bool();
  if (const std::string* value = provided({key})) fallback = *value == "true";
  assume(key, fallback ? "true" : "false");
  return fallback;
}

std::string KeyReader::word_or(std::string_view key, std::string_view fallback) {
  if (const ConfigNode* value = find({key})) return value->as_string();
  if (const std::string* value = provided({key})) fallback = *value;
  assume(key, std::string(fallback));
  return std::string(fallback);
}

std::string KeyReader::one_of(std::string_view key, std::string_view fallback, std::string_view what, Spellings words) {
  std::string word = word_or(key, fallback);
  if (contains(words, word)) return word;
  std::string expected;
  for (const std::string_view& each : words) {
    const bool is_last = &each + 1 == words.end();
    expected += expected.empty() ? "" : is_last ? " or " : ", ";
    expected += each;
  }
  refuse(key, fmt::format("{} \"{}\" is not supported", what, word), expected);
}

double KeyReader::number_or(std::string_view key, double fallback) {
  if (const ConfigNode* value = find({key})) return value->as_double(0, 1e12);
  const std::string* value = provided({key});
  assume(key, value != nullptr ? *value : fmt::format("{}", fallback));
  return value != nullptr ? std::stod(*value) : fallback;
}

bool KeyReader::finds_number(std::string_view key) {
  if (const ConfigNode* value = find({key})) {
    value->as_double(0, 1e9);
    return true;
  }
  const std::string* value = node_.has(key) ? nullptr : provided({key});
  assume(key, value != nullptr ? *value : "none");
  return value != nullptr;
}

void KeyReader::assume(std::string_view key, std::string value, std::string comment) {
  used_.emplace_back(key);  // a null that is there is listed as defaulted
  note(key, KeyUse::kDefaulted, std::move(value), std::move(comment));
}

void KeyReader::comment(std::string comment) { ledger_.back().comment = std::move(comment); }

void KeyReader::refuse(std::string_view key, const std::string& what, const std::string& expected) const {
  const ConfigNode* value = node_.find(key);
  throw(value != nullptr ? *value : node_).error(what, expected);
}

void KeyReader::refuse_if_set(std::string_view key, const std::string& what) {
  const ConfigNode* value = find({key});
  if (value != nullptr && value->as_bool()) throw value->error(what);
}

void KeyReader::ignore_rest() {
  for (const ConfigItem& item : node_.items()) {
    if (contains(used_, item.key)) continue;
    note(item.key, KeyUse::kIgnored, item.value.is_scalar() ? std::string(item.value.text()) : "",
        item.key == "vision_config" ? "the vision tower is left out" : "");
  }
}

void KeyReader::note(std::string_view key, KeyUse use, std::string value, std::string comment) {
  ledger_.push_back({prefix_ + std::string(key), use, std::move(value), std::move(comment)});
}

}
