// The best plan for a model on a cluster at a given global batch: every combination of shard group x reshard x prefetch
// x recompute x micro-batch/accumulation, and of further knobs, that the runtime can express.
//
// Enumeration order is fixed and results do not depend on the number of threads. Search adds no
// modelling: it calls build_training_step, peak_allocated, CostModel::price and simulate for every
// plan, and forecast's functions for those that the answer names, which are assessed in full: what
// they reserve, what asking the driver for it costs them, and how sure it is that they fit. One
// that does not hold (sim/memory/capacity.h) is passed over, and the next takes its place.
//
// The best plan is looked for in the order of a lower bound of the step (sim/search/bounds.h). One
// whose bound shows that it cannot be part of the answer is pruned. With kAll the plans whose knobs
// are as the best plan's are then judged one and all, for the tables.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sim/base/letters.h"
#include "sim/base/units.h"
#include "sim/cost/cost_model.h"
#include "sim/memory/capacity.h"
#include "sim/memory/reserved_forecast.h"
#include "sim/search/layers_floor.h"
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

// Which keys vary; the others stay as in `base`. Empty lists mean: what the key's own rule below enumerates.
struct SearchSpace {
  Plan base;                                        // runtime, units, dtypes, optimizer, sequence ...
  std::int64_t global_batch = 0;                    // sequences per step over all ranks
  std::vector<std::int64_t> shard_groups;           // default: divisors of the GPU count that are powers of
                                                    // two, whole nodes, or all
  std::vector<Reshard> reshards;                    // default: always, never, and (shard group > node) a node's GPUs
  std::vector<Prefetch> prefetches;                 // default: implicit and 1, 2 forward x 1, 2 backward
  std::vector<RangedPolicy<Recompute>> recomputes;  // default: none, selective, full
  std::vector<std::int64_t> micro_batches;          // default: divisors of the sequences per rank, up to 64
  std::vector<KnobAxis> knobs;                      // none by default; at most kMostKnobs
  // Knobs that count little: their values are tried on the best plan alone, one after the other.
  std::vector<KnobAxis> finish;
  // Settings of the caching allocator, which change no row: where a plan does not hold with one,
  // the next is tried. Default: the base's alone.
  std::vector<AllocatorSettings> allocators;
};
inline constexpr std::size_t kMostKnobs = 10;

// What happened to a combination.
enum class Verdict : std::uint8_t { kSimulated, kDoesNotFit, kNotDivisible, kPruned };
inline const char* to_string(Verdict verdict) {
  return word_at(verdict, "simulated", "does_not_fit", "not_divisible", "pruned");
}

struct Candidate {
  Plan plan;
  double seconds = 0;             // of a step; 0 when it was not simulated
  double unfinished_seconds = 0;  // of the best: before SearchSpace::finish
  double tokens_per_s_per_gpu = 0;
  Bytes peak_allocated;
  Bytes outside_allocator;
  Bytes peak_reserved;         // 0 where it was not asked
  double fit_probability = 0;  // where peak_reserved was asked
  Verdict verdict = Verdict::kSimulated;
  bool recomputes() const { return plan.recompute != RangedPolicy<Recompute>(); }
};

// Best step time over everything else for a shard group and a prefetch choice; nullopt: nothing fits.
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
  std::int64_t pruned = 0;            // could not be part of the answer by their lower bound
  std::optional<Candidate> best;      // of those that hold; ties go to the base's values
  std::optional<Candidate> riskier;   // fits by the forecast and is faster, but is not sure enough
  std::optional<Candidate> smallest;  // least memory of all, when nothing holds
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

// What a plan's memory has to meet, and who says how sure it is that it fits where more is known
// than the plan's own forecast (what it leaves open): optional, called from any thread;
// where the odds are below `enough`, the answer may be an upper bound that is below it, too.
// `replays`: of the allocator, shared with other searches; null: a search's own. `samples`: of a
// pipeline's stages, shared with other searches of the same job.
struct FitRule {
  MemoryTerms terms;
  bool keeps_riskier = true;  // plans that fit, but not surely, are looked at: for the riskier one
  std::function<double(const Plan&, const Fit&, double enough)> probability;
  // Whether it may be `enough`, of a fit that reserves what is certain: told without replaying the allocator. Optional.
  std::function<bool(const Plan&, const Fit& least, double enough)> may_be;
  double share = 1;  // of `probability`, what is the search's own forecast's at the least
  std::shared_ptr<ReservedMemory> replays;
  std::shared_ptr<StageSamples> samples;
};

// A limit of a step (s) that rules none out: what does not hold is then no answer at all.
inline constexpr double kAnyStep = 1e8;

struct SearchOptions {
  int threads = 0;  // 0: all cores
  // Called now and then, from any thread, with plans done and plans in all; returning false stops the search.
  std::function<bool(std::int64_t, std::int64_t)> progress;
  SearchDetail detail = SearchDetail::kAll;
  Objective objective = Objective::kTime;
  FitRule fit;
  // Of the best plan's step: plans this close are as fast, and the one with the base's values wins.
  double tie = 5e-4;
  // Plans that are not faster than this (s), before they are finished, are no answer, as if they
  // did not hold: of a search beside another. With it, no smallest plan is looked for.
  std::optional<double> faster_than;
  double keep_within = 0;
  SearchMemory memory;  // optional
};

// All plans of the space in their order. Throws Error(kInvalidInput) when the global batch fits no mesh.
std::vector<Plan> enumerate(const SearchSpace& space, const ModelSpec& model, const Cluster& cluster);

// Of all plans of a space, before any of them is looked at; 0 where it is not known.
struct SpaceFloor {
  // What layers take at the least, with the collectives inside of them: of every micro-batch, recomputed as the first
  // of the space's policies says (nothing, where it is free). A lower bound of FSDP2's steps.
  Time bare;
  // The same of what has room for its activations, beyond every step where nothing has.
  Time layers;
  // A bound of the step of the plan that asks for least memory; where that does not fit, beyond
  // every step. It bounds no other plan.
  Time smallest;
};

// Of what layers take the loss in parts takes no more off (assumed; seen: a hundredth).
inline constexpr double kLossInParts = 0.95;

// Throws as enumerate().
SpaceFloor floor_of(const SearchSpace& space, const ModelSpec& model, const CostModel& costs, const MemoryTerms& terms,
    std::shared_ptr<StageSamples> samples = nullptr);

// The space around the values that `best` was finished with (SearchSpace::finish), which may let
// another plan win: what tables are of.
SearchSpace settled(SearchSpace space, const Plan& best);
// The same, still to be finished: of another variant, whose plans then compare.
SearchSpace begun_as(SearchSpace space, const Plan& best);

SearchResult search(
    const SearchSpace& space, const ModelSpec& model, const CostModel& costs, const SearchOptions& options);

// Whether plans over other axes may be faster than the best one without, whose space's layers take
// `bare`: where it recomputes, or waits for more than a few hundredths.
bool leaves_room(const Candidate& best, Time bare);

// Whether the loss in parts may make a variant the best.
inline bool may_win_in_parts(const SpaceFloor& floor, const Candidate* best) {
  return best == nullptr || floor.bare.seconds() * kLossInParts < best->seconds;
}

}
