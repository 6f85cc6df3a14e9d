// A few micro-batches are tried first, then some more, for steps that settle late.
#include "sim/simulate/folded.h"

#include <array>

#include "sim/simulate/repeats.h"

namespace foreshard {
namespace {
constexpr std::array<std::int64_t, 2> kTried = {6, 24};
}

Time folded_period(Simulator& simulator, const CostModel& costs, std::int64_t micro_batches, const StepOf& step) {
  for (const std::int64_t laid_out : kTried) {
    if (micro_batches <= laid_out) break;
    const EventGraph& graph = step(laid_out);
    const auto period = simulator.period(graph, costs.price(graph), find_repeats(graph), micro_batches - laid_out);
    if (period) return *period;
  }
  const auto in_full = [&](std::int64_t count) {
    const EventGraph& graph = step(count);
    return simulator.period(graph, costs.price(graph));
  };
  if (micro_batches <= kMostInFull) return in_full(micro_batches);
  const Time most = in_full(kMostInFull);
  const Time half = most - in_full(kMostInFull / 2);
  const auto halves = as_double(micro_batches - kMostInFull) / (kMostInFull / 2.0);
  return most + Time::seconds(halves * half.seconds());
}

Time period_of(Simulator& simulator, const CostModel& costs, const Plan& plan, const StepOf& step) {
  const std::int64_t all = plan.batch.accumulation;
  if (plan.mesh.pp == 1) return folded_period(simulator, costs, all, step);
  const auto period = [&](std::int64_t micro_batches) {
    const EventGraph& graph = step(micro_batches);
    return simulator.period(graph, costs.price(graph));
  };
  const LaidOut few = laid_out_of(plan);
  const Time laid_out = period(few.count);
  if (few.fewer == few.count) return laid_out;
  const double fewer = period(few.fewer).seconds();
  return Time::seconds(of_whole_step(few, laid_out.seconds(), fewer, all));
}

}
