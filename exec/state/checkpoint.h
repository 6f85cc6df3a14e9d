// Saving and loading a run's state, by all ranks together.
//
// A checkpoint is a folder of one safetensors file per shard and an index.json, which is written
// last and names the checksums of every 4 MiB of every file; the folder gets its name when all of
// it is on the disk. So a name that is there is whole, unless somebody altered it later, which the
// checksums show. A run of any number of shards, units, padding and dtypes can load it.
//
// The folder must be one that all ranks see.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "exec/comm/world.h"
#include "exec/state/checkpoint_folder.h"
#include "exec/state/training_state.h"

namespace foreshard {

struct CheckpointTarget {
  std::filesystem::path folder;  // created where it does not exist
  std::int64_t keep = 0;         // newest checkpoints that stay; 0: all
  // Those of this step and later stay, too, and are not counted: what the run has yet to reach.
  std::int64_t spared_from = std::numeric_limits<std::int64_t>::max();
};

struct SavedCheckpoint {
  std::filesystem::path path;
  std::vector<std::string> warnings;  // rank 0: old checkpoints that could not be removed
};

// Saves `progress.step`, replacing a checkpoint of that step. All ranks call it. Where any rank
// cannot write, all throw the same Error(kInvalidInput) naming the file and the reason, nothing of
// the new checkpoint stays, and the older ones are as they were.
SavedCheckpoint save_checkpoint(
    const CheckpointTarget& target, const TrainingState& state, const RunProgress& progress, World& world);

struct LoadedCheckpoint {
  std::filesystem::path path;
  RunProgress progress;
  // What is wrong with newer checkpoints that were passed over, one sentence each.
  std::vector<std::string> passed_over;
  std::int64_t bytes_read = 0;  // by this rank, without the index
};

// Fills the arrays of `state` (padding with zeros) from `path`: one checkpoint, or the folder of a
// run, whose newest whole one is taken. All ranks call it and agree.
// Throws Error(kInvalidInput) on all ranks where there is none, where the one checkpoint is
// damaged, and where it is of another model: a parameter or array that is missing, a parameter of
// another shape, a parameter that `state` does not have. The arrays then hold anything.
LoadedCheckpoint load_checkpoint(const std::filesystem::path& path, const TrainingState& state, World& world);

}
