// What would make a plan fit that does not, or surely fit that hardly does: the smallest change of
// its keys with which it holds, tried on the real model by what predict and search judge by; else
// the smallest number of GPUs, doubling. Nothing is timed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "planner/changes.h"
#include "planner/job.h"
#include "sim/base/json.h"
#include "sim/memory/capacity.h"
#include "sim/spec/plan.h"

namespace foreshard {

struct Remedy {
  Assignments changes;
  std::int64_t gpus = 0;  // of the cluster it fits; more than there are where no key helps
  Plan plan;
  Fit fit;
  double fit_probability = 0;
  Bytes host_peak;  // of the host's memory, per rank; how much there is nobody says
};

struct RemedySearch {
  std::optional<Remedy> found;     // nothing: not even all changes on 2^20 GPUs would help
  std::vector<std::string> tried;  // keys
};

// Of the job with `plan` in place of its own. First one key (its mildest value that helps), then two, then all that go
// together without those that are not needed; then more GPUs, with as few of these as they need.
RemedySearch find_remedy(const Job& job, const Plan& plan, const MemoryTerms& terms);

// One key that costs nothing: of a plan that fits, but is not sure to.
std::optional<Remedy> free_remedy(const Job& job, const Plan& plan, const MemoryTerms& terms);

// "3.12 GiB more per GPU than the 79.1 GiB there are"
std::string shortfall_text(const Fit& fit);
// "it fits with --set recompute=full: 7.53 GiB to spare, with 98 %"
std::string remedy_text(const RemedySearch& search, const Cluster& cluster);
Json remedy_json(const Fit& fit, const RemedySearch& search);

}
