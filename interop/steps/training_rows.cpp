// training_words.yaml lists the columns that programs read with the words or the range of each.
#include "interop/steps/training_rows.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "sim/base/config.h"
#include "sim/base/embedded.h"
#include "sim/base/error.h"
#include "sim/base/integers.h"
#include "sim/base/lookup.h"
#include "sim/base/parse.h"

namespace foreshard {
namespace {

struct WordColumn {
  std::string name;
  std::vector<std::string> words;  // empty: any
  std::vector<PlanKeys> keys;      // of each word
};

struct NumberColumn {
  std::string name;
  double least = 1;
  double most = 1e15;
  bool whole = true;
};

struct Grammar {
  std::vector<WordColumn> words;
  std::vector<NumberColumn> numbers;
};

const Grammar& grammar() {
  static const Grammar read = [] {
    constexpr std::string_view kPath = "interop/steps/training_words.yaml";
    const ConfigNode root = parse_yaml(file_named(kPath, published_word_files()).content, kPath);
    const ConfigNode words = root.at("words"), numbers = root.at("numbers");
    Grammar made;
    for (const ConfigItem& item : words.items()) {
      WordColumn& column = made.words.emplace_back();
      column.name = item.key;
      for (const ConfigItem& word : item.value.items()) {
        column.words.push_back(word.key);
        auto& keys = column.keys.emplace_back();
        for (const ConfigItem& key : word.value.items()) keys.emplace_back(key.key, key.value.as_string());
      }
    }
    for (const ConfigItem& item : numbers.items()) {
      NumberColumn& column = made.numbers.emplace_back();
      column.name = item.key;
      const auto& range = item.value.elements();
      if (range.empty()) continue;
      column.least = range[0].as_double();
      column.most = range[1].as_double();
      column.whole = range.size() < 3;
    }
    return made;
  }();
  return read;
}

bool is_unpublished(std::string_view cell) {
  return cell.empty() || cell == "unknown" || cell == "Unknown" || cell == "UNKNOWN";
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

std::optional<double> as_number(std::string_view text) {
  const std::optional<double> value = parse_number<double>(text);
  return value && std::isfinite(*value) ? value : std::nullopt;
}

bool is_count_after(std::string_view text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  const std::optional<double> count = as_number(text.substr(prefix.size()));
  return count && *count >= 1 && *count == std::floor(*count);
}

// What is wrong with a word; "": nothing.
std::string wrong_word(const WordColumn& column, std::string_view cell) {
  const auto one_of = [&](const auto& words) {
    return fmt::format("'{}': expected one of {}", cell, fmt::join(words, ", "));
  };
  if (column.name == "recompute" && is_count_after(cell, "every_")) return "";
  if (column.name == "reshard" && is_count_after(cell, "")) return "";
  if (column.words.empty()) return "";
  const bool known = contains(column.words, cell);
  return known ? "" : one_of(column.words);
}

void read_cells(const CsvTable& table, std::size_t index, TrainingRow& row) {
  const auto fail = [&](std::string_view column, const std::string& why) {
    if (!row.problem.empty()) return;
    row.problem = fmt::format("{}: {}", column, why);
  };
  for (const WordColumn& column : grammar().words) {
    if (!table.has(column.name)) continue;
    const std::string_view cell = trimmed(table.text(index, column.name));
    if (is_unpublished(cell)) continue;
    if (const std::string wrong = wrong_word(column, cell); !wrong.empty()) fail(column.name, wrong);
    else row.words.emplace(column.name, cell);
  }
  for (const NumberColumn& column : grammar().numbers) {
    if (!table.has(column.name)) continue;
    const std::string_view cell = trimmed(table.text(index, column.name));
    if (is_unpublished(cell)) continue;
    const std::optional<double> value = as_number(cell);
    const bool fits =
        value && *value >= column.least && *value <= column.most && (!column.whole || *value == std::floor(*value));
    if (!fits) {
      fail(column.name, fmt::format("'{}': expected a {} from {} to {}", cell, column.whole ? "whole number" : "number",
                            column.least, column.most));
    } else {
      row.numbers.emplace(column.name, *value);
    }
  }
}

}

std::string_view TrainingRow::word(std::string_view column) const {
  const auto found = words.find(column);
  return found == words.end() ? std::string_view() : std::string_view(found->second);
}

std::optional<double> TrainingRow::number(std::string_view column) const {
  const auto found = numbers.find(column);
  return found == numbers.end() ? std::nullopt : std::optional<double>(found->second);
}

std::int64_t TrainingRow::count(std::string_view column, std::int64_t otherwise) const {
  const std::optional<double> value = number(column);
  return value ? static_cast<std::int64_t>(*value) : otherwise;
}

std::int64_t ranks_with_samples(const TrainingRow& row) {
  const std::int64_t sharing = row.count("tp", 1) * row.count("cp", 1) * row.count("pp", 1);
  return std::max<std::int64_t>(1, row.count("n_gpus", 1) / sharing);
}

bool is_training_table(const CsvTable& table) {
  const bool measures = table.has("step_time_s") || table.has("tokens_per_s_per_gpu") ||
                        table.has("peak_mem_reserved_GiB") || table.has("peak_mem_alloc_GiB") ||
                        table.has("peak_mem_total_GiB");
  const bool shaped = table.has("n_layers") || table.has("zoo_model");
  return (measures && shaped && table.has("seq_len") && table.has("n_gpus")) || is_published_table(table);
}

std::vector<std::string_view> words_of_column(std::string_view column) {
  const auto& columns = grammar().words;
  const auto found = std::ranges::find(columns, column, &WordColumn::name);
  if (found == columns.end()) return {};
  return {found->words.begin(), found->words.end()};
}

const PlanKeys& plan_keys(const TrainingRow& row, std::string_view column) {
  static const PlanKeys none;
  const auto& columns = grammar().words;
  const auto found = std::ranges::find(columns, column, &WordColumn::name);
  FORESHARD_CHECK(found != columns.end(), "a column without words");
  const auto word = std::ranges::find(found->words, row.word(column));
  return word == found->words.end() ? none : found->keys[at(word - found->words.begin())];
}

namespace {

// Release dates (github.com/pytorch/pytorch/releases).
struct Release {
  std::string_view date;
  TorchVersion version;
};
constexpr Release kReleases[] = {{"2022-03-10", {1, 11}}, {"2022-06-28", {1, 12}}, {"2022-10-28", {1, 13}},
    {"2023-03-15", {2, 0}}, {"2023-10-04", {2, 1}}, {"2024-01-30", {2, 2}}, {"2024-04-24", {2, 3}},
    {"2024-07-24", {2, 4}}, {"2024-10-17", {2, 5}}, {"2025-01-29", {2, 6}}, {"2025-04-23", {2, 7}},
    {"2025-08-06", {2, 8}}, {"2025-10-15", {2, 9}}, {"2026-01-21", {2, 10}}, {"2026-03-23", {2, 11}}};

// A date without a day is its month's first.
std::optional<TorchVersion> release_at(std::string_view date) {
  std::optional<TorchVersion> current;
  for (const Release& release : kReleases)
    if (!date.empty() && date >= release.date) current = release.version;
  return current;
}

}

std::optional<TorchVersion> torch_version(const TrainingRow& row) {
  const std::string_view text = row.word("runtime_version");
  if (text.empty()) return release_at(row.word("commit_date"));
  const auto numbers = parse_version(text);
  if (!numbers) return std::nullopt;
  return TorchVersion{numbers->first, numbers->second};
}

std::string family_of(const std::string& id) { return id.substr(0, id.find('-')); }

std::vector<TrainingRow> read_training_rows(const CsvTable& table) {
  std::vector<TrainingRow> rows;
  const bool in_words = is_published_table(table);
  for (std::size_t i = 0; i < table.rows(); ++i) {
    if (in_words) {
      rows.push_back(published_row(table, i));
      continue;
    }
    TrainingRow row = {.line = table.line(i)};
    row.id = table.has("id") && !table.empty(i, "id") ? table.text(i, "id") : fmt::format("line {}", row.line);
    read_cells(table, i, row);
    rows.push_back(std::move(row));
  }
  return rows;
}

namespace {

struct Era {
  std::string_view stack;
  std::string_view from_date;  // ISO; of the code
  TorchVersion from_torch;     // that its images had
};

// The repositories' own histories, sources in sim/spec/stacks: Triton's kernel came with llm-foundry (first release
// 2023-05-05), PyTorch 2.1 with its 0.3.0 (2023-10), FlashAttention-2 as the default with 0.7.0 (2024-04).
constexpr Era kMosaic[] = {{"composer_2022", "", {}}, {"composer_2023_02", "2023-02", {1, 13}},
    {"composer_2023_05", "2023-05", {2, 0}}, {"composer_2023_10", "2023-10", {2, 1}},
    {"llm_foundry", "2024-04", {2, 3}}};

std::string_view mosaic_stack(const TrainingRow& row) {
  const std::string_view date = row.word("commit_date");
  const std::optional<TorchVersion> torch = torch_version(row);
  if (date.empty() && !torch) return "";
  const Era* era = std::begin(kMosaic);
  for (const Era& each : kMosaic)
    if (date.empty() ? *torch >= each.from_torch : date >= each.from_date) era = &each;
  return era->stack;
}

}

std::string likely_stack(const TrainingRow& row) {
  if (row.has("stack")) return std::string(row.word("stack"));
  const std::string_view arch = row.word("arch"), runtime = row.word("runtime");
  if (arch == "mpt" && runtime == "fsdp1") return std::string(mosaic_stack(row));
  if (arch == "internlm" && runtime == "zero1") return "internevo";
  return "";
}

}
