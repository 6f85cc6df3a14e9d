// What a request asks for: words of its query or body, and the files that came with it.
//
// A body is multipart/form-data (a part with a file name is a file),
// application/x-www-form-urlencoded or else a JSON object, whose lists give a word several times.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace foreshard {

using HttpWords = std::vector<std::pair<std::string, std::string>>;

struct HttpFile {
  std::string field;
  std::string name;          // as the client has it: never to be trusted as a path
  std::string_view content;  // of the body it came in
};

struct HttpForm {
  HttpWords words;
  std::vector<HttpFile> files;
};

// "a=1&b=x%20y"; a percent sign that begins no escape stands for itself.
HttpWords read_query(std::string_view text);

// Throws Error(kInvalidInput) for a body that is not what its type says.
HttpForm read_body(std::string_view content_type, std::string_view body);

bool is_multipart(std::string_view content_type);

// Fit to be a file's name in a folder of one's own: its last component, in which only letters,
// digits and ._- are left; `otherwise` where nothing of it is.
std::string plain_file_name(std::string_view name, const std::string& otherwise);

}
