#include "planner/model_name.h"

#include <fmt/format.h>

#include <cstdlib>
#include <regex>
#include <system_error>
#include <utility>

#include "models/names.h"
#include "models/yaml/model_yaml.h"
#include "models/zoo.h"
#include "sim/base/letters.h"
#include "sim/base/lookup.h"
#include "sim/base/parse.h"
#include "sim/base/spelling.h"
#include "sim/base/text_file.h"

namespace foreshard {
namespace {

namespace fs = std::filesystem;

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// "~/models" as the shell would have written it, had it not been quoted or behind a "=".
fs::path without_tilde(const std::string& text, const fs::path& seen) {
  const std::string home = environment("HOME");
  return text.starts_with("~/") && !home.empty() ? fs::path(home) / text.substr(2) : seen;
}

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

bool is_written_as_path(const std::string& text) {
  for (const char* end : {".json", ".yaml", ".yml", "/"})
    if (text.ends_with(end)) return true;
  for (const char* begin : {"/", "./", "../", "~/"})
    if (text.starts_with(begin)) return true;
  return text == "." || text == "..";
}

ModelName from_path(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) return {.file = path};
  const fs::path config = path / "config.json";
  if (!is_there(config)) {
    throw invalid_input(
        "{}: is a directory without a config.json; expected a model's folder or the file itself", path.string());
  }
  // "." has a name only once it is spelled out.
  const fs::path whole = fs::weakly_canonical(path, ignored);
  return {.file = config, .title = whole.filename().string()};
}

}

std::vector<fs::path> hub_cache_folders() {
  if (const std::string cache = environment("HF_HUB_CACHE"); !cache.empty()) return {cache};
  if (const std::string home = environment("HF_HOME"); !home.empty()) return {fs::path(home) / "hub"};
  std::string cache = environment("XDG_CACHE_HOME");
  if (cache.empty() && !environment("HOME").empty()) cache = environment("HOME") + "/.cache";
  if (cache.empty()) return {};
  return {fs::path(cache) / "huggingface" / "hub"};
}

bool is_model_yaml(const fs::path& path) {
  if (path.extension() != ".yaml" && path.extension() != ".yml") return false;
  // A config.json by another name is JSON all the same.
  const std::string text = fs::is_regular_file(path) ? read_text_start(path, 64) : "";
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  return first == std::string::npos || text[first] != '{';
}

ModelName find_model(const std::string& text, const fs::path& seen) {
  static const std::regex head(R"((.+)\+(scores|values)([1-9][0-9]{0,8})?)");
  if (std::smatch parts; std::regex_match(text, parts, head)) {
    const std::string whole = seen.string();
    const auto behind = text.size() - static_cast<std::size_t>(parts[1].length());
    ModelName name = find_model(parts[1], whole.substr(0, whole.size() - behind));
    name.scores = parse_number<std::int64_t>(parts[3].str()).value_or(1);
    if (parts[2] == "values") name.score_of = ScoreOf::kValue;
    return name;
  }
  const fs::path path = without_tilde(text, seen);
  const bool has_slash = contains(text, '/');
  if (is_written_as_path(text) || (has_slash && is_there(path))) return from_path(path);
  if (is_zoo_model(text)) return {.zoo = text};
  if (const auto published = published_name(text)) {
    ModelName name{.zoo = published->zoo};
    if (published->is_variant)
      name.notes.push_back(fmt::format("model {} has the sizes of {}, which is forecast", quote(text), published->zoo));
    return name;
  }
  for (const fs::path& folder : hub_cache_folders())
    if (const auto config = cached_config(folder, text))
      return {.file = *config, .title = text.substr(text.find('/') + 1), .is_cached = true};
  if (is_there(path)) return from_path(path);
  std::string message = unknown_model(text);
  if (has_slash) message += "; its config.json is not in the Hugging Face cache of this machine";
  throw Error(ExitCode::kInvalidInput, message);
}

LoadedModel load_model(const ModelName& name, Stack stack) {
  const auto with_head = [&](ModelDims dims) {
    if (name.scores == 0 || dims.scores > 0) return dims;
    dims.scores = name.scores;
    dims.score_of = name.score_of;
    return dims;
  };
  const auto expect_head = [&](bool has_it) {
    if (has_it || name.scores == 0) return;
    throw Error(ExitCode::kMissingCapability,
        "{}: another head is for language models by their configuration; expected the name without +scores or +values",
        name.zoo.empty() ? name.file.string() : name.zoo);
  };
  if (!name.zoo.empty()) {
    for (const ZooEntry& entry : name.scores > 0 ? zoo() : std::vector<ZooEntry>{}) {
      if (entry.dims.name != lower(name.zoo)) continue;
      return {build_model(with_head(entry.dims), stack), std::nullopt, name.notes};
    }
    expect_head(false);
    return {load_zoo_model(name.zoo, stack), std::nullopt, name.notes};
  }
  if (is_model_yaml(name.file)) {
    expect_head(false);
    ModelSpec model = load_model_yaml(name.file);
    if (stack == Stack::kEager) return {std::move(model), std::nullopt, name.notes};
    throw Error(ExitCode::kMissingCapability,
        "{}: the engine has kernels for the families that are built in, not for operations from a file; nearest plan: "
        "runtime: fsdp2",
        name.file.string());
  }
  HfConfig config =
      name.title.empty() ? read_hf_config(name.file) : parse_hf_config(read_json_file(name.file), name.title);
  const HfConfig own = config;
  config.dims = with_head(std::move(config.dims));
  LoadedModel loaded{build_hf_model(config, stack), std::nullopt, name.notes};
  expect_head(own.dims.scores > 0 || name.scores == 0 || loaded.model != build_hf_model(own, stack));
  for (const std::string& note : config.notes)
    loaded.notes.push_back(fmt::format("model {}: {}", loaded.model.name, note));
  loaded.config = std::move(config);
  return loaded;
}

}
