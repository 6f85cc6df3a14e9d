// Any bytes give a model whose step can be built and that reads back from its own text, or an Error
// for bad input: no crash, no overflow, no other exception.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "calibration/machines.h"
#include "models/layers/variants.h"
#include "models/yaml/model_yaml.h"
#include "sim/base/error.h"
#include "sim/graph/training_step.h"
#include "sim/spec/plan_config.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace foreshard;
  static const Cluster kCluster = load_cluster("8xh100");
  try {
    const ConfigNode root = parse_yaml(std::string_view(reinterpret_cast<const char*>(data), size), "fuzz");
    const ModelSpec model = parse_model_yaml(root);
    const ConfigNode again = parse_yaml(to_model_yaml(model), "again");
    if (parse_model_yaml(again) != model) std::abort();
    if (model.order.size() > 200) return 0;  // keeps memory small
    const ResolvedPlan plan = resolve(PlanDocument(), model, kCluster);
    check(plan, model, kCluster);
    build_training_step(with_variants(model, plan.plan), plan.plan);
  } catch (const Error& error) {
    if (error.exit_code() != ExitCode::kInvalidInput) std::abort();
  }
  return 0;
}
