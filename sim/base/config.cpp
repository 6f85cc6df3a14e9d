#include "sim/base/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <stdexcept>
#include <utility>

#include "sim/base/config_tree.h"
#include "sim/base/lookup.h"
#include "sim/base/spelling.h"
#include "sim/base/text_file.h"
#include "sim/base/unit_strings.h"

namespace foreshard {
namespace {

constexpr std::size_t kMaxListed = 40;

std::string join(std::span<const std::string> words) {
  std::string text;
  for (std::size_t i = 0; i < words.size() && i < kMaxListed; ++i) text += (i == 0 ? "" : ", ") + words[i];
  return words.size() > kMaxListed ? text + ", ..." : text;
}

std::vector<std::string> to_strings(std::span<const std::string_view> words) { return {words.begin(), words.end()}; }

// "list" in YAML is "array" in JSON.
std::string_view kind_name(ConfigNode::Kind kind, ConfigFormat format) {
  const bool is_json = format == ConfigFormat::kJson;
  switch (kind) {
    case ConfigNode::Kind::kNull: return is_json ? "null" : "an empty value";
    case ConfigNode::Kind::kScalar: return "a single value";
    case ConfigNode::Kind::kSequence: return is_json ? "an array" : "a list";
    case ConfigNode::Kind::kMapping: return is_json ? "an object" : "a mapping";
  }
  return "a value";
}

std::string_view kind_example(ConfigNode::Kind kind, ConfigFormat format) {
  if (kind != ConfigNode::Kind::kMapping) return "[1, 2]";
  return format == ConfigFormat::kJson ? R"({"shard": 8})" : "{shard: 8}";
}

void require_kind(const ConfigNode& node, const ConfigData& data, ConfigNode::Kind kind) {
  if (node.kind() == kind) return;
  throw node.error(fmt::format("{} stands here", kind_name(node.kind(), data.format)),
      fmt::format("{}, for example {}", kind_name(kind, data.format), kind_example(kind, data.format)));
}

// Throws unless the node is a scalar that is not quoted; `expected` is for the error.
std::string_view unquoted_text(const ConfigNode& node, const ConfigData& data, const std::string& expected) {
  if (!node.is_scalar()) throw node.error(fmt::format("{} stands here", kind_name(node.kind(), data.format)), expected);
  if (node.is_quoted()) {
    throw node.error(
        fmt::format("the text {} stands here in quotes", quote(node.text())), expected + " without quotes");
  }
  return node.text();
}

const std::string& text_or_error(const ConfigNode& node, const ConfigData& data, const std::string& expected) {
  if (!node.is_scalar() || (data.format == ConfigFormat::kJson && !node.is_quoted())) {
    throw node.error(node.is_scalar() ? fmt::format("{} is not a string", quote(node.text()))
                                      : fmt::format("{} stands here", kind_name(node.kind(), data.format)),
        expected);
  }
  return data.text;
}

// A decimal number as YAML 1.2 and JSON write it. YAML 1.1 would take 010 for an octal number, so a
// leading zero is refused.
struct Decimal {
  bool is_negative = false;
  std::string digits;         // without point and sign
  std::int64_t exponent = 0;  // of the last digit
};

std::optional<Decimal> parse_decimal(std::string_view text) {
  Decimal decimal;
  const auto take_digits = [&text] {
    const std::size_t end = std::min(text.find_first_not_of("0123456789"), text.size());
    const std::string_view digits = text.substr(0, end);
    text.remove_prefix(end);
    return digits;
  };
  if (text.starts_with('-') || text.starts_with('+')) {
    decimal.is_negative = text.front() == '-';
    text.remove_prefix(1);
  }
  const std::string_view integer = take_digits();
  if (integer.empty() || (integer.size() > 1 && integer.front() == '0')) return std::nullopt;
  decimal.digits = integer;
  if (text.starts_with('.')) {
    text.remove_prefix(1);
    const std::string_view fraction = take_digits();
    if (fraction.empty()) return std::nullopt;
    decimal.digits += fraction;
    decimal.exponent = -std::ssize(fraction);
  }
  if (text.starts_with('e') || text.starts_with('E')) {
    text.remove_prefix(1);
    if (text.starts_with('+')) text.remove_prefix(1);
    std::int64_t exponent = 0;
    const char* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, exponent);
    if (stop != end || text.empty() || error == std::errc::invalid_argument) return std::nullopt;
    // Beyond this any other digit count is far out of range as well.
    constexpr std::int64_t kHuge = 1'000'000'000;
    if (error == std::errc::result_out_of_range) exponent = text.front() == '-' ? -kHuge : kHuge;
    decimal.exponent += std::clamp(exponent, -kHuge, kHuge);
    text = {};
  }
  if (!text.empty()) return std::nullopt;
  return decimal;
}

// The value of the integer that `node` holds as `decimal`; throws where it has a fraction or is
// beyond 64 bits. In digits, since a double is exact only up to 2^53.
std::int64_t to_integer(const ConfigNode& node, Decimal decimal, const std::string& expected) {
  std::string& digits = decimal.digits;
  const std::size_t first = digits.find_first_not_of('0');
  if (first == std::string::npos) return 0;
  digits.erase(0, first);
  for (; decimal.exponent < 0; ++decimal.exponent) {
    if (digits.back() != '0') throw node.error(quote(node.text()) + " is not an integer", expected);
    digits.pop_back();
  }
  constexpr std::int64_t kMaxDigits = 19;
  if (std::ssize(digits) + decimal.exponent <= kMaxDigits) {
    digits.append(static_cast<std::size_t>(decimal.exponent), '0');
    if (decimal.is_negative) digits.insert(0, "-");
    std::int64_t value = 0;
    const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error == std::errc()) return value;
  }
  throw node.error(quote(node.text()) + " overflows 64-bit integers", expected);
}

// "an integer from 1 to 64, for example 8"
template <typename Number>
std::string expected_within(std::string_view what, Number min, Number max, Number example) {
  using Limits = std::numeric_limits<Number>;
  const auto shown = [](Number number) {
    if constexpr (std::is_integral_v<Number>) return format_count(number);
    return fmt::format("{}", number);
  };
  std::string text(what);
  if (min != Limits::lowest() && max != Limits::max()) text += fmt::format(" from {} to {}", shown(min), shown(max));
  else if (min != Limits::lowest()) text += fmt::format(" of at least {}", shown(min));
  else if (max != Limits::max()) text += fmt::format(" of at most {}", shown(max));
  return fmt::format("{}, for example {}", text, std::clamp(example, min, max));
}

// Reads a unit string by `parse`, one of sim/base/unit_strings.h.
auto parse_quantity(const ConfigNode& node, const ConfigData& data, auto parse) {
  if (!node.is_scalar()) {
    throw node.error(fmt::format("{} stands here", kind_name(node.kind(), data.format)),
        R"(a number with its unit, for example 80GiB, 400Gbit/s or 12us)");
  }
  try {
    return parse(node.text());
  } catch (const std::invalid_argument& error) {
    throw node.error(error.what());
  }
}

}

ConfigNode::ConfigNode() : data_(std::make_shared<const ConfigData>()) {}

ConfigNode::ConfigNode(std::shared_ptr<const ConfigData> data) : data_(std::move(data)) {}

ConfigNode::Kind ConfigNode::kind() const { return data_->kind; }

std::string_view ConfigNode::text() const { return data_->text; }

bool ConfigNode::is_quoted() const { return data_->quoting == Quoting::kQuoted; }

Location ConfigNode::location() const {
  return {
      data_->file == nullptr ? "" : *data_->file, data_->mark.line, data_->mark.column, to_string(data_->path.get())};
}

Location ConfigNode::key_location() const {
  Location result = location();
  if (data_->key_mark.line > 0) {
    result.line = data_->key_mark.line;
    result.column = data_->key_mark.column;
  }
  return result;
}

ConfigError ConfigNode::error(
    const std::string& what_is_wrong, const std::string& expected, const std::string& did_you_mean) const {
  return {location(), what_is_wrong, expected, did_you_mean};
}

std::span<const ConfigItem> ConfigNode::items() const {
  require_kind(*this, *data_, Kind::kMapping);
  return data_->items;
}

std::span<const ConfigNode> ConfigNode::elements() const {
  require_kind(*this, *data_, Kind::kSequence);
  return data_->elements;
}

const ConfigNode* ConfigNode::find(std::string_view key) const {
  for (const ConfigItem& item : items())
    if (item.key == key) return &item.value;
  return nullptr;
}

bool ConfigNode::has(std::string_view key) const { return find(key) != nullptr; }

ConfigNode ConfigNode::at(std::string_view key, std::string_view expected) const {
  if (const ConfigNode* node = find(key)) return *node;
  const std::vector<std::string> present = keys();
  const std::string near = nearest_spelling(key, present);
  std::string wanted = fmt::format("the key {}", quote(key));
  if (!present.empty()) wanted += " beside " + join(present);
  throw error(fmt::format("the key {} is missing", quote(key)), expected.empty() ? wanted : std::string(expected),
      near.empty() ? "" : fmt::format("{} where {} stands", quote(key), quote(near)));
}

std::vector<std::string> ConfigNode::keys() const { return list_of<std::string>(items(), &ConfigItem::key); }

void ConfigNode::allow_only(std::span<const std::string_view> allowed) const {
  for (const ConfigItem& item : items()) {
    if (contains(allowed, item.key)) continue;
    const std::vector<std::string> words = to_strings(allowed);
    throw ConfigError(item.value.key_location(), fmt::format("unknown key {}", quote(item.key)),
        "one of " + join(words), nearest_spelling(item.key, words));
  }
}

void ConfigNode::allow_only(std::initializer_list<std::string_view> allowed) const {
  allow_only(std::span(allowed.begin(), allowed.size()));
}

std::string ConfigNode::as_string() const {
  const bool is_json = data_->format == ConfigFormat::kJson;
  return text_or_error(*this, *data_, is_json ? R"(a string, for example "name")" : "a text, for example name");
}

std::int64_t ConfigNode::as_int(std::int64_t min, std::int64_t max) const {
  const std::string expected = expected_within<std::int64_t>("an integer", min, max, 8);
  const std::string_view text = unquoted_text(*this, *data_, expected);
  const std::optional<Decimal> decimal = parse_decimal(text);
  if (!decimal) throw error(quote(text) + " is not an integer", expected);
  const std::int64_t value = to_integer(*this, *decimal, expected);
  if (value < min || value > max) throw error(std::string(text) + " is out of range", expected);
  return value;
}

double ConfigNode::as_double(double min, double max) const {
  const std::string expected = expected_within<double>("a number", min, max, 0.5);
  const std::string_view text = unquoted_text(*this, *data_, expected);
  if (!parse_decimal(text)) throw error(quote(text) + " is not a number", expected);
  const std::string_view digits = text.starts_with('+') ? text.substr(1) : text;
  double value = 0;
  const auto [stop, status] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (status != std::errc() || !(value >= min && value <= max)) throw error(quote(text) + " is out of range", expected);
  return value;
}

bool ConfigNode::as_bool() const {
  const std::string expected = "true or false";
  const std::string_view text = unquoted_text(*this, *data_, expected);
  if (text == "true") return true;
  if (text == "false") return false;
  constexpr std::string_view kTrue[] = {"yes", "Yes", "on", "On", "True", "TRUE", "1"};
  constexpr std::string_view kFalse[] = {"no", "No", "off", "Off", "False", "FALSE", "0"};
  const auto is_in = [text](const auto& words) { return contains(words, text); };
  throw error(quote(text) + " is not a boolean", expected, is_in(kTrue) ? "true" : is_in(kFalse) ? "false" : "");
}

Bytes ConfigNode::as_bytes() const { return parse_quantity(*this, *data_, parse_bytes); }

BytesPerSecond ConfigNode::as_bandwidth() const { return parse_quantity(*this, *data_, parse_bandwidth); }

FlopsPerSecond ConfigNode::as_flop_rate() const { return parse_quantity(*this, *data_, parse_flop_rate); }

Time ConfigNode::as_time() const { return parse_quantity(*this, *data_, parse_time); }

double ConfigNode::as_power() const { return parse_quantity(*this, *data_, parse_power); }

double ConfigNode::as_frequency() const { return parse_quantity(*this, *data_, parse_frequency); }

double ConfigNode::as_price() const { return parse_quantity(*this, *data_, parse_price); }

std::size_t ConfigNode::as_choice(std::span<const std::string_view> words) const {
  const std::vector<std::string> all = to_strings(words);
  const std::string expected = "one of " + join(all);
  const auto found = std::ranges::find(all, text_or_error(*this, *data_, expected));
  if (found == all.end()) throw error(quote(text()) + " is not known here", expected, nearest_spelling(text(), all));
  return static_cast<std::size_t>(found - all.begin());
}

std::size_t ConfigNode::as_choice(std::initializer_list<std::string_view> words) const {
  return as_choice(std::span(words.begin(), words.size()));
}

namespace {

// A byte order mark does not count.
constexpr std::size_t kMark = 3;

}

ConfigNode read_yaml_file(const std::filesystem::path& path) {
  return parse_yaml(read_text_file(path, kMaxYamlBytes + kMark), path.string());
}

ConfigNode read_json_file(const std::filesystem::path& path) {
  return parse_json(read_text_file(path, kMaxJsonBytes + kMark), path.string());
}

ConfigNode read_config_file(const std::filesystem::path& path) {
  const std::filesystem::path extension = path.extension();
  if (extension == ".json") return read_json_file(path);
  if (extension == ".yaml" || extension == ".yml") return read_yaml_file(path);
  const std::string text = read_text_file(path, kMaxJsonBytes + kMark);
  const std::size_t first = text.find_first_not_of(" \t\r\n\xEF\xBB\xBF");
  const bool is_json = first != std::string::npos && text[first] == '{';
  return is_json ? parse_json(text, path.string()) : parse_yaml(text, path.string());
}

}
