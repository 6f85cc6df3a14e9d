#include "interop/recordings/recordings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <utility>

#include "sim/base/config.h"
#include "sim/base/spelling.h"

namespace foreshard {
namespace {

namespace fs = std::filesystem;

// "2.4.1" before "2.10.0".
bool numbers_count(const std::string& a, const std::string& b) {
  const auto digit = [](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; };
  std::size_t i = 0;
  std::size_t j = 0;
  while (i < a.size() && j < b.size()) {
    if (digit(a[i]) && digit(b[j])) {
      std::size_t k = i;
      std::size_t l = j;
      while (k < a.size() && digit(a[k])) ++k;
      while (l < b.size() && digit(b[l])) ++l;
      const std::string x = a.substr(i, k - i);
      const std::string y = b.substr(j, l - j);
      if (x.size() != y.size()) return x.size() < y.size();
      if (x != y) return x < y;
      i = k;
      j = l;
    } else {
      if (a[i] != b[j]) return a[i] < b[j];
      ++i;
      ++j;
    }
  }
  return a.size() - i < b.size() - j;
}

fs::path real(const fs::path& path) {
  std::error_code error;
  fs::path found = fs::canonical(path, error);
  return error ? path : found;
}

// As Python writes it into a CSV file.
std::string python_word(const ConfigNode& value) {
  if (value.is_null()) return "";
  std::string text(value.text());
  if (!value.is_quoted() && text == "true") return "True";
  if (!value.is_quoted() && text == "false") return "False";
  return text;
}

}

std::vector<fs::path> find_recordings(const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    throw invalid_input("{}: {}; expected a folder with index.csv, or one above such folders", path.string(),
        fs::exists(path, error) ? "is not a folder" : "no such folder");
  }
  if (!csv_path(path, "index").empty()) return {path};
  std::vector<fs::path> found;
  fs::recursive_directory_iterator it(path, fs::directory_options::skip_permission_denied, error);
  for (; !error && it != fs::recursive_directory_iterator(); it.increment(error)) {
    if (!it->is_directory()) continue;
    if (it->path().filename() == "gloo") it.disable_recursion_pending();
    else if (!csv_path(it->path(), "index").empty()) found.push_back(it->path());
  }
  if (error) throw invalid_input("{}: cannot be searched: {}", path.string(), error.message());
  if (found.empty()) {
    throw invalid_input(
        "{}: holds no recording; expected a folder with index.csv or index.csv.gz, or one above such folders",
        path.string());
  }
  std::ranges::sort(found, [](const fs::path& a, const fs::path& b) { return numbers_count(a.string(), b.string()); });
  return found;
}

RecordingFolder::RecordingFolder(fs::path path)
    : path_(std::move(path)), index_(read_csv_file(csv_path(path_, "index"))) {
  id_ = index_.find("id") || !index_.find("config") ? index_.at("id") : index_.at("config");
  for (std::size_t row = 0; row < index_.rows(); ++row)
    if (!row_of_.emplace(index_.text(row, id_), row).second)
      throw index_.error(row, id_, "the configuration stands twice");
  read_configs();
  if (const fs::path file = csv_path(path_, "skipped"); !file.empty()) {
    const CsvFile skipped = read_csv_file(file);
    const std::size_t id = skipped.at("config");
    const std::size_t reason = skipped.at("reason");
    for (std::size_t row = 0; row < skipped.rows(); ++row)
      skipped_.push_back({std::string(skipped.text(row, id)), std::string(skipped.text(row, reason))});
  }
}

fs::path RecordingFolder::configs_file() const {
  std::error_code ignored;
  const fs::path own = path_ / "configs.json";
  return fs::is_regular_file(own, ignored) ? own : real(path_).parent_path() / "configs.json";
}

void RecordingFolder::read_configs() {
  const fs::path file = configs_file();
  std::error_code ignored;
  if (!fs::is_regular_file(file, ignored)) return;
  const ConfigNode root = read_json_file(file);
  if (!root.is_sequence()) return;  // another library's
  for (const ConfigNode& config : root.elements()) {
    if (!config.is_mapping() || !config.has("id")) continue;
    auto& settings = configs_[config.at("id").as_string()];
    for (const ConfigItem& item : config.items()) {
      if (item.key == "id" || item.key == "note") continue;
      if (item.value.is_null() || item.value.is_scalar()) settings[item.key] = python_word(item.value);
    }
  }
}

std::optional<std::size_t> RecordingFolder::find(std::string_view id) const {
  const auto found = row_of_.find(id);
  if (found == row_of_.end()) return std::nullopt;
  return found->second;
}

std::optional<std::string> RecordingFolder::setting(std::size_t row, std::string_view name) const {
  if (const auto column = index_.find(name)) return std::string(index_.text(row, *column));
  const auto config = configs_.find(id(row));
  if (config == configs_.end()) return std::nullopt;
  const auto found = config->second.find(std::string(name));
  if (found == config->second.end()) return std::nullopt;
  return found->second;
}

std::vector<std::string> RecordingFolder::configured(std::size_t row) const {
  std::vector<std::string> names;
  if (const auto config = configs_.find(id(row)); config != configs_.end())
    for (const auto& [name, value] : config->second) names.push_back(name);
  return names;
}

std::optional<std::string> RecordingFolder::refusal(std::size_t row) const {
  const auto cell = [&](std::string_view column) {
    const auto found = index_.find(column);
    return found ? std::string(index_.text(row, *found)) : std::string();
  };
  if (index_.find("status") && cell("status") != "ok") {
    const std::string error = cell("error");
    return error.empty() ? "status " + cell("status") : error;
  }
  if (const std::string library = cell("lib"); !library.empty() && library != "fsdp2")
    return fmt::format("a recording of {}, which is not forecast", library);
  return std::nullopt;
}

const RecordingFolder::Table& RecordingFolder::load(const std::string& name) const {
  const auto [it, is_new] = tables_.try_emplace(name);
  Table& table = it->second;
  if (!is_new) return table;
  const fs::path file = csv_path(path_, name);
  if (file.empty()) return table;
  table.file = read_csv_file(file);
  const std::size_t config = table.file->at("config");
  std::vector<std::size_t>* rows = nullptr;
  std::string_view last;
  for (std::size_t row = 0; row < table.file->rows(); ++row) {
    const std::string_view id = table.file->text(row, config);
    if (rows == nullptr || id != last) rows = &table.rows[std::string(id)];
    rows->push_back(row);
    last = id;
  }
  return table;
}

const CsvFile* RecordingFolder::table(const std::string& name) const {
  const Table& table = load(name);
  return table.file ? &*table.file : nullptr;
}

const std::vector<std::size_t>& RecordingFolder::rows(const std::string& name, std::string_view id) const {
  static const std::vector<std::size_t> kNone;
  const Table& table = load(name);
  const auto found = table.rows.find(id);
  return found == table.rows.end() ? kNone : found->second;
}

const RecordingFolder& RecordingLibrary::open(const fs::path& path) {
  std::unique_ptr<RecordingFolder>& folder = folders_[real(path)];
  if (folder == nullptr) folder = std::make_unique<RecordingFolder>(path);
  return *folder;
}

const RecordingFolder& RecordingLibrary::sibling(
    const RecordingFolder& folder, const std::string& version, std::size_t row, std::string_view column) {
  const fs::path parent = real(folder.path()).parent_path();
  const fs::path above = parent.parent_path();
  for (const fs::path& candidate : {parent / version, above / "fsdp2", parent / "fsdp2", parent / ("fsdp2-" + version),
           above / ("fsdp2-" + version)}) {
    if (csv_path(candidate, "index").empty()) continue;
    const RecordingFolder& other = open(candidate);
    const auto found = other.find(folder.id(row));
    if (found && &other != &folder && other.setting(*found, "torch").value_or("") == version) return other;
  }
  throw folder.index().error(row, folder.index().at(column),
      fmt::format("the recording of {} by version {} is nowhere near", quote(folder.id(row)), version),
      fmt::format("{} or {}", (parent / version).string(), (above / "fsdp2").string()));
}

}
