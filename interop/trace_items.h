// From a Kineto trace to pieces of work with the place in the program that issued them.
//
// On GPUs a piece is a kernel or a copy, joined to the runtime call that launched it
// (`correlation`, else the operator of its `External id`). On CPU ranks, where the host computes,
// it is an operator: the outermost one that has no FSDP range and no collective inside; a
// collective of Gloo ends with the `gloo:` range of the thread that moved the bytes.
#pragma once

#include <string>
#include <vector>

#include "interop/kineto.h"

namespace foreshard {

enum class TracedCollective : std::uint8_t {
  kNone,
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kOther,
};

struct WorkItem {
  Time issue;  // on the host: the launch, of CPU work its begin
  Time begin, end;
  std::int64_t stream = 0;
  TracedCollective collective = TracedCollective::kNone;
  bool recompute = false;  // an operator of forward that backward called
  bool norm = false;       // an operator around it computes a norm
  bool scale = false;      // ... clamps or multiplies in place
  std::uint32_t name = 0;  // index into KinetoTrace::names: the kernel, or the operator
};

// A record_function range on a thread that issues work.
struct TraceRange {
  std::uint32_t name = 0;
  Time begin, end;
};

struct TracedWork {
  std::vector<WorkItem> items;     // by issue
  std::vector<TraceRange> ranges;  // by begin; without those of Gloo's threads
  std::size_t orphans = 0;         // device work whose launch the trace lacks
};

TracedWork link_work(const KinetoTrace& trace);

}  // namespace foreshard
