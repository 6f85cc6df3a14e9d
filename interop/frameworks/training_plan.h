// What the columns of a row say of its plan, its batch apart.
//
// A published column decides its plan keys; others are those of the row's stack, or what was likely at its date.
#pragma once

#include <string>
#include <vector>

#include "interop/steps/training_rows.h"
#include "sim/spec/cluster.h"
#include "sim/spec/model_spec.h"

namespace foreshard {

// "attention=fa1", "units={embedding: root, head: root}": in the order in which they apply.
// Precondition: the row's runtime is published.
// Of a row with pp: how its stages run and what of the model each has.
std::vector<std::string> pipeline_assignments(const TrainingRow& row, const ModelSpec& model);

std::vector<std::string> plan_assignments(const TrainingRow& row, const Cluster& cluster);

// Whether tensor, context or expert parallelism has a degree.
bool has_axes(const TrainingRow& row);

// Kernels of its own, and the products that go with them.
bool is_fused_by_hand(const TrainingRow& row);

// Older than FlashAttention-2.
bool is_before_fa2(const TrainingRow& row);

}
