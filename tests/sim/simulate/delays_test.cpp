// Memory that the driver is asked for holds the host up; where the allocator ran out it also waits for the device.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include "sim/simulate/simulate.h"
#include "tests/support/generators.h"
#include "tests/support/sweep.h"

namespace foreshard {
namespace {

std::vector<HostDelay> random_delays(const EventGraph& graph) {
  std::vector<HostDelay> delays;
  for (std::size_t row = 0; row < graph.rows.size(); ++row) {
    if (*rc::gen::inRange(0, 6) != 0) continue;
    delays.push_back(
        {static_cast<std::int32_t>(row), Time::ns(*rc::gen::inRange(0, 100'000)), *rc::gen::arbitrary<bool>()});
  }
  return delays;
}

RC_GTEST_PROP(Delays, SweepAndSimulateAgreeBitForBit, ()) {
  RandomStep r = random_step();
  r.costs.delays = random_delays(r.graph);
  const Timeline a = sweep(r.graph, r.costs);
  const Timeline b = simulate(r.graph, r.costs);
  RC_ASSERT(a.spans == b.spans);
  RC_ASSERT(a.period == b.period);
  RC_ASSERT(Simulator().period(r.graph, r.costs) == b.period);
}

RC_GTEST_PROP(Delays, NeverMakeAStepShorter, ()) {
  RandomStep r = random_step();
  const Timeline free = Simulator().simulate_once(r.graph, r.costs);
  r.costs.delays = random_delays(r.graph);
  const Timeline held_up = Simulator().simulate_once(r.graph, r.costs);
  for (std::size_t i = 0; i < r.graph.rows.size(); ++i) RC_ASSERT(free.spans[i].end <= held_up.spans[i].end);
}

// A draining delay issues its row no earlier than everything before it has ended.
RC_GTEST_PROP(Delays, AnAllocatorThatRanOutWaitsForTheDevice, ()) {
  RandomStep r = random_step();
  const auto row = static_cast<std::int32_t>(*rc::gen::inRange<std::size_t>(1, r.graph.rows.size()));
  const Time time = Time::ns(12'345);
  r.costs.delays = {{row, time, true}};
  const Timeline t = Simulator().simulate_once(r.graph, r.costs);
  for (std::int32_t before = 0; before < row; ++before) {
    RC_ASSERT(t.spans[at(before)].end + time <= t.spans[at(row)].issue);
  }
}

}
}
