// Files of the repository that are built into the program, so that it needs no installed data.
//
// foreshard_embed(target symbol globs...) in CMakeLists.txt defines one function per set of files:
//     std::span<const EmbeddedFile> symbol();      sorted by path
// Declare it in the folder that embeds the files; today: stack_files
// (sim/spec/stacks), models_files (models/zoo), calibration_files (calibration/machines, profiles,
// published), schema_files (cli/schemas) and page_files (reports/page, and d3).
#pragma once

#include <span>
#include <string_view>

namespace foreshard {

struct EmbeddedFile {
  std::string_view path;     // relative to the repository root, with forward slashes
  std::string_view content;  // the file's bytes as they are; lives as long as the program
};

}  // namespace foreshard
