// nlohmann parses without recursion, but writes and walks a tree with it, so the depth is bounded while the tree grows.
#include "sim/base/json_document.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "sim/base/error.h"
#include "sim/base/parse.h"
#include "sim/base/text_file.h"

namespace foreshard {
namespace {

constexpr int kMaxDepth = 64;
constexpr int kMaxValues = 2'000'000;  // of keys, too; the largest answers have some 100,000

// The number behind `word` in the text; 0 where there is none.
int number_behind(std::string_view text, std::string_view word) {
  const std::size_t at = text.find(word);
  if (at == std::string_view::npos) return 0;
  text.remove_prefix(at + word.size());
  return leading_number<int>(text);
}

}

JsonFailure json_failure(std::string_view message) {
  JsonFailure failure{number_behind(message, "at line "), number_behind(message, ", column "), ""};
  for (const std::string_view prefix : {"] ", ": ", " - "}) {
    const std::size_t found = message.find(prefix);
    if (found != std::string_view::npos) message.remove_prefix(found + prefix.size());
  }
  const std::size_t last_read = message.find("; last read: ");
  failure.reason = message.substr(0, last_read);
  if (const std::size_t found = message.find("; expected "); found != std::string_view::npos) {
    if (last_read != std::string_view::npos) failure.reason += message.substr(found);
  }
  std::erase_if(failure.reason, [](char c) { return static_cast<unsigned char>(c) < 0x20; });
  if (failure.reason.size() > 200) failure.reason = failure.reason.substr(0, 200) + "...";
  return failure;
}

Json parse_json_document(std::string_view text, const std::string& file_name) {
  if (text.find_first_not_of(" \t\r\n") == std::string_view::npos)
    throw ConfigError({file_name, 0, 0, ""}, "the file is empty");
  int values = 0;
  const auto bounded = [&](int depth, Json::parse_event_t /*event*/, Json& /*parsed*/) {
    if (depth > kMaxDepth)
      throw ConfigError(
          {file_name, 0, 0, ""}, "the values are nested too deeply", fmt::format("at most {} levels", kMaxDepth));
    if (++values > kMaxValues)
      throw ConfigError({file_name, 0, 0, ""}, "the file has too many values", fmt::format("at most {}", kMaxValues));
    return true;
  };
  try {
    return Json::parse(text, bounded);
  } catch (const Json::parse_error& error) {
    const JsonFailure failure = json_failure(error.what());
    throw ConfigError({file_name, failure.line, failure.column, ""}, "not valid JSON: " + failure.reason);
  } catch (const Json::exception&) {  // a number beyond a double
    throw ConfigError({file_name, 0, 0, ""}, "a number is out of range");
  }
}

Json read_json_document(const std::filesystem::path& path) {
  return parse_json_document(read_text_file(path, kMaxDocumentBytes), path.string());
}

namespace {

// nlohmann would print NaN and infinity as null, which a reader cannot tell from "no value".
void refuse_non_finite(const Json& value, const std::string& path) {
  if (value.is_number_float())
    FORESHARD_CHECK(std::isfinite(value.get<double>()), "the output value " + path + " is not a finite number");
  if (!value.is_structured()) return;
  for (const auto& [key, child] : value.items())
    if (child.is_structured() || child.is_number_float())
      refuse_non_finite(child, path.empty() ? key : fmt::format("{}.{}", path, key));
}

}

std::string to_text(const Json& value) {
  refuse_non_finite(value, "");
  return value.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}
