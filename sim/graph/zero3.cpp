#include "sim/base/error.h"
#include "sim/graph/runtimes.h"

namespace foreshard {

EventGraph build_zero3(const ModelSpec&, const Plan&, const LayerPrograms&, EventGraph) {
  throw Error(ExitCode::kMissingCapability, "the runtime is not modelled yet");
}

LibraryRun record_zero3(const ModelSpec&, const Plan&, const LayerPrograms&, const LibraryWatch&) {
  throw Error(ExitCode::kMissingCapability, "the runtime is not modelled yet");
}

}  // namespace foreshard
