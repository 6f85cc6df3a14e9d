// DeepSpeed's JSON configuration: "zero_optimization" and what stands beside it. Names and defaults
// are DeepSpeed's (deepspeed/runtime/zero/config.py and runtime/config.py, 0.19).
//
// "auto" (Hugging Face's Trainer fills it in) counts as absent and is listed.
#pragma once

#include <string>

#include "interop/frameworks/foreign_plan.h"

namespace foreshard {

// Throws ConfigError.
ForeignPlan read_deepspeed(const ConfigNode& root);

// Precondition: runtime zero1, zero2 or zero3 (translate() makes one of the others).
Exported export_deepspeed(const ExportJob& job);

}  // namespace foreshard
