// Strict reading of YAML and JSON files into one immutable tree that knows where everything stands.
//
// Every failure is a ConfigError (exit code 3) with file, line, column (both from 1, columns in bytes) and dotted key
// path, what was expected, and an example. Refused: a missing, empty or unreadable file, a directory, invalid UTF-8,
// control characters, duplicate keys, keys that are not scalars, YAML tags but !!str, several YAML documents in a file,
// anything after a JSON value. Limits: JSON 16 MiB and 1,000,000 nodes; YAML 2 MiB and 100,000 nodes after aliases are
// expanded (yaml-cpp needs 250 times the size of a hostile text in memory); nesting of 64.
//
// Numbers and booleans must be unquoted in YAML and not strings in JSON. Quantities with a unit
// are unit strings (sim/base/unit_strings.h): a bare number is an error. Nothing has a default.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/error.h"
#include "sim/base/units.h"

namespace foreshard {

struct ConfigItem;
struct ConfigData;

// A value of the file. Copies share the tree. Spans and pointers that it hands out live as long as
// any copy of it or of a node above it: do not take them from parse_yaml(...) in one expression.
class ConfigNode {
 public:
  enum class Kind { kNull, kScalar, kSequence, kMapping };

  ConfigNode();  // null, at no location
  explicit ConfigNode(std::shared_ptr<const ConfigData> data);

  Kind kind() const;
  bool is_null() const { return kind() == Kind::kNull; }
  bool is_scalar() const { return kind() == Kind::kScalar; }
  bool is_sequence() const { return kind() == Kind::kSequence; }
  bool is_mapping() const { return kind() == Kind::kMapping; }

  // A scalar as written, without quotes and escapes ("" for the other kinds), and whether it was
  // quoted (YAML) or a string (JSON).
  std::string_view text() const;
  bool is_quoted() const;

  Location location() const;
  // Where the key of this value stands; location() where it has none.
  Location key_location() const;
  // The error to throw when this value is wrong for a reason that only the caller knows.
  ConfigError error(
      const std::string& what_is_wrong, const std::string& expected = "", const std::string& did_you_mean = "") const;

  // Mappings. Each throws where this is not one. `expected` completes the error of a missing key.
  bool has(std::string_view key) const;
  ConfigNode at(std::string_view key, std::string_view expected = "") const;
  const ConfigNode* find(std::string_view key) const;  // nullptr: no such key
  std::span<const ConfigItem> items() const;           // in file order
  std::vector<std::string> keys() const;
  // Throws on the first key that is not in `allowed`, with the nearest that is.
  void allow_only(std::span<const std::string_view> allowed) const;
  void allow_only(std::initializer_list<std::string_view> allowed) const;

  // Sequences. Throws where this is not one.
  std::span<const ConfigNode> elements() const;

  // Scalars. Each throws where this is not one, does not read as the type, or is out of range.
  std::string as_string() const;
  // Also accepts integral values written with a fraction or exponent: 1e9, 8.0.
  std::int64_t as_int(std::int64_t min = std::numeric_limits<std::int64_t>::min(),
      std::int64_t max = std::numeric_limits<std::int64_t>::max()) const;
  double as_double(
      double min = std::numeric_limits<double>::lowest(), double max = std::numeric_limits<double>::max()) const;
  bool as_bool() const;
  Bytes as_bytes() const;
  BytesPerSecond as_bandwidth() const;
  FlopsPerSecond as_flop_rate() const;
  Time as_time() const;
  double as_power() const;      // W
  double as_frequency() const;  // Hz
  double as_price() const;      // USD/h
  // The index of the word in `words`.
  std::size_t as_choice(std::span<const std::string_view> words) const;
  std::size_t as_choice(std::initializer_list<std::string_view> words) const;
  template <std::size_t N>
  std::size_t as_choice(std::span<const std::string_view, N> words) const {
    return as_choice(std::span<const std::string_view>(words.data(), words.size()));
  }

 private:
  std::shared_ptr<const ConfigData> data_;
};

struct ConfigItem {
  std::string key;
  ConfigNode value;
};

// `file_name` is what errors call the text.
ConfigNode parse_yaml(std::string_view text, std::string_view file_name);
ConfigNode parse_json(std::string_view text, std::string_view file_name);

ConfigNode read_yaml_file(const std::filesystem::path& path);
ConfigNode read_json_file(const std::filesystem::path& path);
// .json is JSON, .yaml and .yml YAML; any other name is JSON if the text starts with '{'.
ConfigNode read_config_file(const std::filesystem::path& path);

}
