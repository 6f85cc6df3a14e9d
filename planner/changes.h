// Changes of a job's plan that its user could make: which there are, what they cost, and the job that each makes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "planner/job.h"

namespace foreshard {

// An assignment as --set takes it.
using Assignments = std::vector<std::string>;

// The job with these assignments over its own; nothing where that is not possible.
std::optional<Job> changed_job(const Job& job, const Assignments& assignments);

// Assignments that make `plan` of the job's own.
Assignments assignments_to(const Job& job, const Plan& plan);

// What costs nothing and makes another model of the job (its loss in parts), each as a job. Keys
// that the command line sets stay.
std::vector<Job> free_variants(const Job& job);

// What changes code, speed or numbers, to be named beside what a search finds: compiled blocks,
// these in fp8, parameters on the host.
std::vector<Assignments> costly_assignments(const Job& job);

// What makes a plan need less memory, one key after the other and each by its values, mildest
// first: what is free, then what costs time, then what changes code or numbers.
struct MemoryKnob {
  std::string key;                  // as it is named in "tried ..."
  std::vector<Assignments> values;  // of the job's plan as it is
  bool is_free = false;
};
std::vector<MemoryKnob> memory_knobs(const Job& job);

}
