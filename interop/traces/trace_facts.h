// What a trace of torch.profiler says of a job beside the times of its steps: the machine, the
// process groups, the shapes of tensors and which kernels were chosen.
//
// Shapes are there with record_shapes=True. Of a unit's parameters they are those of the gradients
// that are packed for its reduce-scatter (fsdp::chunk_cat, torch/distributed/fsdp/_fully_shard/
// _fsdp_collectives.py): whole, in the order of registration, trained ones only.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "interop/traces/kineto.h"

namespace foreshard {

struct TraceFacts {
  std::string backend;  // "nccl"
  std::int64_t devices = 0;
  Bytes device_memory;
  std::vector<TracedGroup> groups;
  bool has_shapes = false;

  std::map<std::string, std::vector<TensorShape>> parameters;  // by unit, as FsdpTrace::units
  // Tables of forward, [rows, hidden], as they were read; the longest is that of tokens.
  std::vector<TensorShape> tables;
  std::int64_t micro_batch = 0, sequence = 0;          // of what the longest table was read with
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;  // kv_heads: as attention got them
  std::string attention;                               // operator of forward: "aten::_flash_..."

  std::string optimizer;       // "AdamW"; "" without a range
  std::string optimizer_step;  // "fused", "foreach" or "loop"
  std::string master_dtype;    // of the optimizer's kernels: "float", "c10::BFloat16"
  bool compiled = false;       // kernels of Inductor or its ranges
};

TraceFacts read_facts(const KinetoTrace& trace);

// Which other library's ranges are in a trace without FSDP2's: "FSDP1", "DDP", "DeepSpeed"; "".
std::string other_library(const KinetoTrace& trace);

}  // namespace foreshard
