#include "interop/steps/informed_calibration.h"

#include "calibration/profile_store.h"
#include "sim/simulate/cost_choices.h"

namespace foreshard {
namespace {

std::int64_t head_dim_of(const ModelSpec& model) {
  for (const LayerSpec& layer : model.kinds) {
    for (const Operation& op : layer.operations)
      if (op.kind == OperationKind::kAttention) return op.attention.head_dim;
  }
  return 0;
}

}

FactorCauses causes_of(const ModelSpec& model, const CostModel& costs, GemmLibrary library, const std::string& site) {
  return causes_of(costs.cluster(), costs.calibration(), {costs.attention_kernel(), head_dim_of(model), library, site});
}

Calibration profile_calibration(const Plan& plan, const Cluster& cluster) {
  return with_kernel_spread(load_profile(cluster.gpu.key), cost_choices(plan).attention_kernel);
}

Calibration informed_calibration(const ModelSpec& model, const Plan& plan, const Cluster& cluster,
    const std::vector<std::string>& without, GemmLibrary library) {
  const CostModel costs(cluster, profile_calibration(plan, cluster), cost_choices(plan));
  return informed(costs.calibration(), training_evidence(), causes_of(model, costs, library), without);
}

}
