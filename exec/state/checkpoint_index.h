// `index.json` of a checkpoint: how far the run was, where every parameter lies, and the size and
// checksums of every file. Schema "foreshard.checkpoint/1".
//
// It ends with the checksum of its own text, so that an altered index is refused before it is read.
// An index with the right checksum is still input: names, numbers and sums are checked.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "exec/state/durable_file.h"
#include "exec/state/training_state.h"

namespace foreshard {

struct CheckpointFile {
  std::string name;  // in the checkpoint's folder; no path
  WrittenFile written;
};

struct CheckpointIndex {
  RunProgress progress;
  std::int64_t saved = 0;  // counts the saves into the folder: a higher number is newer
  std::int64_t shards = 1;
  std::int64_t replicas = 1;
  std::int64_t parts = 1;             // ranks of mesh.tp
  std::vector<StateUnit> units;       // arrays without data
  std::vector<CheckpointFile> files;  // of shard 0, 1, ... of part 0, 1, ...
  std::uint64_t checksum = 0;         // of the text
};

inline constexpr std::string_view kIndexName = "index.json";

// The tensor of a unit's array in every file: its shape is [shard_numel].
std::string tensor_name(const StateUnit& unit, const StateArray& array);

// The text of index.json, with its checksum.
std::string index_text(const CheckpointIndex& index);
// `text` (ending as index_text's does) with the checksum that fits it.
std::string seal_index(std::string text);
// Throws Error(kInvalidInput) or ConfigError naming the file and what is wrong.
CheckpointIndex parse_index(std::string_view text, const std::string& file_name);
// Of one checkpoint's folder.
CheckpointIndex read_index(const std::filesystem::path& checkpoint);

}
