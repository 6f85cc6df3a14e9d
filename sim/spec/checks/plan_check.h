// What a plan may not be, without exceptions: for search, which rejects most plans, and for readers, which know where
// in a file the wrong key stands. check() of plan.h throws what find_problem finds.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/base/error.h"
#include "sim/spec/cluster.h"
#include "sim/spec/model_spec.h"
#include "sim/spec/plan.h"

namespace foreshard {

// Largest values of a plan; the least is 1 unless a comment says otherwise.
namespace plan_limits {
inline constexpr std::int64_t kSequence = std::int64_t{1} << 24;
inline constexpr std::int64_t kMicroBatch = std::int64_t{1} << 20;
inline constexpr std::int64_t kAccumulation = std::int64_t{1} << 20;
inline constexpr std::int64_t kImages = 4096;  // from 0
inline constexpr std::int64_t kMetrics = 64;   // from 0
inline constexpr std::int64_t kMesh = std::int64_t{1} << 20;
inline constexpr std::int64_t kLayersPerUnit = std::int64_t{1} << 16;
inline constexpr std::int64_t kPrefetch = 1024;  // from 0
inline constexpr std::int64_t kRank = 65536;     // of adapters, from 0
inline constexpr std::int64_t kBuffers = 64;
inline constexpr std::int64_t kCtas = 64;           // NCCL's MAXCHANNELS; from 0
inline constexpr std::int64_t kNumber = 9'999'999;  // of a block or unit in a range, from 0
inline constexpr std::int64_t kGlobalBatch = std::int64_t{1} << 40;
inline constexpr std::int64_t kParameters = std::int64_t{1} << 40;  // from 0
inline constexpr std::int64_t kSteps = 1'000'000'000;
inline constexpr std::int64_t kSeed = std::int64_t{1} << 53;
inline constexpr std::int64_t kEvery = 9'999'999;  // K of recompute: every-K
}

// The newest version of a runtime that is modelled: "2.15" of PyTorch for fsdp2, "1" for native.
const char* newest_version(RuntimeKind kind);

// Megatron-LM before e7b74a4b (2024-04-02), whose layers are its own (--transformer-impl local),
// not TransformerEngine's.
inline constexpr const char* kLocalMegatron = "0.5";
bool has_engine_modules(const Runtime& runtime);

struct PlanProblem {
  ExitCode exit_code = ExitCode::kInvalidInput;  // or kMissingCapability
  std::string key;                               // dotted path: "mesh.shard"
  std::string what_is_wrong;
  std::string expected;      // "" or what follows "expected"
  std::string did_you_mean;  // "" or what follows "did you mean"; for kMissingCapability the nearest plan
};

// The first problem in the order of the plan's keys.
std::optional<PlanProblem> find_problem(const Plan& plan, const ModelSpec& model, const Cluster& cluster);

// ConfigError, or Error(kMissingCapability), at `location`, whose key path becomes the problem's.
[[noreturn]] void throw_problem(const PlanProblem& problem, Location location);

// What the plan may be but hardly means, and known defects of its runtime that it meets, one sentence each.
std::vector<std::string> warnings(const Plan& plan, const ModelSpec& model, const Cluster& cluster);

// Whether the layer is an embedding whose table of tokens is a unit while the rest of it stays in
// the root (LayerSpec::nested, or Units::table_alone).
bool splits_table(const Units& units, const LayerSpec& layer);

// Whether layers of this role are left to the unit of the whole model.
bool in_root(const Units& units, LayerRole role);

// Whether one of the head and the table that it is tied to is in the root and the other is a unit: fully_shard
// gives each a parameter of its own (until PyTorch 2.12).
bool parts_tied(const Units& units);

// torchtitan's frame under a PyTorch that 0.3 needs. Its collectives are c10d's, not functional ones, so that
// per-operation checkpointing does not keep what they make.
bool is_titan_3(const Plan& plan);

// Whether the loss gathers the weight of a head by itself, which no module's call does: TRL's reads
// lm_head.weight.full_tensor() (trl 1.16, trainer/utils.py), which PEFT's wrapper leaves in a unit
// of its own. Of a head that is not trained.
bool gathers_own_head(const Plan& plan);

// Whether batch.labelled shortens all from the head on, not a loss in tiles alone: what a trainer
// of PyTorch does that takes hidden_states[mask].
bool takes_labelled_rows(const Plan& plan);

// Whether adapters are in fp32 beside a base in 16 bits, as
// PEFT makes them.
bool has_wide_adapters(const Plan& plan);

// Whether the layer, block number `block` if it is one, is not trained.
bool is_frozen(const Frozen& frozen, const LayerSpec& layer, std::int64_t block);

// Whether the modules inside the block are units.
bool splits_block(const Units& units, std::int64_t block);

// Whether parameters are left to the unit of the whole model, which is unit 0 then.
bool has_root_unit(const Plan& plan, const ModelSpec& model);

// How many units the plan has, numbered in forward order: the root unit first if parameters are left to it, then the
// embedding if it is its own unit, the blocks, and the head if it is its own unit.
std::int64_t unit_count(const Plan& plan, const ModelSpec& model);

// Whether the operation is a linear layer, which adapters can stand beside (not one weight of each
// expert in one tensor, which is no module).
bool takes_adapter(const LayerSpec& layer, const Operation& operation);
// Whether a target names the module: "q_proj" names "self_attn.q_proj" (PEFT's suffix match).
bool is_module(std::string_view module, std::string_view target);

// The dimension that fully_shard cuts a parameter along among `shards` ranks: `wanted` for matrices, 0 for vectors.
// Units::kExpertsDim: 1 for stacks of fewer matrices than shards, where that divides, else 0.
std::int64_t shard_dim_of(const ParameterSpec& parameter, std::int64_t wanted, std::int64_t shards);
// The same of a parameter that the mesh's axes did not cut yet: experts are spread over ep first.
std::int64_t shard_dim_of(const ParameterSpec& parameter, std::int64_t wanted, const Mesh& mesh);

// Sequences per step over all ranks. Throws Error(kInvalidInput) on overflow.
std::int64_t global_batch(const Plan& plan);

// `recompute: every-K`: blocks 0, K, 2K ... of `blocks` recompute fully. K >= 1.
RangedPolicy<Recompute> recompute_every(std::int64_t k, std::int64_t blocks);
// The K of a policy made by recompute_every (for one K of those that give this very policy).
std::optional<std::int64_t> every_k(const RangedPolicy<Recompute>& policy);

// The divisors of n >= 1 nearest to x: the largest not above it and the smallest not below it (one
// where they are the same or x lies outside 1..n). Ascending.
std::vector<std::int64_t> nearest_divisors(std::int64_t n, std::int64_t x);

// What a GPU cannot run of a plan, whatever the runtime; for the checks of plans and the readers of cluster files only.

// float8 without fp8 units or over an fp32 computation, and attention kernels that were not built
// for the GPU's architecture. A GPU whose architecture nobody said is taken to run every kernel.
std::optional<PlanProblem> problem_of_hardware(const Plan& plan, const Cluster& cluster);

}
