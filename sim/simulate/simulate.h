// From counts and costs to times, in time order:
//   host = max(host, end[host_wait]) + before;  issue = host;  host += during
//   start = max(issue, tail of the stream, ends of the waits)
//   arrive = collective: max(start, communicator's FIFO); else start
//   end = max(arrive + duration, host + last_kernel)
// with compute and collectives slowing each other down while they overlap. With all slowdowns 1 it equals one pass over
// the rows bit for bit, which is its lower bound (tests/support/sweep.h). An exchange (EventGraph::exchanges) arrives
// when both sides could: ranks of a pipeline are timed together, each by its own costs.
//
// Collectives on different communicators that ask more of a link than there is slow each other down in any case.
// What is reported is the steady step (see Note [The steady step] in simulate.cpp): times of a step in
// which a host that keeps up is one whole step ahead. A Simulator keeps scratch memory, so that
// timing thousands of plans allocates nothing; it has no other state.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "sim/cost/cost_table.h"
#include "sim/graph/event_graph.h"
#include "sim/simulate/repeats.h"
#include "sim/simulate/timeline.h"

namespace foreshard {

// One step of all ranks: sim/simulate/rank_steps.h.
struct RankScratch;
struct Carry;
using StepRule = void (*)(std::span<const std::unique_ptr<RankScratch>> ranks, std::span<Carry> carries);

class Simulator {
 public:
  Simulator();
  ~Simulator();
  Simulator(Simulator&&) noexcept;
  Simulator& operator=(Simulator&&) noexcept;

  // Valid until the next call. `rule`: what a step is played by in place of simulate_step.
  const Timeline& simulate(const EventGraph& graph, const CostTable& costs, StepRule rule = nullptr);
  // simulate()'s steady step alone, without first_step and steady_step: what draws are asked for.
  // `repeats` (find_repeats): runs that pass as the one before them are told from it, to the bit.
  const Timeline& steady_step(const EventGraph& graph, const CostTable& costs, const RepeatedRows& repeats = {});
  // Its period alone: what search asks of every plan.
  Time period(const EventGraph& graph, const CostTable& costs);
  // The same of the step in which `repeats` (find_repeats) come `more` times more than the graph
  // has them; nothing where its rows do not show that, or where the host has its say.
  std::optional<Time> period(
      const EventGraph& graph, const CostTable& costs, const RepeatedRows& repeats, std::int64_t more);
  // One step from an idle machine, no steady state.
  const Timeline& simulate_once(const EventGraph& graph, const CostTable& costs, StepRule rule = nullptr);

 private:
  struct Scratch;
  std::unique_ptr<Scratch> scratch_;
};

Timeline simulate(const EventGraph& graph, const CostTable& costs);

}
