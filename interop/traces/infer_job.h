// The job behind a trace: model, cluster and plan, each key with what in the trace says it.
//
// Nothing is taken from a trace that it does not show. The mesh is the sizes and ranks of process groups; dtypes are
// those of the buffers on the wire; the model and its units are those whose padded sizes are what the all_gathers move,
// unit by unit; reshard, prefetch, recompute and accumulation are the order in which units are gathered, computed and
// reduced. Where several plans are possible, each one's step is built and the one whose order is nearest to the trace's
// is taken; PyTorch's default where the order is equal.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "interop/traces/fsdp2_steps.h"
#include "sim/spec/model_spec.h"

namespace foreshard {

struct InferredKey {
  std::string key, value;  // as --set takes them; also "model", "cluster" and "runtime"
  std::string how;         // what in the trace says so
};

struct AskedKey {
  std::string key;
  std::string flag;  // "--model NAME|config.json"
  std::string why;   // what the trace lacks
};

struct InferredJob {
  std::vector<InferredKey> keys;  // in the order of a plan file
  std::vector<AskedKey> asked;
  // Where the shapes tell a model that has no name.
  std::optional<ModelSpec> model;
  // How near the order of the plan's step is to the trace's: 1 where both are equal; 0 without a model.
  double order = 0;
};

// `named`: the model that the user names, if any. Throws Error(kInvalidInput), naming the file,
// where no grouping of its layers has the sizes that the trace gathers.
InferredJob infer_job(const FsdpTrace& trace, const std::optional<ModelSpec>& named);

}
