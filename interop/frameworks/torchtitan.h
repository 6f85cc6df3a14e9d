// TorchTitan's job configuration: TOML (until 2026), and the JSON that debug.save_config_file or
// --job.save_config_file writes, whose keys are the same but for a few that were renamed.
//
// Sources: torchtitan, torchtitan/config/job_config.py at 01e1814a (TOML:
// training.local_batch_size, training.seq_len, parallelism.*, activation_checkpoint.*, compile.*),
// torchtitan/config/ and trainer.py at b5bcd76c (JSON:
// training.num_tokens_per_microbatch_per_dp_rank, training.max_context_length,
// training.num_tokens_per_train_step).
#pragma once

#include <string>

#include "interop/frameworks/foreign_plan.h"

namespace foreshard {

bool looks_like_torchtitan(const ConfigNode& root);
// Throws ConfigError.
ForeignPlan read_torchtitan(const ConfigNode& root);

// The TOML form. Precondition: runtime fsdp2 (translate() makes one of the others).
Exported export_torchtitan(const ExportJob& job);

}  // namespace foreshard
