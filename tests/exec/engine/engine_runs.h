// Small models and whole runs of the engine in the threads of one process, for tests.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "exec/compute/operations.h"
#include "exec/engine/backend.h"
#include "models/model_dims.h"
#include "sim/base/units.h"
#include "sim/spec/model_spec.h"
#include "sim/spec/plan.h"

namespace foreshard {

// 3 blocks of width 64 with a vocabulary of 96; "llama", "gpt2", "qwen3", ...
ModelSpec small_model(const std::string& family, bool tied = false);

// Runtime native on CPU ranks, fp32, 4 micro-batches of 2 x 32 tokens over all ranks.
Plan small_plan(std::int64_t shard, std::int64_t replicate = 1);

// The plan with the one grouping of units that the model can have: a table that is head as well is in the root.
Plan fitted(Plan plan, const ModelSpec& model);

struct EngineRun {
  std::vector<double> losses;         // mean over all micro-batches, per step
  std::vector<double> norms;          // of the gradient, per step
  std::string hash;                   // of the parameters at the end
  std::int64_t activations_peak = 0;  // rank 0
  std::int64_t arena = 0;
  // By name, put together from the ranks' shards (fp32 masters only): before the first step, and at the end.
  std::map<std::string, std::vector<float>> initial, parameters;
  std::int64_t tensors_held = 0;  // bytes of rank 0's account after the last step
};

// |a - b| / |b| over all parameters, Euclidean norms.
double relative_difference(const EngineRun& a, const EngineRun& b);

// Token t of sample i is a fixed function of (i, t), so every mesh sees the same samples. Every
// reduce-scatter takes at least as long as asked.
// CPU ranks, ranks that feed the stand-in for a GPU, or one that has it replay recorded steps.
enum class Feeds { kCpu, kStandin, kReplayed };
EngineRun run_in_threads(const ModelSpec& model, Plan plan, int steps, bool debug = true, Feeds feeds = Feeds::kCpu,
    Time reduce_scatter = {});
// The same of a graph that somebody has at hand, unpaced.
struct RanksRun {
  bool debug = true;
  Feeds feeds = Feeds::kCpu;
  const Pacing* pacing = nullptr;
};
EngineRun run_graph(
    const ModelSpec& model, const Plan& plan, const EventGraph& graph, int steps, const RanksRun& how = {});

// Micro-batch `number` of all there are (see sim/spec/plan.h, ReductionOrder).
MicroBatch batch_of(const ModelSpec& model, const Plan& plan, std::int64_t number, double scale);

}
