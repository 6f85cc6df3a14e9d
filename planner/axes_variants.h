// Jobs that spread layers, sequences, experts and stages over the ranks in other ways: the values
// of mesh.tp, mesh.cp, mesh.ep, mesh.etp and mesh.pp that a search tries.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "planner/job.h"

namespace foreshard {

// The keys; those of axes inside a step of one stage, which a search tries by itself, and the word
// of --vary that stands for them. Stages are tried where they are asked for.
std::vector<std::string> axis_keys();
std::vector<std::string> inner_axis_keys();
inline constexpr const char* kExpertAxis = "mesh.ep";   // one of them
inline constexpr const char* kContextAxis = "mesh.cp";  // another
inline constexpr std::string_view kAllAxes = "axes";
// Keys of --vary by what they are: those of axes, "axes" as the inner ones, and the others.
struct VariedKeys {
  std::vector<std::string> axes, others;
};
VariedKeys split_axes(const std::vector<std::string>& vary);

// The job with every other combination of values of `keys` (of axis_keys(); what the command line sets stays) that its
// runtime, model and cluster allow and over whose ranks `global_batch` sequences divide, simplest first. Groups of tp
// stay inside a node or a domain of NVLink; the ranks of a group of cp keep some positions each; a pipeline has a short
// bubble. Empty: none, or no rank has room for its part of the parameters and their optimizer state.
std::vector<Job> jobs_over_axes(const Job& job, const std::vector<std::string>& keys, std::int64_t global_batch);

}
