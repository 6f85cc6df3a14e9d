// The best plan for a model on a cluster at a given global batch: every combination of shard group
// x reshard x prefetch x recompute x micro-batch/accumulation, and of further knobs, that the
// runtime can express.
//
// Enumeration order is fixed and results do not depend on the number of threads. Search adds no
// modelling: it calls build_training_step, peak_allocated, CostModel::price and simulate for every
// plan, and peak_reserved for those that the answer names: best, Pareto plans and the smallest;
// neighbours and the heatmap's where they come within a tenth of the GPU's memory. One that does
// not fit with its segments is rejected there, and the next takes its place.
//
// Plans are looked at in the order of a lower bound of their step (sim/search/bounds.h). One whose
// bound shows that it cannot be part of the answer is pruned: with kBest before its graph is built,
// with kAll before it is simulated.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sim/base/units.h"
#include "sim/cost/cost_model.h"
#include "sim/memory/capacity.h"
#include "sim/spec/model_spec.h"
#include "sim/spec/plan.h"

namespace foreshard {

// A further key that varies. The first value is the one to prefer among equals.
struct KnobAxis {
  std::string key;  // dotted: "communicators"
  std::vector<std::function<void(Plan&)>> values;
  // Whether the key says anything in a plan whose other keys are these; where it does not, only the
  // first value is a plan. Empty: always.
  std::function<bool(const Plan&)> matters = {};
};

// Which keys vary; the others stay as in `base`. Empty lists mean: what the key's own rule below
// enumerates.
struct SearchSpace {
  Plan base;                               // runtime, units, dtypes, optimizer, sequence ...
  std::int64_t global_batch = 0;           // sequences per step over all ranks
  std::vector<std::int64_t> shard_groups;  // default: divisors of the GPU count that are powers of
                                           // two, whole nodes, or all
  std::vector<Reshard> reshards;  // default: always, never, and (shard group > node) a node's GPUs
  std::vector<Prefetch> prefetches;  // default: implicit and 1, 2 forward x 1, 2 backward
  std::vector<RangedPolicy<Recompute>> recomputes;  // default: none, selective, full
  std::vector<std::int64_t> micro_batches;  // default: divisors of the sequences per rank, up to 64
  std::vector<KnobAxis> knobs;              // none by default; at most kMostKnobs
};
inline constexpr std::size_t kMostKnobs = 10;

// What happened to a combination.
enum class Verdict : std::uint8_t { kSimulated, kDoesNotFit, kNotDivisible, kPruned };

struct Candidate {
  Plan plan;
  double seconds = 0;  // of a step; 0 when it was not simulated
  double tokens_per_s_per_gpu = 0;
  Bytes peak_allocated;
  Bytes outside_allocator;
  Bytes peak_reserved;  // 0 where it was not asked
  Verdict verdict = Verdict::kSimulated;
};

// Best step time over everything else for a shard group and a prefetch choice; nullopt: nothing
// fits.
struct HeatmapCell {
  std::int64_t shard = 0;
  Prefetch prefetch;
  std::optional<double> seconds;
  std::optional<Plan> plan = {};  // that takes them
};

struct SearchResult {
  std::int64_t enumerated = 0;
  std::int64_t rejected_memory = 0;
  std::int64_t simulated = 0;
  std::int64_t pruned = 0;  // could not be part of the answer by their lower bound
  std::optional<Candidate> best;
  std::optional<Candidate> smallest;  // least memory of all, when nothing fits
  std::vector<Candidate> pareto;      // kAll: time and memory, fastest first; kBest: the best alone
  std::vector<Candidate> neighbours;  // kAll: the best plan with one key changed, for "why it won"
  std::vector<HeatmapCell> heatmap;   // kAll: shard groups x prefetches, in enumeration order
  // kAll: every simulated plan whose step is at most `keep_within` times the best's, fastest first;
  // whether they fit with what is reserved is not asked.
  std::vector<Candidate> close;
};

// kBest: the best plan alone, so that most others need not be built.
enum class SearchDetail : std::uint8_t { kAll, kBest };

// What the best plan has most of: speed (of equals the one with less memory), or memory to spare
// (of equals the faster).
enum class Objective : std::uint8_t { kTime, kMemory };

// What a search knows of a plan once it has judged it.
struct JudgedPlan {
  Verdict verdict = Verdict::kPruned;  // kSimulated or kDoesNotFit
  Time step;
  Bytes peak_allocated;
  Bytes outside_allocator;
  bool operator==(const JudgedPlan&) const = default;
};

// Memory of an earlier search over the same places, by their number. Called from any thread.
struct SearchMemory {
  std::function<std::optional<JudgedPlan>(std::size_t)> recall;
  std::function<void(std::size_t, const JudgedPlan&)> remember;
};

struct SearchOptions {
  int threads = 0;  // 0: all cores
  // Called now and then, from any thread, with plans done and plans in all; returning false stops
  // the search.
  std::function<bool(std::int64_t, std::int64_t)> progress;
  SearchDetail detail = SearchDetail::kAll;
  Objective objective = Objective::kTime;
  double max_memory = 1;  // of the GPU's, that reserved memory and what is outside may take
  double keep_within = 0;
  SearchMemory memory;  // optional
};

// All plans of the space in their order. Throws Error(kInvalidInput) when the global batch fits no
// mesh.
std::vector<Plan> enumerate(const SearchSpace& space, const ModelSpec& model,
                            const Cluster& cluster);

SearchResult search(const SearchSpace& space, const ModelSpec& model, const CostModel& costs,
                    const SearchOptions& options);

// The cluster as a search with this limit sees it: a GPU of which the rest is not there.
Cluster with_memory_limit(Cluster cluster, double max_memory);

}  // namespace foreshard
