// Hugging Face Accelerate's YAML (`accelerate config`): FSDP1, FSDP2, DDP and DeepSpeed.
//
// Keys and defaults are Accelerate's (src/accelerate/commands/config/config_args.py,
// utils/launch.py and FullyShardedDataParallelPlugin in utils/dataclasses.py, 1.14). Its parser
// refuses a file with any other key at the top, so a file says of a plan what these keys can say
// and no more: neither model nor batch.
#pragma once

#include <string>

#include "interop/frameworks/foreign_plan.h"

namespace foreshard {

bool looks_like_accelerate(const ConfigNode& root);
// Throws ConfigError.
ForeignPlan read_accelerate(const ConfigNode& root);

// For runtimes fsdp2, fsdp1, ddp and zero1 to zero3. Throws Error(kMissingCapability) for native.
Exported export_accelerate(const ExportJob& job);

}  // namespace foreshard
