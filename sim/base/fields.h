// What a type is in a file: fields(io, value) lists its keys once, each with the member behind it and what may stand
// there. From the list follow how it is written and read, and that no other key may be there:
//
//     template <typename Io>
//     void fields(Io& io, Machine& machine) {
//       io("name", machine.name, kNotEmpty);           // a text
//       io("links", machine.links, 1, 64);             // a number, at least and at most
//       io("pass", machine.pass, kPasses);             // a word, by the enumeration's number
//       io.optional(machine.heat > 0, "heat", machine.heat);  // is written where this holds
//       io("power", [&](auto& part) { part("limit_w", machine.limit, 1, 1e5); });
//       io.require(machine.links > 1, "links", "is alone", "another");  // of what was read
//       io.ignore("notes");                                             // may be there
//     }
//
// Members may be of such types themselves, and lists: of values, or of names and values.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/base/config.h"
#include "sim/base/json.h"
#include "sim/base/spelling.h"

namespace foreshard {

inline constexpr struct NotEmpty {
} kNotEmpty;

// In front of the limits of a key that must be there: what is expected where it is not.
struct Such {
  std::string_view expected;
};

// The list of `value`: of its type, or what it is as a part.
void list_fields(auto& io, auto&& value) {
  if constexpr (requires { value(io); }) value(io);
  else fields(io, value);
}

class FieldNames {
 public:
  static constexpr bool kReads = false;
  template <typename... What>
  void operator()(std::string_view key, What&&...) {
    names.push_back(key);
  }
  template <typename... What>
  void optional(bool, std::string_view key, What&&...) {
    names.push_back(key);
  }
  void ignore(std::string_view key) { names.push_back(key); }
  // `written_by` completes the error of another schema.
  void schema(std::string_view name, std::string_view written_by = "") {
    names.emplace_back("schema");
    schema_name = name;
    expected_schema = std::string(name) + std::string(written_by);
  }
  template <typename... What>
  void require(What&&...) {}

  std::vector<std::string_view> names;
  std::string_view schema_name;
  std::string expected_schema;
};

template <typename Value>
inline constexpr bool kIsList = false;
template <typename Value>
inline constexpr bool kIsList<std::vector<Value>> = true;
template <typename Value>
inline constexpr bool kIsMap = false;
template <typename Value>
inline constexpr bool kIsMap<std::vector<std::pair<std::string, Value>>> = true;
template <typename Value>
concept IsCount = requires(Value value) {
  value.count();
};  // Bytes
template <typename Value>
concept IsRate = requires(Value value) {
  Value(value.value());
};

class FieldWriter {
 public:
  static constexpr bool kReads = false;
  template <typename Value, typename... Limits>
  void operator()(std::string_view key, Value&& value, const Limits&... limits) {
    out[std::string(key)] = written(value, limits...);
  }
  template <typename Value, typename... Limits>
  void operator()(std::string_view key, Value&& value, Such, const Limits&... limits) {
    (*this)(key, value, limits...);
  }
  template <typename Value, typename... Limits>
  void optional(bool is_there, std::string_view key, Value&& value, const Limits&... limits) {
    if (is_there) (*this)(key, value, limits...);
  }
  void schema(std::string_view name, std::string_view = "") { out["schema"] = name; }
  template <typename... What>
  void require(What&&...) {}

  Json out = Json::object();

 private:
  template <typename Value, typename Words>
  requires requires(Words words) { words.size(); }
  static Json written(Value& value, const Words& words) { return words[static_cast<std::size_t>(value)]; }
  template <typename Value, typename... Limits>
  static Json written(Value& value, const Limits&... limits) {
    using Plain = std::remove_const_t<Value>;
    if constexpr (kIsMap<Plain>) {
      Json map = Json::object();
      for (auto& [name, each] : value) map[name] = written(each, limits...);
      return map;
    } else if constexpr (kIsList<Plain>) {
      Json list = Json::array();
      for (auto& each : value) list.push_back(written(each, limits...));
      return list;
    } else if constexpr (IsCount<Plain>) {
      return value.count();
    } else if constexpr (IsRate<Plain>) {
      return value.value();
    } else if constexpr (std::is_constructible_v<Json, Value&>) {
      return value;
    } else {
      FieldWriter part;
      list_fields(part, value);
      return std::move(part.out);
    }
  }
};

class FieldReader {
 public:
  static constexpr bool kReads = true;
  explicit FieldReader(const ConfigNode& node) : node_(node) {}

  template <typename Value, typename... Limits>
  void operator()(std::string_view key, Value&& value, const Limits&... limits) {
    read(node_.at(key), value, limits...);
  }
  template <typename Value, typename... Limits>
  void operator()(std::string_view key, Value&& value, Such such, const Limits&... limits) {
    read(node_.at(key, such.expected), value, limits...);
  }
  template <typename Value, typename... Limits>
  void optional(bool, std::string_view key, Value&& value, const Limits&... limits) {
    if (const ConfigNode* node = node_.find(key)) read(*node, value, limits...);
  }
  void ignore(std::string_view) {}
  void schema(std::string_view, std::string_view = "") {}
  void require(bool holds, std::string_view key, const std::string& what, const std::string& expected = "") const {
    if (!holds) throw node_.at(key).error(what, expected);
  }
  bool has(std::string_view key) const { return node_.has(key); }

 private:
  template <typename Value, typename Words>
  requires requires(Words words) { words.size(); }
  static void read(const ConfigNode& node, Value& value, const Words& words) {
    value = static_cast<Value>(node.as_choice(std::span(words)));
  }
  static void read(const ConfigNode& node, std::string& value, NotEmpty) {
    value = node.as_string();
    if (value.empty()) throw node.error("is empty", "a text");
  }
  template <typename Value, typename... Limits>
  static void read(const ConfigNode& node, Value& value, const Limits&... limits);

  const ConfigNode& node_;
};

// Strict: every key of the list and none besides. Throws ConfigError.
void read_fields(const ConfigNode& node, auto&& value) {
  FieldNames names;
  list_fields(names, value);
  if (!names.schema_name.empty()) {
    const ConfigNode schema = node.at("schema");
    if (schema.as_string() != names.schema_name)
      throw schema.error("unknown schema " + quote(schema.text()), names.expected_schema);
  }
  node.allow_only(std::span<const std::string_view>(names.names));
  FieldReader reader(node);
  list_fields(reader, value);
}

Json fields_json(auto value) {
  FieldWriter writer;
  list_fields(writer, value);
  return std::move(writer.out);
}

template <typename Value, typename... Limits>
void FieldReader::read(const ConfigNode& node, Value& value, const Limits&... limits) {
  if constexpr (kIsMap<Value>)
    for (const ConfigItem& item : node.items())
      read(item.value, value.emplace_back(item.key, typename Value::value_type::second_type()).second, limits...);
  else if constexpr (kIsList<Value>)
    for (const ConfigNode& each : node.elements()) read(each, value.emplace_back(), limits...);
  else if constexpr (std::is_same_v<Value, std::string>) value = node.as_string();
  else if constexpr (std::is_same_v<Value, bool>) value = node.as_bool();
  else if constexpr (std::is_integral_v<Value>) value = static_cast<Value>(node.as_int(limits...));
  else if constexpr (std::is_floating_point_v<Value>) value = node.as_double(limits...);
  else if constexpr (IsCount<Value>) value = Value(node.as_int(limits...));
  else if constexpr (IsRate<Value>) value = Value(node.as_double(limits...));
  else read_fields(node, value);
}

}
