// A small model and clusters to hold plans against, and what a refused plan says.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "sim/base/config.h"
#include "sim/spec/cluster.h"
#include "sim/spec/model_spec.h"
#include "sim/spec/plan_config.h"

namespace foreshard {

struct SmallModel {
  std::int64_t blocks = 32;
  std::int64_t positions = 131072;
  bool is_tied = false;
  bool has_learned_positions = false;
};

inline ModelSpec small_model(const SmallModel& shape = {}) {
  const auto layer = [](const char* name, LayerRole role) {
    LayerSpec spec = {.name = name, .role = role};
    if (role != LayerRole::kLoss) spec.parameters.push_back({"weight", {1000, 64}});
    return spec;
  };
  ModelSpec model = {.name = "small",
      .kinds = {layer("embedding", LayerRole::kEmbedding), layer("block", LayerRole::kBlock),
          layer("norm", LayerRole::kFinalNorm), layer("head", LayerRole::kHead), layer("loss", LayerRole::kLoss)}};
  if (shape.has_learned_positions) model.kinds[0].parameters.push_back({"positions", {shape.positions, 64}});
  model.kinds[3].parameters[0].tied = shape.is_tied;
  model.order.push_back({0, "embedding"});
  for (std::int64_t i = 0; i < shape.blocks; ++i) model.order.push_back({1, "layers." + std::to_string(i)});
  for (std::int32_t kind = 2; kind < 5; ++kind) model.order.push_back({kind, model.kinds[at(kind)].name});
  model.max_positions = shape.positions;
  model.tied_embeddings = shape.is_tied;
  return model;
}

inline Cluster cluster_of_gpus(std::int64_t gpus) {
  Cluster cluster = {.gpus = gpus};
  cluster.node.gpus = 8;
  return cluster;
}

inline PlanDocument document_of(std::string_view yaml) { return read_plan(parse_yaml(yaml, "plan.yaml")); }

struct Refusal {
  int exit_code = 0;  // 0: nothing was thrown
  std::string text;
};

Refusal refusal_of(auto act) {
  try {
    act();
  } catch (const Error& error) {
    return {static_cast<int>(error.exit_code()), error.what()};
  }
  return {};
}

}
