// Settings of other training codes, read into plans and written from them, a code after the other.
#pragma once

#include <cstdint>
#include <string>

#include "interop/export/export_ledger.h"
#include "interop/frameworks/foreign_plan.h"
#include "sim/spec/cluster.h"
#include "sim/spec/plan.h"

namespace foreshard {

// Hugging Face Accelerate's YAML (`accelerate config`): FSDP1, FSDP2, DDP and DeepSpeed.
//
// Keys and defaults are Accelerate's (src/accelerate/commands/config/config_args.py, utils/launch.py and
// FullyShardedDataParallelPlugin in utils/dataclasses.py, 1.14). Its parser refuses a file with any other key at the
// top, so a file says of a plan what these keys can say and no more: neither model nor batch.

bool looks_like_accelerate(const ConfigNode& root);
// Throws ConfigError.
ForeignPlan read_accelerate(const ConfigNode& root);

// For runtimes fsdp2, fsdp1, ddp and zero1 to zero3. Throws Error(kMissingCapability) for native.
Exported export_accelerate(const ExportJob& job);

// DeepSpeed's JSON configuration: "zero_optimization" and what stands beside it. Names and defaults
// are DeepSpeed's (deepspeed/runtime/zero/config.py and runtime/config.py, 0.19).
//
// "auto" (Hugging Face's Trainer fills it in) counts as absent and is listed.

// Throws ConfigError.
ForeignPlan read_deepspeed(const ConfigNode& root);

// Sizes that are "auto" of a model whose blocks are so wide, as transformers fills them in.
void fill_buckets(std::int64_t hidden, ForeignPlan& plan);

// Precondition: runtime zero1, zero2 or zero3 (translate() makes one of the others).
Exported export_deepspeed(const ExportJob& job);

// Settings of Megatron-Core's training codes as YAML or JSON: Megatron-Bridge's ConfigContainer
// (model, train, ddp, comm_overlap, optimizer; megatron-bridge 0.2 training/config.py) and NeMo's
// (model, trainer; examples/nlp/language_modeling/conf/megatron_gpt_config.yaml of 1.23; data,
// optim, trainer.strategy of 2.0's recipes).

// Whether it names Megatron-Core's degrees of parallelism.
bool looks_like_megatron(const ConfigNode& root);

// A plan of runtime megatron. Throws ConfigError.
ForeignPlan read_megatron(const ConfigNode& root);

// Settings of transformers' Trainer (TrainingArguments) as YAML or JSON: TRL's --config,
// LLaMA-Factory's and Axolotl's files (sources: settings.yaml).

bool looks_like_trainer(const ConfigNode& root);

// The arguments that a shell script gives a trainer (swift, trl, llamafactory-cli, or a .py) as
// such a file, on the lines where they stand. What the shell computes is "auto".
ConfigNode read_trainer_script(std::string_view text, const std::string& file);

// Adapters' targets as the linear layers of the model that they are; nullptr: it is not known.
void fill_targets(const ModelSpec* model, ForeignPlan& plan);

// The file with DeepSpeed's settings that it names; "": none.
std::string deepspeed_file_of(const ConfigNode& root);

// `sharding`: what DeepSpeed's or Accelerate's file beside it says, nullptr: there is none, so that
// the settings' own deepspeed, fsdp and fsdp_config stand. `stage`: what is trained, where the
// settings do not say; "": sft. `gpus`: of the cluster, 0: nobody says. Throws ConfigError.
ForeignPlan read_trainer(
    const ConfigNode& root, const ForeignPlan* sharding, const std::string& stage = "", std::int64_t gpus = 0);

// Files of torchtune's recipes and LitGPT's commands (sources: settings.yaml).

// "torchtune", "litgpt"; "": neither.
std::string recipe_format(const ConfigNode& root);
// `gpus` of the cluster that it is imported for, 0: as the file says. Throws ConfigError.
ForeignPlan read_recipe(const ConfigNode& root, std::int64_t gpus);

// TorchTitan's job configuration: TOML (until 2026), and the JSON that debug.save_config_file or
// --job.save_config_file writes, whose keys are the same but for a few that were renamed.
//
// Sources: torchtitan, torchtitan/config/job_config.py at 01e1814a (TOML: training.local_batch_size, training.seq_len,
// parallelism.*, activation_checkpoint.*, compile.*), torchtitan/config/ and trainer.py at b5bcd76c (JSON:
// training.num_tokens_per_microbatch_per_dp_rank, training.max_context_length, training.num_tokens_per_train_step).

bool looks_like_torchtitan(const ConfigNode& root);
// Throws ConfigError.
ForeignPlan read_torchtitan(const ConfigNode& root);

// The TOML form. Precondition: runtime fsdp2 (translate() makes one of the others).
Exported export_torchtitan(const ExportJob& job);

// A Python module for torchtitan's configuration registry, which took the TOML's place in February 2026
// (pytorch/torchtitan#2386); keys of August 2026, with the settings as JSON. Precondition as above.
Exported export_torchtitan_registry(const ExportJob& job);

// How a plan's ranks are started: the line to type, and the file to hand to a scheduler.
enum class Launcher : std::uint8_t { kTorchrun, kSlurm, kOpenMpi };

struct LaunchLine {
  std::int64_t nodes = 1, ranks_per_node = 1;
  std::string line;  // of a shell on the first node (Slurm: of the login node)
};

// `program`: a Python script ("train.py"), or "" for the default: train.py, and foreshard-exec with plan.yaml for
// runtime native. Ranks fill the cluster's nodes; a world that they do not divide into has the last node half filled,
// which only Slurm and Open MPI can start: then Error(kMissingCapability) for torchrun.
LaunchLine launch_of(const Plan& plan, const Cluster& cluster, Launcher launcher, const std::string& program);

// torchrun: a shell script to run on every node; slurm: for sbatch; openmpi: a shell script.
Exported launch_file(const Plan& plan, const Cluster& cluster, Launcher launcher, const std::string& program);

}
