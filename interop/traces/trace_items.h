// From a Kineto trace to pieces of work with the place in the program that issued them.
//
// On GPUs a piece is a kernel or a copy, joined to the runtime call that launched it (`correlation`, else the operator
// of its `External id`). On CPU ranks, where the host computes, it is an operator: the outermost one that has no FSDP
// range and no collective inside; a collective of Gloo ends with the `gloo:` range of the thread that moved the bytes.
#pragma once

#include <vector>

#include "interop/traces/kineto.h"

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
  // Operators around it, of CPU work inside it, that are matrix products and attention of forward.
  int products = 0, attentions = 0;
  std::uint32_t name = 0;     // index into KinetoTrace::names: the kernel, or the operator
  std::uint32_t message = 0;  // of a collective: index into TracedWork::messages; 0: not told
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
  // The trace's, then those that only the shapes of a c10d operator tell (Gloo).
  std::vector<TracedMessage> messages;
};

TracedWork link_work(const KinetoTrace& trace);

}
