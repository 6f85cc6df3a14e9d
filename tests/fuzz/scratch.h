// For fuzz targets: readers that take files, and what may come out of a reader.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include "sim/base/error.h"
#include "tests/support/temporary_folder.h"

namespace foreshard {

// In memory where that can be had; one per process, for fuzzers run side by side.
inline const TemporaryFolder& scratch() {
  namespace fs = std::filesystem;
  static const TemporaryFolder folder(fs::is_directory("/dev/shm") ? fs::path("/dev/shm") : fs::temp_directory_path());
  return folder;
}

inline std::filesystem::path in_scratch(const std::string& name, std::string_view content) {
  return scratch().write(name, content);
}

// Files one after another in one input, each behind a line "== name". Names with a '/' are left
// out.
inline std::map<std::string, std::string> split_files(std::string_view text) {
  std::map<std::string, std::string> files;
  std::string* file = nullptr;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size() - 1);
    const std::string_view line = text.substr(0, end + 1);
    text.remove_prefix(end + 1);
    if (line.starts_with("== ") && line.ends_with('\n')) {
      const std::string name(line.substr(3, line.size() - 4));
      const bool is_plain = !name.empty() && name.size() < 40 &&
                            name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789._-") == std::string::npos &&
                            name[0] != '.';
      file = is_plain ? &files[name] : nullptr;
    } else if (file != nullptr) {
      *file += line;
    }
  }
  return files;
}

// What the user's input may end in: an answer, or an Error that is not ours.
void expect_answer_or_refusal(auto read) {
  try {
    read();
  } catch (const Error& error) {
    if (error.exit_code() == ExitCode::kInternal) std::abort();
  }
}

}
