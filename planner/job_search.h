// A search over a job and over what costs nothing to change in it (planner/job_variants.h).
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

#include "planner/job_variants.h"
#include "reports/sizing/search_advice.h"
#include "sim/search/deep.h"
#include "sim/search/search.h"

namespace foreshard {

// The best step of all variants with the mesh's tp, cp, ep, etp and pp; nullopt: no plan holds.
struct MeshStep {
  Mesh mesh;
  std::optional<double> seconds;
};

struct JobSearch {
  JobVariant chosen;                         // of the best plan, of the riskier or of the smallest
  SearchResult result;                       // its own; counts are of all variants
  double seconds = 0;                        // of all
  std::vector<MeshStep> meshes;              // of several, where each was asked for
  std::vector<PipelineStep> pipelines = {};  // of all numbers of ranks, fewest first
};

// `memory_after`: what an earlier search knows of the places that come after so many of the
// variants before; may be empty. Throws Error(kInvalidInput) when the global batch fits no mesh.
JobSearch search_job(const SearchVariants& variants, const SearchOptions& options,
    const std::function<SearchMemory(std::size_t)>& memory_after = {});

// search --deep: goes on from what was found, and from the plan as it was written.
DeepResult search_deep(const JobSearch& found, const SearchOptions& options);
// Its last stage alone; nothing where nothing was found.
std::optional<Candidate> search_layers(const JobSearch& found, const SearchOptions& options);

// What could be changed beside the free choices, and what it buys: the best plan with each, where
// that is faster than the found one or, where none was found, where one holds.
std::vector<Alternative> find_alternatives(
    const Job& job, const SpaceRequest& request, const SearchResult& found, const SearchOptions& search);
// The best plan without axes inside a step, which ask more of the code, where the found one has
// them unasked. `request` says the global batch.
std::optional<Alternative> find_without_axes(
    const Job& job, const SpaceRequest& request, const SearchResult& found, const SearchOptions& search);

}
