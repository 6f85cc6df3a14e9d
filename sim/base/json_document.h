// JSON documents that are handed on as they are (answers of this program), where the strict tree of
// sim/base/config.h, which knows places, is not needed. Not for settings.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

#include "sim/base/json.h"

namespace foreshard {

inline constexpr std::size_t kMaxDocumentBytes = std::size_t{64} << 20;

// Throws ConfigError with line and column where the text is no JSON, and where it is nested deeper
// than 64 or has more than 2,000,000 keys and values.
Json parse_json_document(std::string_view text, const std::string& file_name);
// The same of a file of at most kMaxDocumentBytes.
Json read_json_document(const std::filesystem::path& path);

// Line and column (0: not said) in nlohmann's words for what it could not parse, and the reason alone: "... parse error
// at line 3, column 8: syntax error while parsing value - invalid literal; last read: '...'".
struct JsonFailure {
  int line = 0;
  int column = 0;
  std::string reason;
};
JsonFailure json_failure(std::string_view message);

}
