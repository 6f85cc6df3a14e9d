// Which model a trace is of, and how its layers are grouped into units, by the sizes that are
// gathered.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "interop/traces/fsdp2_steps.h"
#include "sim/graph/event_graph.h"
#include "sim/spec/model_spec.h"
#include "sim/spec/plan.h"

namespace foreshard {

// The units of a trace, in forward order.
struct TracedUnits {
  std::vector<std::int64_t> sizes;  // elements of the whole padded buffer; 0: not told
  bool has_root = false;            // the first is that of the whole model, not of modules in it
};

// How `model` must be grouped for its units to have these sizes among `shards` ranks; none where no
// grouping has. Nothing but the number of units is compared where a size is not told.
std::optional<Units> find_units(const ModelSpec& model, std::int64_t shards,
                                const TracedUnits& units);

struct FoundModel {
  ModelSpec model;
  Units units;
  std::vector<std::string> names;  // of the zoo's models with these sizes; none: made of shapes
};

// Of the zoo's models, then of those that the families make of the shapes in the trace.
std::optional<FoundModel> find_model(const FsdpTrace& trace, std::int64_t shards,
                                     const TracedUnits& units);

}  // namespace foreshard
