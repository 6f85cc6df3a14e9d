// Reshard per unit and recompute per block by trying everything: every combination forecast by the full walk.
#pragma once

#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "sim/memory/capacity.h"
#include "sim/search/per_layer.h"
#include "sim/simulate/forecast.h"
#include "sim/spec/checks/plan_check.h"

namespace foreshard {

struct LayerProblem {
  ModelSpec model;
  Cluster cluster;
  Plan frame;
  LayerChoices choices;
};

struct Optimum {
  Time step;
  Bytes peak;
};

// Every combination, written as one range for each block and unit.
inline std::optional<Optimum> brute_force(const LayerProblem& p, const CostModel& costs) {
  const auto blocks = static_cast<std::size_t>(p.model.block_count());
  const auto units = static_cast<std::size_t>(unit_count(p.frame, p.model));
  std::vector<std::size_t> at(blocks + units, 0);
  std::optional<Optimum> best;
  while (true) {
    Plan plan = p.frame;
    plan.recompute = {p.choices.recomputes.front(), {}};
    plan.reshard_after_forward = {p.choices.reshards.front(), {}};
    for (std::size_t i = 0; i < at.size(); ++i) {
      const auto index = static_cast<std::int64_t>(i < blocks ? i : i - blocks);
      if (i < blocks) {
        plan.recompute.ranges.push_back({index, index, p.choices.recomputes[at[i]]});
      } else {
        plan.reshard_after_forward.ranges.push_back({index, index, p.choices.reshards[at[i]]});
      }
    }
    if (!find_problem(plan, p.model, p.cluster)) {
      const Forecast f = forecast(p.model, plan, costs);
      const bool is_sure = holds(fit_in(p.cluster, f.memory.peak, f.reserved.peak, Bytes(0)), p.choices.fit.terms);
      const Optimum found{f.timeline.period, f.memory.peak};
      if (is_sure && (!best || std::tie(found.step, found.peak) < std::tie(best->step, best->peak))) best = found;
    }
    std::size_t i = 0;
    while (i < at.size() &&
           ++at[i] == (i < blocks ? p.choices.recomputes : std::vector<Recompute>(p.choices.reshards.size())).size()) {
      at[i++] = 0;
    }
    if (i == at.size()) return best;
  }
}

}
