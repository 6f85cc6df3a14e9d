// One table lists the columns that programs read with the words or the range of each.
#include "interop/steps/training_rows.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>

namespace foreshard {
namespace {

struct WordColumn {
  std::string_view name;
  std::vector<std::string_view> words;  // empty: any
};

const std::vector<WordColumn>& word_columns() {
  static const std::vector<WordColumn> columns = {
      {"runtime", {"fsdp1", "fsdp2", "ddp", "zero1", "zero2", "zero3", "xla_fsdp"}},
      {"runtime_version", {}},
      {"commit_date", {}},
      {"stack", {}},
      {"arch", {"mpt", "gpt", "llama", "internlm", "qwen3"}},
      {"attention_kernel",
       {"fa1", "fa2", "fa3", "triton", "cudnn", "sdpa_flash", "sdpa_efficient", "math", "sdpa"}},
      {"norm_impl",
       {"layer_norm_eager", "layer_norm_low_precision", "rms_eager", "rms_fused", "compiled"}},
      {"rope_impl", {"none", "complex_eager", "real_eager", "fused", "compiled"}},
      {"residual_dtype", {"bf16", "fp32"}},
      {"loss_impl",
       {"eager_fp32", "eager_bf16", "chunked_fp32", "fused", "fused_linear", "tiled_linear",
        "compiled"}},
      {"gather_dtype", {"bf16", "fp32"}},
      {"reduction_dtype", {"bf16", "fp32"}},
      {"master_dtype", {"fp32", "bf16"}},
      {"optimizer_impl", {"adamw_loop", "adamw_foreach", "adamw_fused"}},
      {"recompute", {"none", "full", "selective_op", "save_dots_except_mlp", "every_K"}},
      {"compile", {"none", "block", "full", "loss_only"}},
      {"fp8", {"none", "tensorwise", "rowwise", "rowwise_gw_hp", "delayed", "unspecified"}},
      {"reshard", {"always", "never", "always_except_last", "N"}},
      {"embedding_unit", {"root", "own"}},
      {"prefetch_kind", {"implicit", "backward_pre", "backward_post", "none"}},
      {"offload", {"none", "optimizer", "params"}},
      {"sequence_parallel", {"yes", "no"}},
      {"dispatcher", {"alltoall", "deepep"}},
      {"cp_exchange", {"p2p", "all_gather", "a2a"}},
      {"overlap", {"yes", "no"}},
      {"expert_overlap", {"yes", "no"}},
      {"cuda_graphs", {"none", "modules", "iteration", "routers"}},
      {"gpu", {}},
      {"zoo_model", {}},
      {"score", {"yes", "flag", "no"}},
      {"score_reason", {}},
  };
  return columns;
}

struct NumberColumn {
  std::string_view name;
  double least = 1;
  double most = 1e15;
  bool whole = true;
};

constexpr NumberColumn kNumbers[] = {
    {"n_layers"},
    {"d_model"},
    {"n_heads"},
    {"n_kv_heads"},
    {"head_dim"},
    {"d_ff"},
    {"vocab"},
    {"tied_embeddings", 0, 1},
    {"seq_len"},
    {"micro_batch_per_gpu"},
    {"grad_accum"},
    {"global_batch_seqs"},
    {"n_gpus", 1, 1'048'576},
    {"gpus_per_node", 1, 1024},
    {"train_metrics", 0, 64},
    {"fp8_all_gather", 0, 1},
    {"shard_group"},
    {"replicate_group"},
    {"tp"},
    {"cp"},
    {"ep"},
    {"etp"},
    {"pp"},
    {"vp"},
    {"async_tp", 0, 1},
    {"forward_prefetch", 0, 1},
    {"limit_all_gathers", 0, 1},
    {"network_gbit_s_per_node", 1e-3, 1e7, false},
    {"power_limit_w", 1, 1e5, false},
    {"step_time_s", 1e-6, 1e6, false},
    {"tokens_per_s_per_gpu", 1e-6, 1e12, false},
    {"peak_mem_alloc_GiB", 1e-6, 1e5, false},
    {"peak_mem_reserved_GiB", 1e-6, 1e5, false},
};

bool is_unpublished(std::string_view cell) {
  return cell.empty() || cell == "unknown" || cell == "Unknown" || cell == "UNKNOWN";
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

std::optional<double> as_number(std::string_view text) {
  double value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) {
    return std::nullopt;
  }
  return value;
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
  const bool known = std::ranges::find(column.words, cell) != column.words.end();
  return known ? "" : one_of(column.words);
}

void read_cells(const CsvTable& table, std::size_t index, TrainingRow& row) {
  const auto fail = [&](std::string_view column, const std::string& why) {
    if (!row.problem.empty()) return;
    row.problem = fmt::format("{}: {}", column, why);
  };
  for (const WordColumn& column : word_columns()) {
    if (!table.has(column.name)) continue;
    const std::string_view cell = trimmed(table.text(index, column.name));
    if (is_unpublished(cell)) continue;
    if (const std::string wrong = wrong_word(column, cell); !wrong.empty()) {
      fail(column.name, wrong);
    } else {
      row.words.emplace(column.name, cell);
    }
  }
  for (const NumberColumn& column : kNumbers) {
    if (!table.has(column.name)) continue;
    const std::string_view cell = trimmed(table.text(index, column.name));
    if (is_unpublished(cell)) continue;
    const std::optional<double> value = as_number(cell);
    const bool fits = value && *value >= column.least && *value <= column.most &&
                      (!column.whole || *value == std::floor(*value));
    if (!fits) {
      fail(column.name,
           fmt::format("'{}': expected a {} from {} to {}", cell,
                       column.whole ? "whole number" : "number", column.least, column.most));
    } else {
      row.numbers.emplace(column.name, *value);
    }
  }
}

}  // namespace

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
                        table.has("peak_mem_reserved_GiB") || table.has("peak_mem_alloc_GiB");
  const bool shaped = table.has("n_layers") || table.has("zoo_model");
  return (measures && shaped && table.has("seq_len") && table.has("n_gpus")) ||
         is_published_table(table);
}

std::vector<std::string_view> words_of_column(std::string_view column) {
  for (const WordColumn& each : word_columns()) {
    if (each.name == column) return each.words;
  }
  return {};
}

namespace {

// Release dates (github.com/pytorch/pytorch/releases).
struct Release {
  std::string_view date;
  TorchVersion version;
};
constexpr Release kReleases[] = {
    {"2022-03-10", {1, 11}}, {"2022-06-28", {1, 12}}, {"2022-10-28", {1, 13}},
    {"2023-03-15", {2, 0}},  {"2023-10-04", {2, 1}},  {"2024-01-30", {2, 2}},
    {"2024-04-24", {2, 3}},  {"2024-07-24", {2, 4}},  {"2024-10-17", {2, 5}},
    {"2025-01-29", {2, 6}},  {"2025-04-23", {2, 7}},  {"2025-08-06", {2, 8}},
    {"2025-10-15", {2, 9}},  {"2026-01-21", {2, 10}}, {"2026-03-23", {2, 11}}};

// A date without a day is its month's first.
std::optional<TorchVersion> release_at(std::string_view date) {
  std::optional<TorchVersion> current;
  for (const Release& release : kReleases) {
    if (!date.empty() && date >= release.date) current = release.version;
  }
  return current;
}

}  // namespace

std::optional<TorchVersion> torch_version(const TrainingRow& row) {
  const std::string_view text = row.word("runtime_version");
  if (text.empty()) return release_at(row.word("commit_date"));
  TorchVersion version;
  const char* end = text.data() + text.size();
  const auto [dot, failure] = std::from_chars(text.data(), end, version.major);
  if (failure != std::errc() || dot == end || *dot != '.') return std::nullopt;
  std::from_chars(dot + 1, end, version.minor);
  return version;
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
    TrainingRow row;
    row.line = table.line(i);
    row.id = table.has("id") && !table.empty(i, "id") ? table.text(i, "id")
                                                      : fmt::format("line {}", row.line);
    read_cells(table, i, row);
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace foreshard
