// Looks keys of a Hugging Face config.json up under all their spellings and records what became of each.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/base/config.h"

namespace foreshard {

enum class KeyUse : std::uint8_t {
  kMapped,     // read from the file
  kDefaulted,  // absent or null: Hugging Face's default
  kIgnored     // in the file and without influence
};
std::string_view to_string(KeyUse use);  // "mapped", "defaulted", "ignored"

struct HfKey {
  std::string key;  // dotted path in the file
  KeyUse use = KeyUse::kMapped;
  std::string value;    // as read or assumed; "" for lists and objects
  std::string comment;  // "" or why
  bool operator==(const HfKey&) const = default;
};

inline constexpr std::int64_t kLargestHfSize = 1'000'000'000;

// One object of the file. Every lookup names the accepted spellings of a key, first the usual one;
// null counts as absent. Errors are ConfigErrors at the value.
class KeyReader {
 public:
  using Spellings = std::initializer_list<std::string_view>;

  // `prefix` is the dotted path of the object, "" or "text_config.". The ledger outlives the reader.
  KeyReader(ConfigNode node, std::string prefix, std::vector<HfKey>& ledger);

  const ConfigNode& node() const { return node_; }

  // nullptr where absent. Two spellings with different values are an error.
  const ConfigNode* find(Spellings spellings);

  std::int64_t size(Spellings spellings);  // 1 .. kLargestHfSize; absent is an error
  std::int64_t size_or(Spellings spellings, std::int64_t fallback);
  std::int64_t count_or(std::string_view key, std::int64_t fallback);  // from 0
  bool flag_or(std::string_view key, bool fallback);
  std::string word_or(std::string_view key, std::string_view fallback);
  // One of these words, which say `what`: "activation".
  std::string one_of(std::string_view key, std::string_view fallback, std::string_view what, Spellings words);

  double number_or(std::string_view key, double fallback);  // above 0, at most 1e12

  // What Hugging Face's class fills in where the key is absent: "key=value ...", in place of the fallbacks above.
  void provide(std::string_view defaults);
  bool provides(std::string_view key) const { return provided({key}) != nullptr; }
  // Whether the key has a number, in the file or provided; null is none.
  bool finds_number(std::string_view key);

  void assume(std::string_view key, std::string value, std::string comment = "");
  void comment(std::string comment);  // on the last entry

  [[noreturn]] void refuse(std::string_view key, const std::string& what, const std::string& expected = "") const;
  void refuse_if_set(std::string_view key, const std::string& what);  // where the flag is true

  void ignore_rest();  // lists the keys that nothing asked for

 private:
  void note(std::string_view key, KeyUse use, std::string value, std::string comment = "");

  ConfigNode node_;
  std::string prefix_;
  std::vector<HfKey>& ledger_;
  std::vector<std::string> used_;
  const std::string* provided(Spellings spellings) const;

  std::vector<std::pair<std::string, std::string>> provided_;
};

}
