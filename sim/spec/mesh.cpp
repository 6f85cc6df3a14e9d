// Strides are products of the sizes of the axes inside.
#include "sim/spec/mesh.h"

#include "sim/base/error.h"

namespace foreshard {

GroupShape Mesh::group(MeshDim dim) const {
  switch (dim) {
    case MeshDim::kWorld: return {world(), 1};
    case MeshDim::kBatch: return {replicate * shard, cp * tp};
    case MeshDim::kLoss: return {replicate * fsdp(), tp};
    case MeshDim::kReplicate: return {replicate, replicate_stride()};
    case MeshDim::kFsdp: return {fsdp(), shard_stride()};
    case MeshDim::kCp: return {cp, tp};
    case MeshDim::kTp: return {tp, 1};
    case MeshDim::kEp: return {ep, etp};
    case MeshDim::kEfsdp: return {efsdp(), ep * etp};
    case MeshDim::kExpertReplicate: return {replicate, fsdp() * tp};
    case MeshDim::kEtp: return {etp, 1};
    case MeshDim::kPp: return {pp, stage_ranks()};
  }
  FORESHARD_CHECK(false, "a group of no dimension");
  return {};
}

}
