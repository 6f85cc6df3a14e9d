// Files of the repository that are built into the program, so that it needs no installed data.
//
// foreshard_embed(target symbol globs...) in CMakeLists.txt defines one function per set of files:
//     std::span<const EmbeddedFile> symbol();      sorted by path
// Declare it in the folder that embeds the files; today: stack_files, trainer_files and
// capability_files (sim/spec), hf_family_files (interop/hf), models_files (models/zoo),
// family_files and parameter_name_files (models), calibration_files (calibration/machines,
// profiles, published), schema_files (cli/schemas) and page_files (reports/page, and d3).
#pragma once

#include <map>
#include <mutex>
#include <span>
#include <string_view>
#include <vector>

namespace foreshard {

// A file's bytes as they are, which the program holds packed (gzip, a ninth of them): unpacked when
// they are first asked for, from any thread; the text lives as long as the program.
class EmbeddedText {
 public:
  explicit EmbeddedText(std::string_view packed) : packed_(packed) {}
  operator std::string_view() const;  // NOLINT(google-explicit-constructor): it is that text

 private:
  std::string_view packed_;
};

struct EmbeddedFile {
  std::string_view path;  // relative to the repository root, with forward slashes
  EmbeddedText content;
};

// The one of that path, which is built in.
const EmbeddedFile& file_named(std::string_view path, std::span<const EmbeddedFile> files);

// Of a table that is data: a row a line, "cell | cell"; a line that begins with # is a comment.
std::vector<std::vector<std::string_view>> rows_of_table(std::string_view text);

// make(file), made when it is first asked for, from any thread; it lives as long as the program.
template <auto make>
const auto& made_once(const EmbeddedFile& file) {
  static std::mutex mutex;
  static std::map<std::string_view, decltype(make(file))> made;
  const std::scoped_lock lock(mutex);
  auto found = made.find(file.path);
  if (found == made.end()) found = made.emplace(file.path, make(file)).first;
  return found->second;
}

}
