// The page of a document that a verb wrote with --json.
#pragma once

#include <string>

#include "sim/base/json.h"

namespace foreshard {

// `file` is what errors name, and the title of what has none. Throws ConfigError where the document
// is no answer that can be shown, or lacks a key.
Json page_of_answer(const Json& answer, const std::string& file);

// The file of --html of a verb whose page says what its document does.
void write_answer_page(const std::string& path, const Json& answer, const std::string& command);

}  // namespace foreshard
