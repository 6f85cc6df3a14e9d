// Rows (tokens times experts each goes to) that reach the rank of mesh.ep whose experts receive
// most.
#pragma once

#include <cstdint>

#include "sim/spec/plan.h"

namespace foreshard {

struct ExpertGroup {
  std::int64_t ranks = 1, experts = 1;
};

// `sent`: rows of each rank of the group. As listed; in proportion to the counts of experts, which
// lie on the ranks in their order; or to a Zipf distribution of the experts dealt out to the ranks
// like cards, for an expert's number says nothing about how often it is chosen.
std::int64_t received_rows(const ExpertParallel& how, ExpertGroup group, std::int64_t sent);

}  // namespace foreshard
