// What one rank computes of a model whose layers are spread over the mesh's axes tp, cp and ep: its
// part of every layer, with the collectives between the parts as operations of the layer.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/spec/model_spec.h"
#include "sim/spec/plan.h"

namespace foreshard {

// Which widths of an operation the engine (runtime native) computes in so many equal slices; sums
// of slices are added in pairs. Nothing of graph, cost or memory but what the part itself says.
struct Slices {
  std::int16_t columns = 1;  // GEMM: of n; a view: of the sum that its input's gradient is
  std::int16_t terms = 1;    // GEMM: of k
  std::int16_t rows = 1;     // of the tokens that a norm's, bias' or table's gradient sums over
};
// Of every kind's operations, in order.
using SlicesOfPart = std::vector<std::vector<Slices>>;

// Slices of each rank, whatever cuts its layers beside them.
std::int64_t slices_of_rank(const Plan& plan);
// Whether a rank computes other layers than the model's: parts of them, or the same in slices.
bool cuts_layers(const Plan& plan);

// Preconditions: check(plan, model, cluster) passed; the mesh is not plain. Layers keep their
// number, order and roles; parameters have the shapes of plan.rank(), in the order in which modules
// register them (modules inside a block before the norms of the block itself).
ModelSpec part_of_rank(const ModelSpec& model, const Plan& plan);
// Whether a tied table is one parameter of two modules in the part, as in the model: fully_shard
// replaces the parameters of each unit's own modules, so what two units share becomes two.
bool has_shared_table(const ModelSpec& part);
SlicesOfPart slices_of_part(const ModelSpec& model, const Plan& plan);

// torchtitan's trainer sums the loss and divides it by the tokens of the step: an operation more.
inline constexpr const char* kUndividedLoss = "undivided loss";
void divide_loss(ModelSpec& model);

}
