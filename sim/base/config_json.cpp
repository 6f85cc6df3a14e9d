// nlohmann's SAX parser decides what is JSON and reports values without their places. A cursor
// walks the same text beside it: each report is the next token, so the cursor skips blanks, commas
// and colons to its first byte, notes line and column, and steps over it.

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <utility>

#include "sim/base/config.h"
#include "sim/base/config_tree.h"
#include "sim/base/json_document.h"
#include "sim/base/lookup.h"

namespace foreshard {
namespace {

class Cursor {
 public:
  explicit Cursor(std::string_view text) : text_(text) {}

  // Moves to the first byte of the next token.
  ConfigMark next_token() {
    while (at_ < text_.size() && std::string_view(" \t\r\n,:").find(text_[at_]) != kNone) step();
    return mark_;
  }
  void skip(std::size_t bytes) {
    for (; bytes > 0 && at_ < text_.size(); --bytes) step();
  }
  void skip_string() {
    step();
    while (at_ < text_.size() && text_[at_] != '"') skip(text_[at_] == '\\' ? 2 : 1);
    skip(1);
  }
  // Returns the number as written.
  std::string_view skip_number() {
    const std::size_t start = at_;
    const std::size_t end = std::min(text_.find_first_not_of("0123456789+-.eE", at_), text_.size());
    skip(end - start);
    return text_.substr(start, end - start);
  }
  ConfigMark mark_of(std::size_t offset) {
    if (offset > at_) skip(offset - at_);
    return mark_;
  }

 private:
  static constexpr std::size_t kNone = std::string_view::npos;

  void step() {
    if (text_[at_] == '\n') {
      ++mark_.line;
      mark_.column = 0;
    }
    ++mark_.column;
    ++at_;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  ConfigMark mark_ = {1, 1};
};

class JsonHandler final : public nlohmann::json_sax<nlohmann::json> {
 public:
  JsonHandler(std::string_view text, std::string_view file_name)
      : text_(text), cursor_(text), builder_(file_name, ConfigFormat::kJson) {}

  bool null() override {
    builder_.null(cursor_.next_token());
    cursor_.skip(4);
    return true;
  }
  bool boolean(bool value) override {
    const std::string_view word = value ? "true" : "false";
    builder_.scalar(cursor_.next_token(), std::string(word), Quoting::kPlain);
    cursor_.skip(word.size());
    return true;
  }
  bool number_integer(number_integer_t /*value*/) override { return number(); }
  bool number_unsigned(number_unsigned_t /*value*/) override { return number(); }
  bool number_float(number_float_t /*value*/, const string_t& /*text*/) override { return number(); }
  bool string(string_t& value) override { return text(value); }
  bool key(string_t& value) override { return text(value); }
  bool binary(binary_t& /*value*/) override { return false; }  // no such thing in JSON text
  bool start_object(std::size_t /*size*/) override {
    builder_.begin_mapping(cursor_.next_token());
    cursor_.skip(1);
    return true;
  }
  bool start_array(std::size_t /*size*/) override {
    builder_.begin_sequence(cursor_.next_token());
    cursor_.skip(1);
    return true;
  }
  bool end_object() override { return end(); }
  bool end_array() override { return end(); }

  bool parse_error(
      std::size_t bytes_read, const std::string& /*token*/, const nlohmann::detail::exception& error) override {
    const std::string_view message = error.what();
    if (contains(message, "unexpected end of input")) {
      throw ConfigError(builder_.location(cursor_.mark_of(text_.size())), "the JSON text ends too early",
          "a complete file; is it truncated?");
    }
    const ConfigMark mark = cursor_.mark_of(std::min(bytes_read == 0 ? 0 : bytes_read - 1, text_.size()));
    if (contains(message, "expected end of input"))
      throw ConfigError(builder_.location(mark), "something follows the JSON value", "one value per file");
    throw ConfigError(builder_.location(mark), "not valid JSON: " + json_failure(message).reason);
  }

  ConfigNode finish() { return builder_.finish(); }

 private:
  bool number() {
    const ConfigMark mark = cursor_.next_token();
    builder_.scalar(mark, std::string(cursor_.skip_number()), Quoting::kPlain);
    return true;
  }
  bool text(std::string& value) {
    const ConfigMark mark = cursor_.next_token();
    cursor_.skip_string();
    builder_.scalar(mark, std::move(value), Quoting::kQuoted);
    return true;
  }
  bool end() {
    cursor_.next_token();
    cursor_.skip(1);
    builder_.end();
    return true;
  }

  std::string_view text_;
  Cursor cursor_;
  ConfigTreeBuilder builder_;
};

// JSON has no infinities, and Python's json writes them nonetheless ("time_step_limit": [0.0,
// Infinity]): a number as large stands for one, in as many characters.
std::string with_numbers_for_infinities(std::string_view text) {
  constexpr std::string_view kInfinity = "Infinity", kNumber = "1.0e+308";
  std::string changed(text);
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"') quoted = !quoted;
    if (quoted) i += text[i] == '\\' ? 1 : 0;
    else if (text.substr(i, kInfinity.size()) == kInfinity) changed.replace(i, kNumber.size(), kNumber);
  }
  return changed;
}

}

ConfigNode parse_json(std::string_view text, std::string_view file_name) {
  text = checked_text(text, file_name, kMaxJsonBytes);
  std::string changed;
  if (contains(text, "Infinity")) text = changed = with_numbers_for_infinities(text);
  JsonHandler handler(text, file_name);
  nlohmann::json::sax_parse(text.begin(), text.end(), &handler);
  return handler.finish();
}

}
