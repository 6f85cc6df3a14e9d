// Device memory of one rank that PyTorch's caching allocator never sees, item by item: the CUDA context with the
// kernels loaded into it, and NCCL's buffers, communicator by communicator. What the libraries allocate *through* the
// caching allocator is listed apart, because it belongs into the replay of the allocator: cuBLAS workspaces.
//
// NCCL allocates per connection: one per channel and neighbour. Which connections there are follows from the algorithms
// that the collectives of a communicator use, the channels of its ring, and the version of NCCL (before 2.22 every
// algorithm it could use is connected when the communicator is made; since then when it is first used).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/base/letters.h"
#include "sim/base/units.h"
#include "sim/cost/nccl.h"
#include "sim/graph/event_graph.h"
#include "sim/spec/cluster.h"
#include "sim/spec/plan.h"

namespace foreshard {

// How a size is known. kPublished: somebody measured and published it. kDerived: computed by the
// library's own rule. kDeclared: stated in the cluster's description.
enum class SizeEvidence : std::uint8_t { kMeasured, kPublished, kDerived, kDeclared, kAssumed };
constexpr const char* to_string(SizeEvidence evidence) {
  return word_at(evidence, {"measured", "published", "derived", "declared", "assumed"});
}

struct OutsideItem {
  std::string name;  // "nccl shard: ring, 24 channels"
  Bytes bytes;
  SizeEvidence evidence = SizeEvidence::kAssumed;
  std::string source;
};
using OutsideItems = std::vector<OutsideItem>;

// The NCCL that the wheel of a PyTorch release asks for. A release between two known ones has that
// of the lower, one after all known ones that of the newest; runtime native: that of PyTorch 2.11.
NcclVersion nccl_of(const Runtime& runtime);

// Empty where the host computes and nothing is declared. A cluster that declares a total
// (memory_outside_allocator of a cluster file, or a measured profile) gets that as its only item.
OutsideItems memory_outside(const EventGraph& graph, const Cluster& cluster, const Runtime& runtime);
Bytes total(const OutsideItems& items);

// Memory that a library takes from the caching allocator once and keeps.
struct LibraryBuffer {
  Bytes bytes;
  Stream stream = Stream::kCompute;             // whose pool it is taken from
  EventKind first_event = EventKind::kForward;  // allocated before its first kernel
};

using LibraryBuffers = std::vector<LibraryBuffer>;

// One cuBLAS workspace per handle and stream, where they are kept (product_workspaces; PyTorch,
// aten/src/ATen/cuda/CublasHandlePool.cpp); handles belong to host threads, and backward runs in autograd's own thread.
// TransformerEngine's modules have one of their own, and one for each stream of grouped products (2.11,
// transformer_engine/pytorch/cpp_extensions/gemm.py, get_cublas_workspace).
LibraryBuffers library_buffers(const EventGraph& graph, const Cluster& cluster, const Runtime& runtime);

}
