// The space that a command line spans around its job.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "planner/job.h"
#include "sim/search/search.h"

namespace foreshard {

// Whether an assignment (--set, --fix) names the key, and all that are named so.
bool is_fixed(const Job& job, std::string_view key);
std::vector<std::string> fixed_keys(const Job& job);

// One value for every axis that an assignment (--set, --fix) names; what stays empty varies as
// search.h says. The global batch is the plan's.
SearchSpace space_of(const Job& job);

// As the plan's key batch.global is read.
std::int64_t read_global_batch(const std::string& text);

// Without what a search chooses: no assumptions.
Job without_choices(Job job);

}
