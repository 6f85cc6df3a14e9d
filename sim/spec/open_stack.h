// Plans that do not say their stack: the training codes that may run them, by how many people run
// each (sim/spec/stack_usage.yaml, with sources). The first is what most people run, and whose keys
// fill the plan; a forecast covers all of them.
#pragma once

#include <string>
#include <vector>

#include "sim/spec/plan_config.h"

namespace foreshard {

struct StackAlternative {
  std::string name;   // "none": a loop of one's own, with PyTorch's defaults
  double weight = 0;  // of all alternatives 1
  Plan plan;          // as this code runs it; differs from the others' in keys nobody wrote
};

struct PlanKey;

// The codes that may run a job, what most people run first. Empty where the plan says its stack, or
// nobody's habits are known: the engine's own runtime, CPU ranks.
struct OpenStacks {
  std::vector<StackAlternative> codes;
  // As codes fill the plan that then do not go with what was written. What they would fill stays
  // unsaid in the files of plans, so that they do not go with these either.
  std::vector<Plan> refused = {};
  // Keys that any of them fills otherwise than the first.
  std::vector<const PlanKey*> keys = {};
};
OpenStacks open_stacks(const PlanDocument& written, const ModelSpec& model, const Cluster& cluster);

// The codes that may run another plan of the job, in which a search or a user chose some keys: by
// construction those of its file, open_yaml(). The first, if there is one, runs `chosen` itself;
// none where that says all that one of them would fill.
std::vector<StackAlternative> open_stacks(
    const OpenStacks& of, const Plan& chosen, const ModelSpec& model, const Cluster& cluster);

// to_yaml(), less the keys that are still open: read back, they are so again, and the plan of the
// first code is this one.
std::string open_yaml(const OpenStacks& of, const Plan& plan, const ModelSpec& model, const Cluster& cluster);

// The document with the stack that most people run, where it says none and one is known.
PlanDocument with_usual_stack(PlanDocument written, const OpenStacks& open);

// Which of them draw k is of: a fixed sequence that follows the weights as evenly as can be.
std::size_t alternative_of_draw(const std::vector<double>& weights, int k);

}
