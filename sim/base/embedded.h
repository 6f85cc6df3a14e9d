// Files of the repository that are built into the program, so that it needs no installed data.
//
// foreshard_embed(target symbol globs...) in CMakeLists.txt defines the functions below, one per set of files.
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

// Sorted by path; each is in the folder that embeds the files.
using EmbeddedFiles = std::span<const EmbeddedFile>;
EmbeddedFiles app_files(), calibration_files(), capability_files(), diagnosis_files(), family_files(),
    hf_family_files(), kernel_class_files(), key_page_files(), models_files(), option_files(), page_files(),
    parameter_name_files(), published_word_files(), recorder_files(), schema_files(), script_files(), stack_files(),
    stack_usage_files(), torch_mixer_files(), trainer_files(), trainer_setting_files();

// The one of that path, which is built in.
const EmbeddedFile& file_named(std::string_view path, EmbeddedFiles files);

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
