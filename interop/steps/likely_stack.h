// The training code of a row that does not name it.
#pragma once

#include <string>

#include "interop/steps/training_rows.h"

namespace foreshard {

// The row's `stack` where it is published (or "generic"). Else the code that the architecture is
// of, at the row's date or else PyTorch's version: MPT is llm-foundry's model (mosaicml/examples
// before May 2023) and trained by FSDP1, InternLM is InternEvo's and trained by ZeRO-1. "": not
// known.
std::string likely_stack(const TrainingRow& row);

}  // namespace foreshard
