// The steps of an FSDP2 job in a Kineto trace, in the words of our events: which unit's all-gather,
// forward, reduction ran when.
//
// Read from the record_function ranges that fully_shard writes (PyTorch 2.4 and later,
// torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py, _fsdp_state.py): "FSDP::pre_forward
// (layers.3)", "FSDP::all_gather (layers.3)" and so on, and from "Optimizer.step#...". A step ends
// with the optimizer's last piece of work, as in a forecast; "ProfilerStep#N" gives it its number.
// Where no optimizer range is in the trace (a hand-written update), the ProfilerStep marks end
// the steps.
#pragma once

#include <string>
#include <vector>

#include "interop/traces/kineto.h"
#include "interop/traces/trace_bytes.h"
#include "interop/traces/trace_facts.h"
#include "sim/graph/event_graph.h"

namespace foreshard {

// Consecutive work of one kind on one unit: from the first piece's begin to the last one's end.
struct TraceRun {
  EventKind kind = EventKind::kForward;
  int unit = -1;  // index into FsdpTrace::units; -1: of the whole step
  int microbatch = 0;
  Time issue;  // by the host, of the first piece
  Time begin, end;
  int pieces = 0;
  int products = 0;  // of them, matrix products, and attention of forward
  int attentions = 0;
  std::uint32_t message = 0;  // of a collective: index into FsdpTrace::messages; 0: not told
};

// Work that FSDP2 and the training step do not account for: logging, data, other libraries.
struct OutsideWork {
  std::string what;  // "all_reduce before forward"
  int pieces = 0;
  Time time;
};

struct JobStep {
  std::int64_t number = 0;
  Time begin, end;             // ends of two optimizers
  std::vector<TraceRun> runs;  // by issue
  std::vector<OutsideWork> outside;
};

struct FsdpTrace {
  std::string file;
  std::int64_t rank = -1, world = -1;
  std::int64_t base_nanoseconds = 0;
  std::string device;
  bool of_gpu = false;
  // Names of the modules as PyTorch prints them, in the order of their first forward; "" is the
  // root module's own unit. A unit of several modules reads "norm, output".
  std::vector<std::string> units;
  std::vector<JobStep> steps;
  Bytes peak_allocated, peak_reserved;  // of the GPU, within the steps; 0: not recorded
  // From the file beside it that interop/record/timed.py writes; "" and none without it.
  std::string host, created;
  std::vector<std::pair<std::string, std::string>> versions;
  // Of one step, where that file or the trace tells.
  std::vector<TracedCollectiveCall> collectives;
  std::vector<TracedMessage> messages;
  TraceFacts facts;
  std::vector<std::string> notes;
};

// Throws Error(kInvalidInput), naming the file, where the trace has no FSDP2 ranges or no whole
// step.
FsdpTrace read_fsdp_steps(const KinetoTrace& trace);

}  // namespace foreshard
