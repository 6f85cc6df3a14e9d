// Reads a Hugging Face config.json, as transformers 4 and 5 write it, of the families of interop/hf/hf_families.h; and
// of models that read images, vit, clip and llava (interop/hf/hf_readers.h).
//
// Sizes must be there; what Hugging Face derives or defaults (key/value heads, head dimension, context, biases, tied
// embeddings, sliding window) is taken from its own configuration classes when the key is absent. Aliases are accepted
// (hidden_size, n_embd, d_model, ...); two that disagree are an error. A nested `text_config` is read in place of the
// root. The format is foreign, so unknown keys are no error: every key appears in the ledger.
//
// Every failure is a ConfigError (exit code 3): not JSON, not an object, an unsupported model_type
// or architecture, a size out of range, hidden size not divisible by heads, key/value heads that do
// not divide heads, sizes whose product overflows, and what would change the computation but is not
// modelled (more experts per token than experts, other activations, cross attention).
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "interop/hf/hf_keys.h"
#include "models/model_dims.h"
#include "models/vision.h"
#include "sim/base/config.h"
#include "sim/spec/model_spec.h"

namespace foreshard {

struct HfConfig {
  ModelDims dims;                    // of a decoder, alone or read without what stands beside it
  std::optional<VisionDims> vision;  // in place of dims: a model that reads images
  std::vector<HfKey> ledger;         // mapped and defaulted in reading order, then ignored in file order
  std::vector<std::string> notes;    // what an answer about this model says beside it
};

// Every model_type of a decoder or encoder that is read.
std::vector<std::string_view> hf_model_types();

// The model is named after the file, or after its folder where the file is called config.json.
HfConfig read_hf_config(const std::filesystem::path& path);
// `name` is the model's name.
HfConfig parse_hf_config(const ConfigNode& root, std::string_view name);

// Of a file that is read; a size that cannot be is an error of the file.
ModelSpec build_hf_model(const HfConfig& config, Stack stack = Stack::kEager);

// Configurations in the cache of the Hugging Face hub on this machine
// (huggingface_hub: docs/source/en/guides/manage-cache.md): nothing is fetched.
//
//     FOLDER/models--ORG--NAME/refs/main                  the commit
//     FOLDER/models--ORG--NAME/snapshots/COMMIT/config.json

// The config.json of `id` ("org/name"; letter case is free) in `folder`: of the commit that
// refs/main names, else of the only snapshot there is. nullopt: it is not there, or `id` is no id.
std::optional<std::filesystem::path> cached_config(const std::filesystem::path& folder, std::string_view id);

}
