// What to buy or rent: every candidate cluster with its best plan and the run on it, in order.
//
// Choices that meet the deadline come first, then by dollars, then by GPUs and name. What was
// looked at and is no choice is told with the reason. The answer does not depend on the number of
// threads.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "reports/sizing.h"
#include "reports/training_run.h"
#include "reports/views.h"

namespace foreshard {

// One cluster to look at.
struct CandidateCluster {
  std::string machine;  // what it is listed under: a catalogue key
  std::string spec;     // what --cluster takes: "512xh100", a file
  std::int64_t gpus = 0;
};

// A job on one cluster, complete but for what the search chooses.
struct SizedJob {
  ModelSpec model;
  SearchSpace space;
  CostModel costs;
  Price price;
  StackCases cases = {};  // empty: the stack is said
};
// Of a cluster at a step of at most so many sequences. Throws Error where the job is not possible
// there.
using JobMaker = std::function<SizedJob(const CandidateCluster&, std::int64_t most_sequences)>;

struct Choice {
  std::string machine;  // catalogue key
  SizedPlan sized;
  Price price;
  RunForecast run;
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
  bool meets_terms() const {
    return !choices.empty() && choices.front().run.meets_deadline &&
           choices.front().run.within_budget;
  }
};

struct RecommendOptions {
  int threads = 0;                  // 0: all cores
  std::int64_t most_sequences = 0;  // of a step
  int draws = 64;
  std::function<bool(std::int64_t, std::int64_t)> progress;  // clusters done and in all
};

// Throws what `make` throws where that is wrong on every cluster alike: Error(kInvalidInput) of the
// only candidate.
Recommendation recommend(const std::vector<CandidateCluster>& candidates, const JobMaker& make,
                         const RunTerms& terms, const RecommendOptions& options);

// Eight sizes of a machine kind, doubling, around what the deadline needs at 40 % of the peak
// (without a deadline: from one node), not beyond `most`.
std::vector<std::int64_t> likely_sizes(const Cluster& cluster, double flops, const RunTerms& terms,
                                       std::int64_t most);

std::string recommend_text(const Recommendation& recommendation, Color color);
Json to_json(const Recommendation& recommendation);

}  // namespace foreshard
