// A model that no config.json describes, from what its modules computed (modules.json, which
// foreshard-null --modules writes): a model.yaml.
//
// Blocks are the members of the largest list of equal modules; alike blocks are one kind of layer,
// repeated. What a tensor's size grows with (tokens, sequences, positions) follows from captures of
// several sizes; of one capture the first that fits is taken.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sim/base/json.h"

namespace foreshard {

struct CapturedModules {
  std::string path;  // of modules.json, for messages
  Json document;
  std::int64_t batch = 1, sequence = 1;
};

// `captures`: the same program at different sizes, at least one. Throws Error(kMissingCapability)
// for an operation that no layer has, naming its module, and Error(kInvalidInput) where the
// captures are not of one program.
std::string model_of_modules(const std::vector<CapturedModules>& captures, const std::string& name);

}  // namespace foreshard
