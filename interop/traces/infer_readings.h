// What a trace says of its job before the model is known: machine, groups, dtypes, batch, optimizer and chosen kernels.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "interop/traces/fsdp2_steps.h"
#include "interop/traces/infer_job.h"
#include "sim/graph/event_graph.h"
#include "sim/spec/model_spec.h"
#include "sim/spec/plan.h"

namespace foreshard {

// The first whole step of a trace.
class StepOfTrace {
 public:
  explicit StepOfTrace(const FsdpTrace& trace);

  const FsdpTrace& trace() const { return trace_; }
  const std::vector<TraceRun>& runs() const { return trace_.steps.front().runs; }
  int microbatches() const { return static_cast<int>(backward_from_.size()); }
  bool in_backward(const TraceRun& run) const;
  // Of a collective; empty where it is not told.
  const TracedMessage& message(const TraceRun& run) const;
  // Ranks of the groups of a unit's collectives; 0: not told.
  std::int64_t group_of(EventKind kind, bool backward) const;

 private:
  const FsdpTrace& trace_;
  std::map<int, Time> backward_from_;  // by micro-batch; zero: it has none
};

struct JobReadings {
  Plan plan;                               // with what was read
  std::map<std::string, std::string> how;  // by key of the plan: what says so
  std::vector<AskedKey> asked;
};

// Throws Error(kMissingCapability) where the job has groups of ranks that no plan here has.
JobReadings read_job(const StepOfTrace& step);

// "1 unit", "3 units".
std::string plural(std::int64_t count, const char* what);

// Which model a trace is of, and how its layers are grouped into units, by the sizes that are gathered.

// The units of a trace, in forward order.
struct TracedUnits {
  std::vector<std::int64_t> sizes;  // elements of the whole padded buffer; 0: not told
  bool has_root = false;            // the first is that of the whole model, not of modules in it
};

// How `model` must be grouped for its units to have these sizes among `shards` ranks; none where no
// grouping has. Nothing but the number of units is compared where a size is not told.
std::optional<Units> find_units(const ModelSpec& model, std::int64_t shards, const TracedUnits& units);

struct FoundModel {
  ModelSpec model;
  Units units;
  std::vector<std::string> names;  // of the zoo's models with these sizes; none: made of shapes
};

// Of the zoo's models, then of those that the families make of the shapes in the trace.
std::optional<FoundModel> find_model(const FsdpTrace& trace, std::int64_t shards, const TracedUnits& units);

}
