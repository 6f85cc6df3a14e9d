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

// The alternatives that resolve and pass check(), what most people run first. Empty where the plan
// says its stack, or nobody's habits are known: the engine's own runtime, CPU ranks.
std::vector<StackAlternative> open_stacks(const PlanDocument& written, const ModelSpec& model,
                                          const Cluster& cluster);

// The same of another plan of the job, in which a search or a user chose some keys: these are no
// longer open. The first is `chosen` itself; others that fail check() are left out.
std::vector<StackAlternative> open_stacks(const std::vector<StackAlternative>& of,
                                          const Plan& chosen, const ModelSpec& model,
                                          const Cluster& cluster);

// to_yaml(), less the keys that are still open: read back, they are so again.
std::string open_yaml(const std::vector<StackAlternative>& of, const Plan& plan);

// The document with the stack that most people run, where it says none and one is known.
PlanDocument with_usual_stack(PlanDocument written, const std::vector<StackAlternative>& open);

// Which of them draw k is of: a fixed sequence that follows the weights as evenly as can be.
std::size_t alternative_of_draw(const std::vector<double>& weights, int k);

}  // namespace foreshard
