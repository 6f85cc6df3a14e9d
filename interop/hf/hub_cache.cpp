// A folder's name is an id with "--" for its slash; an id may itself hold "--" behind the slash, so
// folders are compared with the id's own folder name, not taken apart where that can be avoided.
#include <fmt/format.h>

#include <algorithm>
#include <system_error>

#include "interop/hf/hf_config.h"
#include "sim/base/error.h"
#include "sim/base/letters.h"
#include "sim/base/text_file.h"

namespace foreshard {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "models--";
constexpr std::size_t kLongestId = 200;

// Letters, digits and ._- around one slash; "" where `id` is none.
std::string folder_of(std::string_view id) {
  const std::size_t slash = id.find('/');
  if (slash == 0 || slash == std::string_view::npos || slash + 1 >= id.size() || id.size() > kLongestId) return "";
  const std::string_view owner = cut(id, "/");
  const bool is_plain = std::ranges::all_of(owner, is_name_letter) && std::ranges::all_of(id, is_name_letter);
  return is_plain ? fmt::format("{}{}--{}", kPrefix, owner, id) : "";
}

// Names in a folder, in order; none where it cannot be read.
std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    names.push_back(entry->path().filename().string());
  std::ranges::sort(names);
  return names;
}

bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

std::optional<fs::path> config_in(const fs::path& repository) {
  constexpr std::size_t kLongestCommit = 100;
  const fs::path reference = repository / "refs" / "main";
  if (is_file(reference)) {
    std::string commit = read_text_start(reference, kLongestCommit + 1);
    commit = commit.substr(0, commit.find_first_of("\r\n \t"));
    const bool plain =
        commit.size() <= kLongestCommit && !commit.empty() && commit.find_first_of("/\\.") == std::string::npos;
    const fs::path config = repository / "snapshots" / commit / "config.json";
    if (plain && is_file(config)) return config;
  }
  std::vector<fs::path> found;
  for (const std::string& commit : names_in(repository / "snapshots")) {
    const fs::path config = repository / "snapshots" / commit / "config.json";
    if (is_file(config)) found.push_back(config);
  }
  if (found.size() != 1) return std::nullopt;
  return found.front();
}

}

std::optional<fs::path> cached_config(const fs::path& folder, std::string_view id) {
  const std::string wanted = folder_of(id);
  if (wanted.empty()) return std::nullopt;
  if (auto config = config_in(folder / wanted)) return config;
  const std::string loose = lower(wanted);
  for (const std::string& name : names_in(folder)) {
    if (lower(name) != loose) continue;
    if (auto config = config_in(folder / name)) return config;
  }
  return std::nullopt;
}

}
