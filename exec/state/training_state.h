// What a run has to remember, seen by one rank: its shards of the state arrays, and how far it is.
//
// A unit is one flat buffer per state array ("master", "exp_avg", ...), padded to a multiple of the
// number of shards; shard r holds elements [r * shard_numel, (r + 1) * shard_numel) of it. All
// ranks describe the same units; only the bytes differ. With tensor parallelism the parameters of a
// unit are the rank's parts. With replicas, shard r is there once per
// replica.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "sim/spec/plan.h"

namespace foreshard {

struct StateParameter {
  std::string name;  // unique in the model
  std::vector<std::int64_t> shape;
  std::int64_t offset = 0;  // elements from the start of the unit's buffer
  std::int64_t numel = 0;   // of a part: the product of `shape` over `parts`
  // Tensor parallel: evenly cut along a dimension, each rank of mesh.tp has a part; 1: all of it.
  std::int64_t parts = 1;
  std::int64_t cut = 0;  // the dimension
};

struct StateArray {
  std::string name;  // unique in the unit
  DType dtype = DType::kFp32;
  // This rank's shard in host memory, shard_numel elements; empty in descriptions of checkpoints.
  std::span<std::byte> data;
};

struct StateUnit {
  std::string name;  // unique in the run
  std::int64_t shard_numel = 0;
  std::vector<StateParameter> parameters;  // do not overlap
  std::vector<StateArray> arrays;
};

struct TrainingState {
  std::int64_t shards = 1;
  std::int64_t shard_index = 0;
  std::int64_t replicas = 1;
  std::int64_t replica_index = 0;  // replica 0 writes
  std::int64_t parts = 1;          // ranks of mesh.tp, each with units of its own
  std::int64_t part_index = 0;
  // A file for every shard of every part.
  std::int64_t files() const { return shards * parts; }
  std::int64_t file_index() const { return part_index * shards + shard_index; }
  std::vector<StateUnit> units;
};

// The same on all ranks.
struct RunProgress {
  std::int64_t step = 0;                        // optimizer steps done
  std::int64_t next_sample = 0;                 // the first training sample that is not used yet
  std::int64_t seed = 0;                        // of data order and initialisation; random state is a function of it
  std::map<std::string, std::string> metadata;  // the plan's text, versions: what the run wants back
  bool operator==(const RunProgress&) const = default;
};

// The elements of the product of `shape`; throws Error(kInvalidInput) beyond 64 bits.
std::int64_t numel_of(const std::vector<std::int64_t>& shape);
// Elements of the unit's buffer that are no parameter's.
std::int64_t padding_of(const StateUnit& unit, std::int64_t shards);
// "" where the parameters of all units lie inside their buffers without overlap and all names are
// unique; else the first thing that is wrong, in a sentence.
std::string find_layout_fault(std::int64_t shards, const std::vector<StateUnit>& units);
// A FORESHARD_CHECK that the layout has no fault and each array the bytes of its shard.
void check_layout(const TrainingState& state);
// Equal on all ranks of a run: everything but the bytes and the rank's own place.
std::uint64_t layout_fingerprint(const TrainingState& state);

}
