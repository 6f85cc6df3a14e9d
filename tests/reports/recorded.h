// Runs written down by hand, and a folder that goes with the test.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>

#include "reports/validate/run_record.h"
#include "tests/support/temporary_folder.h"

namespace foreshard {

inline MeasuredStep measured_step(std::int64_t number, const Timeline& timeline) {
  MeasuredStep step = {.step = number, .duration = timeline.period, .spans = timeline.spans};
  return step;
}

// Every rank does what the timeline says, in `steps` steps one behind the other.
inline RunRecord steady_run(int world, int steps, const EventGraph& graph, const Timeline& timeline) {
  RunRecord record = {.created = "2026-01-02T03:04:05Z",
      .host = "here",
      .cpu = "a CPU",
      .versions = {{"foreshard", "0.1.0"}, {"torch", "2.11.0"}},
      .command = "foreshard-exec run --plan plan.yaml",
      .fingerprint = graph.fingerprint(),
      .plan_yaml = "model: tiny\n",
      .launcher = "spawn",
      .world = world,
      .parameter_hash = "0123456789abcdef",
      .tokens_per_step = 1000};
  for (int s = 0; s < steps; ++s) record.losses.push_back(5.0 / (s + 1));
  for (int r = 0; r < world; ++r) {
    RankRecord rank = {.rank = r};
    for (int s = 0; s < steps; ++s) {
      rank.step_durations.push_back(timeline.period);
      rank.timelines.push_back(measured_step(s + 1, timeline));
      rank.timelines.back().begin = timeline.period * s;
    }
    record.ranks.push_back(rank);
  }
  return record;
}

}
