// Names become lists of runs of letters and of digits ("8b" is 8, b), which are compared. Words
// that may be left out are tried in all subsets, fewest first, of which there are few.
#include "models/names.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "models/zoo.h"
#include "sim/base/config.h"
#include "sim/base/error.h"
#include "sim/base/letters.h"
#include "sim/base/lookup.h"
#include "sim/base/spelling.h"

namespace foreshard {
namespace {

constexpr std::size_t kLongestName = 200;
constexpr std::size_t kMostVariantWords = 8;
constexpr std::size_t kMostShown = 6;

using Words = std::vector<std::string>;

// "llama-3.1-8b" -> llama 3 1 8 b.
Words runs_of(std::string_view text) {
  Words runs;
  char before = ' ';
  for (const char c : lower(text)) {
    const bool counts = is_digit(c) || is_letter(c);
    const bool goes_on = (is_digit(c) && is_digit(before)) || (is_letter(c) && is_letter(before));
    if (counts && !goes_on) runs.emplace_back();
    if (counts) runs.back() += c;
    before = c;
  }
  return runs;
}

// The parts between slashes, dashes, underscores and spaces: what a variant word is.
Words parts_of(std::string_view text) {
  Words parts(1);
  for (const char c : lower(text)) {
    const bool separates = c == '-' || c == '_' || c == ' ' || c == ':';
    if (!separates) parts.back() += c;
    else if (!parts.back().empty()) parts.emplace_back();
  }
  if (parts.back().empty()) parts.pop_back();
  return parts;
}

std::string_view without_organisation(std::string_view text) {
  const std::size_t slash = text.rfind('/');
  return slash == std::string_view::npos ? text : text.substr(slash + 1);
}

struct Names {
  Words variants;
  std::vector<std::pair<std::string, std::string>> aliases;
};

Names read_names() {
  for (const EmbeddedFile& file : models_files()) {
    if (file.path != "models/zoo/names.yaml") continue;
    const ConfigNode root = parse_yaml(file.content, file.path);
    root.allow_only({"variants", "aliases"});
    Names names;
    const ConfigNode variants = root.at("variants"), aliases = root.at("aliases");
    for (const ConfigNode& word : variants.elements()) names.variants.push_back(word.as_string());
    for (const ConfigItem& item : aliases.items()) names.aliases.emplace_back(item.key, item.value.as_string());
    return names;
  }
  throw Error(ExitCode::kInternal, "internal error: models/zoo/names.yaml is not built in");
}

bool is_variant_word(const Words& known, std::string_view part) {
  if (contains(known, part)) return true;
  const auto all_digits = [](std::string_view text) { return !text.empty() && std::ranges::all_of(text, is_digit); };
  if (part.size() == 4 && all_digits(part)) return true;
  if (part.ends_with('k') && all_digits(part.substr(0, part.size() - 1))) return true;
  const std::string_view release = part.starts_with('v') ? part.substr(1) : "";
  return !release.empty() && std::ranges::all_of(release, [](char c) { return is_digit(c) || c == '.'; });
}

// The name of the zoo with these runs, and whether it is another's alias.
std::optional<PublishedName> find(const Names& names, const Words& zoo, const Words& runs) {
  for (const std::string& name : zoo)
    if (runs_of(name) == runs) return PublishedName{name, false};
  for (const auto& [alias, name] : names.aliases)
    if (runs_of(alias) == runs) return PublishedName{name, true};
  return std::nullopt;
}

std::size_t shared_runs(const Words& a, const Words& b) {
  return at(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

// The beginning of `name` that holds so many runs: "llama-3" of llama-3-8b.
std::string beginning(const std::string& name, std::size_t runs) {
  std::size_t end = name.size();
  while (end > 0 && runs_of(name.substr(0, end)).size() > runs) --end;
  while (end > 0 && !is_digit(name[end - 1]) && !is_letter(name[end - 1])) --end;
  return name.substr(0, end);
}

}

std::optional<PublishedName> published_name(std::string_view text) {
  if (text.empty() || text.size() > kLongestName) return std::nullopt;
  const Words zoo = zoo_names();
  const Names names = read_names();
  const Words parts = parts_of(without_organisation(text));
  std::vector<std::size_t> variants;
  for (std::size_t i = 0; i < parts.size(); ++i)
    if (is_variant_word(names.variants, parts[i])) variants.push_back(i);
  if (variants.size() > kMostVariantWords) return std::nullopt;
  const unsigned all = 1U << variants.size();
  for (std::size_t dropped = 0; dropped <= variants.size(); ++dropped) {
    for (unsigned mask = 0; mask < all; ++mask) {
      if (at(std::popcount(mask)) != dropped) continue;
      std::string kept;
      for (std::size_t i = 0; i < parts.size(); ++i) {
        const auto at = std::ranges::find(variants, i);
        const bool drops = at != variants.end() && (mask >> (at - variants.begin()) & 1U) != 0;
        if (!drops) kept += parts[i] + "-";
      }
      if (auto found = find(names, zoo, runs_of(kept))) {
        found->is_variant = found->is_variant || dropped > 0;
        return found;
      }
    }
  }
  return std::nullopt;
}

std::vector<std::string> zoo_names_with(std::string_view filter) {
  const Words wanted = runs_of(filter);
  std::vector<std::string> result;
  if (wanted.empty()) return result;
  for (const std::string& name : zoo_names()) {
    const Words runs = runs_of(name);
    const auto found = std::search(runs.begin(), runs.end(), wanted.begin(), wanted.end(),
        [](const std::string& run, const std::string& part) { return contains(run, part); });
    if (found != runs.end()) result.push_back(name);
  }
  return result;
}

SimilarNames similar_names(std::string_view text) {
  const Words wanted = runs_of(without_organisation(text));
  SimilarNames similar;
  std::size_t most = 0;
  bool alike = false;  // of as many runs: llama-3-8b is nearer to llama-3-9b than llama-3.1-8b is
  for (const std::string& name : zoo_names()) {
    const Words runs = runs_of(name);
    const std::size_t shared = shared_runs(runs, wanted);
    const bool same_form = runs.size() == wanted.size();
    if (shared == 0 || shared < most || (shared == most && alike && !same_form)) continue;
    if (shared > most || (same_form && !alike)) {
      similar = {beginning(name, shared), {}};
      alike = same_form;
    }
    most = shared;
    if (similar.names.size() < kMostShown) similar.names.push_back(name);
  }
  return similar;
}

std::string unknown_model(std::string_view text) {
  std::string message = fmt::format("unknown model {}", quote(text));
  const SimilarNames similar = similar_names(text);
  const Words names = zoo_names();
  const std::string meant = nearest_spelling(without_organisation(text), names);
  if (similar.names.size() == 1) message += fmt::format("; did you mean {}?", similar.names.front());
  else if (!similar.names.empty())
    message += fmt::format("; {} comes as {}", similar.family, fmt::join(similar.names, ", "));
  else if (!meant.empty()) message += fmt::format("; did you mean {}?", meant);
  return message + fmt::format("; \"foreshard models{}\" lists {}, a path such as ./config.json names any other",
                       similar.family.empty() ? "" : " " + similar.family,
                       similar.family.empty() ? "those that are known" : "them");
}

}
