// Sizes of a flat parameter of FullyShardedDataParallel, in elements.
//
// Sources: torch/distributed/fsdp/_flat_param.py (2.11): _init_flat_param_and_metadata (with
// use_orig_params every parameter begins at a multiple of 16 bytes of the compute dtype, and the
// whole is padded to a multiple of the ranks), _get_unpadded_shard (torch.chunk: ceil(numel / N)
// for each rank, the last ones less or nothing).
#pragma once

#include <cstdint>
#include <vector>

#include "sim/graph/step_builder.h"
#include "sim/spec/plan.h"

namespace foreshard {

struct FlatSize {
  std::int64_t numel = 0;      // of the parameters
  std::int64_t flat = 0;       // with what pads between and behind them
  std::int64_t shard = 0;      // of each rank, padded
  std::int64_t shard_pad = 0;  // of that of Plan::rank
  std::int64_t padded = 0;     // of all shards: what is gathered and reduced
  // Of the shard of Plan::rank, what the optimizer steps: all of it where every parameter is
  // trained, else the pieces of those that are (use_orig_params).
  std::int64_t trained_shard = 0;
  std::vector<std::int64_t> stepped;  // the same, tensor by tensor
};

// Ranks of the process group that a flat parameter is given; without shards that is the world.
std::int64_t flat_group(const Plan& plan);

// `parameters` in the order of Module.named_parameters().
FlatSize flat_size(const std::vector<UnitParameter>& parameters, const Plan& plan);

}  // namespace foreshard
