// What to buy or rent: every candidate cluster with its best plan and the run on it, in order.
//
// Choices that hold come first: fit, in time and within the budget, all at once, with the asked
// confidence; by dollars, of equal ones (within kAlike) the one whose price and rates are better
// known, then by GPUs and name. The others follow by what they hold with. What was looked at and is
// no choice is told with the reason. The answer does not depend on the number of threads.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "reports/sizing/sizing.h"
#include "reports/sizing/training_run.h"
#include "reports/view/views.h"

namespace foreshard {

// One cluster to look at.
struct CandidateCluster {
  std::string machine;  // what it is listed under: a catalogue key
  std::string spec;     // what --cluster takes: "512xh100", a file
  std::int64_t gpus = 0;
  bool is_largest = true;  // of its machine: it is looked at whatever the deadline
};

// Of a cluster at a step of at most so many sequences. Throws Error where the job is not possible there.
using JobMaker = std::function<JobVariants(const CandidateCluster&, std::int64_t most_sequences)>;

inline constexpr double kAlike = 0.05;  // of the dollars: two choices cost the same

struct Choice {
  std::string machine;  // catalogue key
  SizedPlan sized;
  Price price;
  RunForecast run;
  // How many of its price and its step's rates nobody measured.
  int assumed() const { return (price.evidence == Evidence::kAssumed) + (sized.step.evidence == Evidence::kAssumed); }
};

struct Rejected {
  std::string cluster;  // spec
  std::int64_t gpus = 0;
  std::string reason;
};

// The smallest size of a machine kind on which the model fits at all, and where its curve of tokens
// per second bends: beyond the knee a doubling brings less than 1.6 times as many.
struct MachineSizes {
  std::string machine;
  std::optional<std::int64_t> smallest;  // nothing: not on any size
  std::optional<std::int64_t> knee;      // of two choices or more
};

// What would meet the terms that no choice meets, one thing changed.
struct TermsRemedy {
  enum class What : std::uint8_t { kDeadline, kBudget, kGpus, kTokens } what = What::kDeadline;
  std::string cluster;              // which would
  double value = 0;                 // s, USD, GPUs, tokens
  std::int64_t most_sequences = 0;  // kGpus: where the step has to grow, to so many
  double seconds = 0;               // kGpus: wall clock then
  double dollars = 0;
};

struct Recommendation {
  RunTerms terms;
  std::string model;
  std::int64_t parameters = 0;
  std::int64_t sequence = 0;        // tokens
  std::int64_t most_sequences = 0;  // of a step
  std::vector<Choice> choices;
  std::vector<Rejected> rejected;
  std::vector<MachineSizes> machines;
  std::vector<TermsRemedy> remedies;  // empty where the first choice meets the terms
  bool meets_terms() const { return !choices.empty() && choices.front().run.probability >= terms.confidence; }
};

struct RecommendOptions {
  int threads = 0;                  // 0: all cores
  double confidence = kConfidence;  // of scale; recommend's is of its terms
  std::int64_t most_sequences = 0;  // of a step
  int draws = 64;
  std::function<bool(std::int64_t, std::int64_t)> progress;  // clusters done and in all
};

// Throws what `make` throws where that is wrong on every cluster alike: Error(kInvalidInput) of the only candidate.
Recommendation recommend(const std::vector<CandidateCluster>& candidates, const JobMaker& make, const RunTerms& terms,
    const RecommendOptions& options);

// Eight sizes of a machine kind, doubling, around what the deadline needs at 40 % of the peak
// (without a deadline: from one node), not beyond `most`.
std::vector<std::int64_t> likely_sizes(const Cluster& cluster, double flops, const RunTerms& terms, std::int64_t most);

// Three digits: "1.04 M", "812", "12.3 k".
std::string short_number(double value);
std::string recommend_text(const Recommendation& recommendation, Color color);
Json to_json(const Recommendation& recommendation);

// The same job on a cluster of which one property is another: which of them buys most.
struct WhatIf {
  std::string property;  // "node.nic_rate": a key of a cluster file
  std::string change;    // "x2"
  // Nothing: no plan fits, or a cluster without the property.
  std::optional<SizedPlan> sized;
  RunForecast run;
  // USD per GPU and hour that the change may cost (below 0: must save) for the run to cost the same.
  double worth_per_gpu_hour = 0;
};

// Of the machine as bought: faster and slower networks, links, memory and arithmetic. The best plan
// is searched anew for each. The largest worth first.
std::vector<WhatIf> what_ifs(
    const Choice& choice, const JobVariants& variants, const RunTerms& terms, const RecommendOptions& options);

std::string what_if_text(const std::vector<WhatIf>& list, const Choice& choice, Color color);
Json to_json(const std::vector<WhatIf>& list);

// A scaling curve of one machine kind: the best plan at every size, each a forecast of its own.
struct ScalePoint {
  SizedPlan sized;
  Price price;
  double speedup = 1;     // in tokens/s over the smallest size
  double efficiency = 1;  // tokens/s per GPU over those of the smallest size
};

struct ScalingCurve {
  std::string model;
  std::string machine;
  bool weak = false;  // the step grows with the GPUs; strong: it stays
  std::int64_t sequence = 0;
  std::vector<ScalePoint> points;  // by GPUs
  std::vector<Rejected> rejected;
  std::optional<std::int64_t> knee;  // knee_of()
};

// Of at most so many sequences a step, weak: for every GPU. Threads as RecommendOptions.
ScalingCurve scale(
    const std::vector<CandidateCluster>& sizes, const JobMaker& make, bool weak, const RecommendOptions& options);

std::string scale_text(const ScalingCurve& curve, Color color);
Json to_json(const ScalingCurve& curve);
// gpus,global_batch,step_s,step_s_low,step_s_high,tokens_per_s,tokens_per_s_per_gpu,speedup,
// efficiency,mfu,exposed_communication,shard,replicate,reshard,prefetch,recompute,micro_batch, accumulation
std::string scale_csv(const ScalingCurve& curve);

}
