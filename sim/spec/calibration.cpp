// The order of Evidence is from the best founded to the least.
#include "sim/spec/calibration.h"

#include <algorithm>
#include <array>

#include "sim/base/letters.h"

namespace foreshard {

const char* to_string(Evidence evidence) {
  return word_at(evidence, {"measured", "interpolated", "extrapolated", "datasheet", "assumed"},
                 "assumed");
}

Evidence weaker(Evidence a, Evidence b) { return std::max(a, b); }

const char* to_string(CollectiveOperation operation) {
  static constexpr std::array<const char*, kCollectiveOperations> kNames = {
      "all_gather", "reduce_scatter", "all_reduce", "broadcast",
      "reduce",     "all_to_all",     "send_recv"};
  return kNames[at(operation)];
}

const char* to_string(HostCall call) {
  static constexpr std::array<const char*, kHostCalls> kNames = {"pass",
                                                                 "forward_product",
                                                                 "forward_attention",
                                                                 "forward_operation",
                                                                 "backward_product",
                                                                 "backward_attention",
                                                                 "backward_operation",
                                                                 "recomputed",
                                                                 "compiled",
                                                                 "hook",
                                                                 "unit_row",
                                                                 "unit_tensor",
                                                                 "reduced_row",
                                                                 "collective",
                                                                 "functional_collective",
                                                                 "redistribution",
                                                                 "bucket_row",
                                                                 "bucket_tensor",
                                                                 "clipped_tensor",
                                                                 "clipped_shard",
                                                                 "updated_tensor",
                                                                 "updated_shard",
                                                                 "updated_operation",
                                                                 "step"};
  return kNames[at(call)];
}

const char* to_string(FabricKind kind) {
  static constexpr std::array<const char*, kFabricKinds> kNames = {
      "nvlink", "pcie", "rdma", "efa", "slingshot", "tcp_offload", "tcp"};
  return kNames[at(kind)];
}

}  // namespace foreshard
