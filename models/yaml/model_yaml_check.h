// What a model as YAML must be as a whole, with the places of its parts for errors.
#pragma once

#include <vector>

#include "sim/base/config.h"
#include "sim/spec/model_spec.h"

namespace foreshard {

struct ModelPlaces {
  ConfigNode root, order;
  std::vector<ConfigNode> kinds;   // of ModelSpec::kinds
  std::vector<ConfigNode> layers;  // of ModelSpec::order
};

// Throws ConfigError: see models/yaml/model_yaml.h.
void check_model(const ModelSpec& model, const ModelPlaces& places);

// Errors of `run` that name no place get that of `node`.
template <typename Run>
void located(const ConfigNode& node, Run run) {
  try {
    run();
  } catch (const ConfigError&) {
    throw;
  } catch (const Error& error) {
    throw node.error(error.what());
  }
}

}  // namespace foreshard
