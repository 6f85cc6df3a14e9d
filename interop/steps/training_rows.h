// Rows of a table of measured training steps: one run each, with what was run and what it took.
//
// Columns and their grammar are training_words.yaml's (a contract; other columns are for people).
// An empty cell, `unknown` or a missing column: not published. Where global_batch_seqs is less than
// micro_batch x grad_accum x GPUs it is right: the last micro-batch is smaller. Tables in the words
// of those who publish them are read too (published_row()).
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "calibration/csv_table.h"

namespace foreshard {

struct TrainingRow {
  std::string id;
  int line = 0;
  // Cells that are published, by column; words are of the grammar.
  std::map<std::string, std::string, std::less<>> words;
  std::map<std::string, double, std::less<>> numbers;
  // Why it cannot be run: "n_gpus: '0': expected ...". "": it can.
  std::string problem;
  std::string refusal;  // what of it is not modelled; "": nothing that its words say

  bool has(std::string_view column) const {
    return words.find(column) != words.end() || numbers.find(column) != numbers.end();
  }
  // "" where it is not published.
  std::string_view word(std::string_view column) const;
  std::optional<double> number(std::string_view column) const;
  std::int64_t count(std::string_view column, std::int64_t otherwise = 0) const;
};

// Ranks that have samples of their own: GPUs over the degrees of tp, cp and pp.
std::int64_t ranks_with_samples(const TrainingRow& row);

// Whether the table is one: it has n_layers or zoo_model, seq_len, n_gpus and a measured column, or is a published one.
bool is_training_table(const CsvTable& table);

std::vector<TrainingRow> read_training_rows(const CsvTable& table);

// The words that a column may hold, `every_K` and `N` standing for numbers; none: any, or a number.
std::vector<std::string_view> words_of_column(std::string_view column);
// Keys of a plan with their values.
using PlanKeys = std::vector<std::pair<std::string, std::string>>;
// What the row's word in a column of words says of a plan.
const PlanKeys& plan_keys(const TrainingRow& row, std::string_view column);

struct TorchVersion {
  int major = 0, minor = 0;
  auto operator<=>(const TorchVersion&) const = default;
};
// Of `runtime_version`; where that is not published, the release current at `commit_date`. nullopt: neither, or no x.y.
std::optional<TorchVersion> torch_version(const TrainingRow& row);

// The id up to its first '-': rows of one family share a training code and its machines.
std::string family_of(const std::string& id);

// The training code of a row that does not name it.

// The row's `stack` where it is published (or "generic"). Else the code that the architecture is of, at the row's date
// or else PyTorch's version: MPT is llm-foundry's model (mosaicml/examples before May 2023) and trained by FSDP1,
// InternLM is InternEvo's and trained by ZeRO-1. "": not known.
std::string likely_stack(const TrainingRow& row);

// Tables of training steps as people publish them: a model's and a GPU's name, degrees of the axes
// and words for the rest, which become rows of the grammar (training_rows.h).
//
// Columns: model gpu n_gpus seq micro_batch global_batch dp_replicate dp_shard tp cp pp ep etp recompute dtype compile
// async_tp sequence_parallel dispatcher overlap runtime; of a part of a model its layers, of one that the zoo has not
// arch layers d_model heads kv_heads d_ff vocabulary tied; measured: tokens_per_s_per_gpu step_s memory_gib.

// Whether the table is one: it has model, gpu, n_gpus, seq, tp and a measured column.
bool is_published_table(const CsvTable& table);

// What a word leaves open stays unpublished; a word that names what is not modelled is the row's
// `refusal`. The id: that of the column, else the runtime's first word and the line.
TrainingRow published_row(const CsvTable& table, std::size_t index);

}
