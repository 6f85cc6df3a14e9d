// Which samples a rank's micro-batches are, and how the ranks' losses make one number.
//
// Micro-batches of a step are numbered globally in the order in which their gradients are summed
// (ReductionOrder, sim/spec/plan.h). reduce_each: rank s of replica r has, as its m-th, number
// (r * accumulation + m) * shard + s. keep_unsharded: every rank sums its own first, so number
// rank * accumulation + m. Ranks of mesh.tp share their samples: rank and shard are counted without them.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/spec/plan.h"

namespace foreshard {

inline std::int64_t microbatches_of_step(const Plan& plan) {
  return plan.mesh.data_parallel() * plan.batch.accumulation;
}

// Of the ranks that have samples of their own.
inline std::int64_t data_rank(const Plan& plan, std::int64_t rank) { return rank / plan.mesh.tp; }

inline std::int64_t global_microbatch(const Plan& plan, std::int64_t world_rank, std::int64_t m) {
  const std::int64_t rank = data_rank(plan, world_rank);
  if (plan.accumulation == AccumulationMode::kKeepUnsharded) return rank * plan.batch.accumulation + m;
  const std::int64_t replica = rank / plan.mesh.shard;
  return (replica * plan.batch.accumulation + m) * plan.mesh.shard + rank % plan.mesh.shard;
}

// Mean over all micro-batches, added in global order: the same bits for every mesh. `losses[rank][m]`.
inline double mean_loss(const Plan& plan, const std::vector<std::vector<double>>& losses) {
  const auto count = at(microbatches_of_step(plan));
  std::vector<double> ordered(count);
  for (std::size_t rank = 0; rank < losses.size(); ++rank) {
    for (std::size_t m = 0; m < losses[rank].size(); ++m) {
      ordered[at(global_microbatch(plan, static_cast<std::int64_t>(rank), static_cast<std::int64_t>(m)))] =
          losses[rank][m];
    }
  }
  double sum = sum_of<double>(ordered, std::identity());
  return sum / as_double(count);
}

}
