// Recordings of transformers' models under Accelerate (or torchtitan's fully_shard calls) and
// FSDP2, one JSON file a case: `case` says what ran, `result` what PyTorch's calls and allocator
// said. The model is `config` of the file, an object, or the folder of that name beside it.
//
// Of other training codes `case` has `set`: the keys of a plan that somebody would type
// (tests/presets/preset_cases.py).
//
// A case is forecast as the plan that its trainer, in its version, makes of those words. Compared
// are the collectives of the last step (kind, dtype, group size; bytes) and the peak of the bytes
// that tensors asked for, without the workspaces of cuBLAS that are kept (library_buffers).
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "reports/conform/conform.h"

namespace foreshard {

// The folder, or those below it, with such files; empty where there are none.
std::vector<std::filesystem::path> find_hf_cases(const std::filesystem::path& path);

// `only`: names of files without ".json"; empty: all. A word that no plan expresses is a row that
// is not forecast. Throws ConfigError for what cannot be read.
ConformanceFolder conform_hf_cases(const std::filesystem::path& folder, const std::vector<std::string>& only);

}
