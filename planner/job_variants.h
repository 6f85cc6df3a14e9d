// The jobs that a search looks at. Keys that leave the model's kernels alone are axes of the space
// (sim/search/knobs.h); of the others (loss, the axes of the mesh inside a layer) each value is a
// variant: a job with a model of its own.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "planner/job.h"
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
  bool is_one_of_many = false;  // beside a plan that holds, few axes are looked at
};

struct SearchVariants {
  std::vector<JobVariant> list;  // the job first
  // More, to be made and looked at where none holds (null) or where they may be faster than the
  // best (leaves_room()); may be empty.
  std::function<std::vector<JobVariant>(const JobVariant*)> otherwise;
  // Of variants over axes that may be the best, what else is free to change; may be empty.
  std::function<std::vector<JobVariant>(const std::vector<const JobVariant*>&)> around = {};
  bool each_mesh = false;  // none is given up for another's plan: JobSearch::meshes
};

// The job, its free variants that are possible, and those over the axes that are to vary and over mesh.ep of mixtures
// inside a domain of NVLink, which takes quarters off their steps. Where the command line says nothing of axes, all
// that are not set are there `otherwise`; beside the best of one of many jobs mesh.cp alone, and mesh.ep over several
// domains. Throws Error(kUsage) where a key of `vary` does not vary.
SearchVariants search_variants(const Job& job, const SpaceRequest& request);

// The job alone: a variant for each model that its plans run, that of its own plan first.
std::vector<JobVariant> variants_by_model(Job job, const SpaceRequest& request);

}
