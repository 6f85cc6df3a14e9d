// What happens to a rank's shards between two steps: initial values, the optimizer, and the sums
// and hashes that must not depend on how the parameters are spread over ranks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "exec/engine/exact_sum.h"
#include "exec/engine/unit_memory.h"

namespace foreshard {

// Name of a parameter in the whole model: "layers.3.self_attn.q_proj.weight".
std::string parameter_name(const ModelSpec& model, const FlatParameter& parameter);

// Normal(0, 0.02) for matrices, those that write to the residual stream divided by sqrt(2 blocks)
// (GPT-2, section 2.3); 1 for norm weights, 0 for biases. Element i of a parameter is a function of
// seed, name and i alone (Philox 4x32, counter i / 4).
void initialise_shard(UnitMemory& unit, const ModelSpec& model, const Plan& plan);

// learning rate of step `number` (from 1), by the plan's schedule
double learning_rate(const Optimizer& optimizer, std::int64_t number);

// Writes the compute-dtype shadow anew, as after loading the shard.
void refresh_shadow(UnitMemory& unit, const Plan& plan);

// AdamW or SGD on the rank's shard, then the compute-dtype shadow.
void update_parameters(UnitMemory& unit, const ModelSpec& model, const Plan& plan,
                       std::int64_t number);

// Adds the squares of `count` values, a multiple of 32, block by block of 32, each block a double:
// a grid that shards do not cut.
void add_squares(const float* values, std::int64_t count, ExactSum& sum);

// Sum (mod 2^64) of hashes of the shard's blocks of 32 elements, each with its parameter's name and
// its place in it; padding is left out.
std::uint64_t hash_shard(const UnitMemory& unit, const ModelSpec& model, const Plan& plan);

}  // namespace foreshard
