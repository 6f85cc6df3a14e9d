#include "sim/simulate/forecast.h"

#include "sim/graph/training_step.h"
#include "sim/memory/reserved.h"
#include "sim/simulate/simulate.h"

namespace foreshard {

Forecast forecast(const ModelSpec& model, const Plan& plan, const CostModel& costs) {
  Forecast result;
  result.model = model;
  result.plan = plan;
  result.graph = build_training_step(model, plan);
  result.memory = replay_allocations(result.graph);
  result.peak_reserved = peak_reserved(result.graph, plan, costs.cluster());
  result.costs = costs.price(result.graph);
  result.timeline = simulate(result.graph, result.costs);
  return result;
}

}  // namespace foreshard
