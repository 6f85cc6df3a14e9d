// What the text of --model, of a plan's `model` and of `foreshard models` names.
//
// In this order: a path (it has a slash and is there, or ends in .json, .yaml or .yml, or begins with ./, ../, / or
// ~/), which is a file or a folder with a config.json; a name of the zoo, as models/names.h reads it; an id in the
// machine's cache of the Hugging Face hub; a file or folder of that name in the working directory. So a name of the zoo
// wins over a file that is called alike. Behind it may stand a head in place of that of words: +scores (of a sequence;
// +scores3: three), as transformers' AutoModelForSequenceClassification makes it, or +values (ScoreOf::kValue).
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "interop/hf/hf_config.h"
#include "sim/spec/model_spec.h"

namespace foreshard {

struct ModelName {
  std::string zoo = {};             // "llama-3.1-8b"; "": a file
  std::filesystem::path file = {};  // config.json or a model as YAML
  std::string title = {};           // what a file's model is called, where not after the file; else ""
  bool is_cached = false;           // the file is the hub cache's
  std::int64_t scores = 0;          // ModelDims::scores, where the head is another
  ScoreOf score_of = ScoreOf::kSequence;
  std::vector<std::string> notes = {};  // what an answer says about the name
};

// `seen` is the text as a path from where it was written. Throws Error(kInvalidInput) with the
// models that begin alike where nothing is named so, or a folder holds no config.json.
ModelName find_model(const std::string& text, const std::filesystem::path& seen);

// Of a file the configuration that was read is kept, but for a model as YAML.
struct LoadedModel {
  ModelSpec model;
  std::optional<HfConfig> config;
  std::vector<std::string> notes;  // the name's and the file's
};
// Error(kMissingCapability) for a model as YAML on the engine's stack.
LoadedModel load_model(const ModelName& name, Stack stack = Stack::kEager);

bool is_model_yaml(const std::filesystem::path& path);

// Folders of the hub's cache that are looked into: $HF_HUB_CACHE, else $HF_HOME/hub, else
// $XDG_CACHE_HOME/huggingface/hub, else ~/.cache/huggingface/hub.
std::vector<std::filesystem::path> hub_cache_folders();

}
