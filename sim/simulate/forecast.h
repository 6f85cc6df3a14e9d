// The walk of `predict`, without reading or writing: build the graph, replay its allocations, price
// it, simulate it. `search` calls the same functions, plan by plan.
#pragma once

#include "sim/cost/cost_model.h"
#include "sim/graph/event_graph.h"
#include "sim/memory/memory_profile.h"
#include "sim/memory/reserved_forecast.h"
#include "sim/simulate/timeline.h"
#include "sim/spec/model_spec.h"
#include "sim/spec/plan.h"

namespace foreshard {

struct Forecast {
  ModelSpec model;
  Plan plan;
  EventGraph graph;
  CostTable costs;
  Timeline timeline;
  MemoryProfile memory;
  ReservedForecast reserved;
};

// Precondition: check(plan, model, costs.cluster()) passed.
// `replays`: of the allocator, where several forecasts may share them.
Forecast forecast(const ModelSpec& model, const Plan& plan, const CostModel& costs, ReservedMemory* replays = nullptr);

// A pipeline's graph as that of the rank whose memory peaks highest, where the plan does not name
// another than the first; its plan.
void take_fullest_rank(EventGraph& graph, Plan& plan);

// What the replay of reserved memory asks of a timeline.
RowTimes row_times(const Timeline& timeline);

// forecast() for those who compare codes: of its memory the peaks alone, of its timeline not the first steps.
Forecast forecast_figures(const ModelSpec& model, const Plan& plan, const CostModel& costs);

}
