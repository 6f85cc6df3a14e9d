// Which stream and which kind of row a collective inside a layer is.
#pragma once

#include "sim/base/error.h"
#include "sim/graph/event_graph.h"

namespace foreshard {

inline Stream stream_of(MeshDim dim) {
  switch (dim) {
    case MeshDim::kTp: return Stream::kTensor;
    case MeshDim::kCp: return Stream::kContext;
    case MeshDim::kEp:
    case MeshDim::kEtp: return Stream::kExpert;
    default: return Stream::kAllReduce;  // between layers nothing else is on it
  }
}

inline EventKind kind_of(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllGather: return EventKind::kAllGather;
    case CollectiveKind::kReduceScatter: return EventKind::kReduceScatter;
    case CollectiveKind::kAllReduce: return EventKind::kAllReduce;
    case CollectiveKind::kAllToAll: return EventKind::kAllToAll;
    case CollectiveKind::kNone: break;
  }
  FORESHARD_CHECK(false, "no collective");
  return EventKind::kAllReduce;
}

}
