// A search over a job and over what costs nothing to change in it. Keys that leave the model's
// kernels alone are axes of the space (sim/search/knobs.h); of the others (loss) each value is a
// variant: a job with a model of its own.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "planner/job.h"
#include "reports/sizing/search_advice.h"
#include "sim/search/search.h"

namespace foreshard {

// A job with the space that a search spans around it.
struct JobVariant {
  Job job;
  SearchSpace space;
};

// What the command line says of the space beside the job.
struct SpaceRequest {
  std::optional<std::string> global_batch;  // as batch.global
  std::vector<std::string> vary;            // keys of sim/search/knobs.h
};

// The job first, then its free variants that are possible. Throws Error(kUsage) where a key of
// `vary` does not vary.
std::vector<JobVariant> search_variants(const Job& job, const SpaceRequest& request);

struct JobSearch {
  std::size_t variant = 0;  // of the best plan, of the riskier or of the smallest
  SearchResult result;      // its own; counts are of all variants
  double seconds = 0;       // of all
};

// `memory_of`: what an earlier search knows of a variant; may be empty.
JobSearch search_job(const std::vector<JobVariant>& variants, const SearchOptions& options,
                     const std::function<SearchMemory(std::size_t)>& memory_of = {});

// What could be changed beside the free choices, and what it buys: the best plan with each, where
// that is faster than the found one or, where none was found, where one holds.
std::vector<Alternative> find_alternatives(const Job& job, const SpaceRequest& request,
                                           const SearchResult& found, const SearchOptions& search);

}  // namespace foreshard
