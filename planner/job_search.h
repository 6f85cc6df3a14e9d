// A search over a job and over what costs nothing to change in it. Keys that leave the model's
// kernels alone are axes of the space (sim/search/knobs.h); of the others (loss, the axes of the
// mesh inside a layer) each value is a variant: a job with a model of its own.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "planner/job.h"
#include "reports/sizing/search_advice.h"
#include "sim/search/deep.h"
#include "sim/search/search.h"

namespace foreshard {

// A job with the space that a search spans around it.
struct JobVariant {
  Job job;
  SearchSpace space;
};

// All plans of the variant in their order; none where its global batch fits no mesh.
std::vector<Plan> plans_of(const JobVariant& variant);

// What the command line says of the space beside the job.
struct SpaceRequest {
  std::optional<std::string> global_batch;  // as batch.global
  // Keys of sim/search/knobs.h and planner/axes_variants.h, or kAllAxes.
  std::vector<std::string> vary;
};

struct SearchVariants {
  std::vector<JobVariant> list;  // the job first
  // More, to be made and looked at where none of the list holds; may be empty.
  std::function<std::vector<JobVariant>()> otherwise;
  bool each_mesh = false;  // none is given up for another's plan: JobSearch::meshes
};

// The best step of all variants with the mesh's tp, cp, ep, etp and pp; nullopt: no plan holds.
struct MeshStep {
  Mesh mesh;
  std::optional<double> seconds;
};

// The job, its free variants that are possible, and those over the axes that are to vary. Where the
// command line says nothing of axes, all that are not set are there `otherwise`. Throws
// Error(kUsage) where a key of `vary` does not vary.
SearchVariants search_variants(const Job& job, const SpaceRequest& request);

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
std::vector<Alternative> find_alternatives(const Job& job, const SpaceRequest& request,
                                           const SearchResult& found, const SearchOptions& search);

}  // namespace foreshard
