// Rows of a table of training steps, by their cells.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "interop/steps/training_rows.h"

namespace foreshard {

using Cells = std::map<std::string, std::string>;

// A run of a small GPT on 16 A100 that is published in full.
inline Cells small_run() {
  return {{"id", "X-1"}, {"n_layers", "4"}, {"d_model", "1024"}, {"n_heads", "16"}, {"d_ff", "4096"},
      {"vocab", "50368"}, {"tied_embeddings", "1"}, {"seq_len", "2048"}, {"micro_batch_per_gpu", "4"},
      {"grad_accum", "2"}, {"global_batch_seqs", "128"}, {"n_gpus", "16"}, {"gpus_per_node", "8"}, {"gpu", "a100-80gb"},
      {"runtime", "fsdp1"}, {"runtime_version", "1.13"}, {"stack", "composer_2022"}, {"arch", "mpt"},
      {"shard_group", "16"}, {"replicate_group", "1"}, {"reshard", "always"}, {"recompute", "every_2"},
      {"step_time_s", "1.5"}};
}

inline CsvTable table_of(const std::vector<Cells>& rows) {
  std::string header, body;
  for (const auto& [name, cell] : rows.front()) header += (header.empty() ? "" : ",") + name;
  for (const Cells& row : rows) {
    std::string line;
    for (const auto& [name, cell] : row) line += (line.empty() ? "" : ",") + cell;
    body += line + "\r\n";
  }
  return CsvTable(header + "\n" + body, "runs.csv");
}

inline TrainingRow row_of(const Cells& cells) { return read_training_rows(table_of({cells})).front(); }

// A run of a small Llama on 16 H100 by a code that nobody has looked at.
inline Cells unknown_run(const std::string& runtime) {
  Cells cells = small_run();
  for (const char* column : {"stack", "recompute", "tied_embeddings", "global_batch_seqs"}) cells.erase(column);
  cells["runtime"] = runtime;
  cells["runtime_version"] = "2.6";
  cells["arch"] = "llama";
  cells["gpu"] = "h100-sxm";
  const bool is_whole = runtime == "ddp" || runtime == "zero1" || runtime == "zero2";
  cells["reshard"] = is_whole ? "never" : "always";
  if (runtime == "ddp") cells["shard_group"] = "1", cells["replicate_group"] = "16";
  return cells;
}

}
