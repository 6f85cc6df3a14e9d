// The YAML and JSON form of a Plan: what a user wrote, the defaults that complete it, and the way back.
//
// Three layers write a plan, later ones over earlier ones: the file, the flags (--sequence 4096)
// and the assignments (--set mesh.shard=8). Keys are dotted paths, the same in all three:
//
//     PlanDocument document = read_plan_file(path);               // or PlanDocument{}
//     document = apply_flag(document, "--sequence", "batch.sequence", "4096");
//     document = apply_set(document, "mesh.shard=8");
//     const ModelSpec model = ...(model_of(document));
//     const ResolvedPlan resolved = resolve(document, model, cluster);
//     check(resolved, model, cluster);
//
// Every wrong key or value is a ConfigError with its place: the file's line and column, or `--set` or the flag with the
// column in its text. What is right but not modelled is Error(kMissingCapability).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/config.h"
#include "sim/base/error.h"
#include "sim/base/json.h"
#include "sim/spec/cluster.h"
#include "sim/spec/model_spec.h"
#include "sim/spec/plan.h"

namespace foreshard {

// kPreset: filled in by resolve() from a preset (preset.h); whatever anybody wrote is over it.
enum class PlanLayer : std::uint8_t { kPreset, kFile, kFlag, kSet };

struct GivenKey {
  PlanLayer layer = PlanLayer::kFile;
  Location location;
};

using GivenKeys = std::map<std::string, GivenKey, std::less<>>;  // by dotted path

// A partly filled plan. A field of `plan` counts only where its key is in `given`.
struct PlanDocument {
  Plan plan;                                    // runtime.version "": the newest
  std::optional<std::int64_t> global_batch;     // batch.global
  std::optional<std::int64_t> recompute_every;  // K of `recompute: every-K`
  bool reduce_dtype_is_none = false;            // dtype.reduce: none, PyTorch's default
  // Presets that fill what nobody wrote (sim/spec/preset.h); "": none.
  std::string trainer, stack;
  std::string trainer_version;  // "": the newest
  GivenKeys given;
  std::string file;  // "" where there is none

  bool has(std::string_view key) const { return given.find(key) != given.end(); }
};

PlanDocument read_plan(const ConfigNode& root);
PlanDocument read_plan_file(const std::filesystem::path& path);

// The value of `--set`, "mesh.shard=8": any key of a plan, also one that holds others
// ("mesh={shard: 8, replicate: 8}"); the value is YAML on one line.
PlanDocument apply_set(PlanDocument document, std::string_view assignment);

// The text of a flag that stands for one key: flag "--sequence", key "batch.sequence". The texts of
// model and cluster are taken as they are.
PlanDocument apply_flag(PlanDocument document, std::string_view flag, std::string_view key, std::string_view text);

// What was written for model and cluster. Throws ConfigError where there is a file without the key,
// Error(kUsage) where there is no file either.
const std::string& model_of(const PlanDocument& document);
const std::string& cluster_of(const PlanDocument& document);

struct AssumedValue {
  std::string key;
  std::string value;  // as YAML
  std::string why;    // "default", or what it follows from
};

struct ResolvedPlan {
  Plan plan;
  std::vector<AssumedValue> assumed;  // every key that nobody wrote, in the order of to_yaml
  GivenKeys given;
};

// Completes what was written: the newest version of the runtime, micro-batch 1, accumulation 1 (or what batch.global
// makes it), sequence = min(the model's positions, 8192), the mesh from the number of GPUs, the stack's keys, the
// trainer's habits, units of tied embeddings in the root, and for the rest the defaults of Plan. `dtype.reduce: none`
// becomes what the version makes of it. Throws ConfigError where batch.global or one side of the mesh does not divide,
// and Error(kMissingCapability) for a trainer that does not train with the runtime.
ResolvedPlan resolve(const PlanDocument& written, const ModelSpec& model, const Cluster& cluster);

// check() of plan.h, whose error says where the wrong key stands.
void check(const ResolvedPlan& resolved, const ModelSpec& model, const Cluster& cluster);

// All keys in a fixed order. Read back and resolved for the same model and cluster, they give an
// equal Plan, provided that check() accepts it.
std::string to_yaml(const Plan& plan);
Json to_json(const Plan& plan);

// Every key that a plan file may have, as dotted paths, in the order of to_yaml.
std::vector<std::string> plan_keys();

}
