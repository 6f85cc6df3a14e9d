// Configurations drawn at random over all families, against the parameters that transformers makes
// of them (hf_counts.py, which wrote hf_counts.json).
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "interop/hf/hf_config.h"
#include "sim/base/error.h"
#include "sim/base/lookup.h"

namespace foreshard {
namespace {

using nlohmann::json;

json read_cases() {
  std::ifstream file(std::filesystem::path(FORESHARD_SOURCE_DIR) / "tests/interop/hf_counts.json");
  return json::parse(file).at("cases");
}

HfConfig read(const json& config) { return parse_hf_config(parse_json(config.dump(), "config.json"), "test"); }

using Shapes = std::map<std::string, std::vector<std::int64_t>>;

// Experts are one tensor per matrix here, in other orders than there, and Mixtral's modules are
// named as transformers 4 names them: the sum holds them.
bool is_of_experts(const std::string& name) {
  return contains(name, ".experts.") || name.ends_with(".mlp.gate.weight") || contains(name, "block_sparse_moe.");
}

Shapes shapes_of(const ModelSpec& model) {
  Shapes shapes;
  std::size_t block = 0;
  for (const LayerInstance& layer : model.order) {
    const LayerSpec& kind = model.kinds[at(layer.kind)];
    const bool is_block = kind.role == LayerRole::kBlock;
    const std::string prefix = is_block ? model.block_prefix + "." + std::to_string(block++) + "." : "";
    for (const ParameterSpec& p : kind.parameters) {
      if (!p.tied && !is_of_experts("." + p.name)) shapes[prefix + p.name] = p.shape;
    }
  }
  return shapes;
}

TEST(HfCountsTest, ParametersAreTransformersOwn) {
  std::set<std::string> families;
  for (const json& each : read_cases()) {
    const json& config = each.at("config");
    families.insert(each.at("model_type"));
    try {
      const ModelSpec model = build_hf_model(read(config));
      EXPECT_EQ(model.parameters(), each.at("parameters").get<std::int64_t>()) << config;
    } catch (const Error& error) {
      ADD_FAILURE() << error.what() << "\n" << config;
    }
  }
  EXPECT_GE(families.size(), 60U);
}

TEST(HfCountsTest, NamesAndShapesAreTransformersOwn) {
  std::size_t compared = 0;
  for (const json& each : read_cases()) {
    if (!each.contains("shapes")) continue;
    Shapes expected;
    for (const auto& [name, shape] : each.at("shapes").items()) {
      if (!is_of_experts(name)) expected[name] = shape.get<std::vector<std::int64_t>>();
    }
    EXPECT_EQ(shapes_of(build_hf_model(read(each.at("config")))), expected) << each.at("model_type");
    compared += expected.size();
  }
  EXPECT_GE(compared, 1000U);
}

}
}
