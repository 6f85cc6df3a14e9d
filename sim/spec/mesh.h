// The mesh: an ordered list of named axes over the ranks of a job, outer to inner, with
// DeviceMesh's and torchtitan's names.
//
//   dense   pp, replicate, shard, cp, tp      what tokens and dense weights are spread over
//   sparse  pp, replicate, efsdp, ep, etp     the same ranks, for the weights of experts
//
// Ranks of pp have the layers of other stages of a pipeline; all else is the same for each of them. efsdp = shard * cp
// * tp / (ep * etp), so that groups of ep are consecutive ranks that run through tp, then cp, then shard (torchtitan
// 0.2.2 distributed/parallel_dims.py:118-165). Groups that several axes make together have names of their own: fsdp
// (shard x cp, what parameters are sharded over), batch (replicate x shard), loss (replicate x shard x cp).
#pragma once

#include <cstdint>

#include "sim/base/letters.h"
#include "sim/spec/cluster.h"

namespace foreshard {

// Whose groups are of consecutive ranks, so that they lie inside the nodes as far as they fit: the
// shard groups, as init_device_mesh(..., (replicate, shard)) lays them, or the groups of replicas,
// whose mesh is made of the same ranks transposed.
enum class MeshInner : std::uint8_t { kShard, kReplicate };
constexpr const char* to_string(MeshInner inner) { return word_at(inner, {"shard", "replicate"}); }

// What a process group is made of, in the order in which torchtitan makes them. kWorld: all ranks.
enum class MeshDim : std::uint8_t {
  kWorld,
  kBatch,
  kLoss,
  kReplicate,
  kFsdp,
  kCp,
  kTp,
  kEp,
  kEfsdp,
  kExpertReplicate,
  kEtp,
  kPp
};
inline constexpr std::size_t kMeshDims = 12;
// "fsdp", "tp", ...
constexpr const char* to_string(MeshDim dim) {
  return word_at(
      dim, {"world", "batch", "loss", "replicate", "fsdp", "cp", "tp", "ep", "efsdp", "expert_replicate", "etp", "pp"});
}

struct Mesh {
  std::int64_t shard = 1;
  std::int64_t replicate = 1;
  MeshInner inner = MeshInner::kShard;
  std::int64_t cp = 1;   // context parallel: ranks that share each sequence
  std::int64_t tp = 1;   // tensor parallel
  std::int64_t ep = 1;   // expert parallel
  std::int64_t etp = 1;  // tensor parallel inside the experts: 1 or tp

  std::int64_t pp = 1;  // pipeline parallel

  std::int64_t world() const { return pp * stage_ranks(); }
  std::int64_t stage_ranks() const { return shard * replicate * cp * tp; }
  std::int64_t pp_index(std::int64_t rank) const { return rank / stage_ranks(); }
  std::int64_t fsdp() const { return shard * cp; }
  std::int64_t efsdp() const { return fsdp() * tp / (ep * etp); }
  // Whether torchtitan calls fully_shard at all: not for tensor parallelism or stages alone.
  bool is_wrapped() const { return (tp == 1 && pp == 1) || fsdp() * replicate > 1; }
  // Ranks with samples of their own, and how many there are for each.
  std::int64_t data_parallel() const { return shard * replicate; }
  std::int64_t sharing() const { return pp * cp * tp; }
  // Whether any rank shares its samples or its weights' products with another.
  bool is_plain() const { return cp == 1 && tp == 1 && ep == 1; }
  // Of the groups that parameters are sharded over, and of their copies.
  std::int64_t shard_stride() const { return inner == MeshInner::kShard ? tp : replicate; }
  std::int64_t replicate_stride() const { return inner == MeshInner::kShard ? fsdp() * tp : 1; }
  std::int64_t shard_index(std::int64_t rank) const { return rank / shard_stride() % fsdp(); }
  std::int64_t tp_index(std::int64_t rank) const { return rank % tp; }
  std::int64_t cp_index(std::int64_t rank) const { return rank / tp % cp; }
  std::int64_t efsdp_index(std::int64_t rank) const { return rank / (ep * etp) % efsdp(); }

  GroupShape group(MeshDim dim) const;
  bool operator==(const Mesh&) const = default;
};

}
