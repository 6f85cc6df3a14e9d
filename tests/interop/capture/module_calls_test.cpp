// Programs that call their layers several times in a step.
#include "interop/capture/module_calls.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "calibration/machines.h"
#include "interop/capture/capture_import.h"
#include "models/yaml/model_yaml.h"
#include "sim/base/error.h"
#include "sim/spec/checks/plan_check.h"

namespace foreshard {
namespace {

constexpr std::int64_t kFeatures = 8;

// A layer, two blocks and a projection, called once for each of `views`; or again for what the
// call before made.
Json called_document(std::int64_t samples, int views, bool recurs = false) {
  Json operations = Json::array(), given = Json::object();
  int next = 100;
  const auto add = [&](const char* op, Json module, Json in, std::int64_t count, bool is_product) {
    Json made = {{"op", op},
                 {"module", module},
                 {"in", in},
                 {"node", next},
                 {"saved", Json::array()},
                 {"backward", {{{"elements", count}, {"dtype", "torch.float32"}}}},
                 {"out", {{{"tensor", next}, {"elements", count}, {"dtype", "torch.float32"}}}}};
    if (in[0].is_number()) made["saved"].push_back(in[0]);
    if (is_product) made["n"] = made["k"] = kFeatures;
    operations.push_back(made);
    return next++;
  };
  const std::int64_t count = samples * kFeatures;
  Json results = Json::array();
  for (int view = 0; view < views; ++view) {
    given[std::to_string(view)] = {{"elements", count}, {"dtype", "torch.float32"}};
    int x =
        add("mm", "stem", {recurs && view > 0 ? results.back().get<int>() : view, "stem.weight"},
            count, true);
    for (const char* block : {"blocks.0", "blocks.1"}) {
      x = add("mm", block, {x, std::string(block) + ".weight"}, count, true);
      x = add("relu", block, {x}, count, false);
    }
    results.push_back(add("mm", "head", {x, "head.weight"}, count, true));
  }
  add("sum", nullptr, results, 1, false);
  Json parameters;
  for (const char* name : {"stem.weight", "blocks.0.weight", "blocks.1.weight", "head.weight"})
    parameters[name] = {{"shape", {kFeatures, kFeatures}}};
  return {
      {"class", "Net"},           {"block_list", "blocks"}, {"blocks", {"blocks.0", "blocks.1"}},
      {"parameters", parameters}, {"given", given},         {"operations", operations}};
}

std::string layers_of(std::int64_t samples, Json of) {
  return model_of_modules({{.path = "modules.json", .document = std::move(of), .batch = samples}},
                          "net");
}

TEST(ModuleCalls, TwoViewsAreOneCallForAllSamples) {
  Json folded = called_document(3, 2);
  EXPECT_EQ(fold_calls(folded), 2);
  folded["calls"] = 2;
  const ModelSpec model = parse_model_yaml(parse_yaml(layers_of(3, folded), "net.yaml"));
  // As if each sample were two.
  const ModelSpec once =
      parse_model_yaml(parse_yaml(layers_of(3, called_document(6, 1)), "once.yaml"));
  EXPECT_EQ(model.parameters(), 4 * kFeatures * kFeatures);
  ASSERT_EQ(model.order.size(), once.order.size());
  for (std::size_t l = 0; l + 1 < model.order.size(); ++l) {
    EXPECT_EQ(model.kinds[at(model.order[l].kind)].tensors,
              once.kinds[at(once.order[l].kind)].tensors);
  }
  // Under sharded parameters each call would gather: refused, and only that.
  EXPECT_EQ(model.calls, 2);
  Plan plan;
  plan.mesh.shard = 8;
  plan.batch.sequence = model.fixed_sequence;
  const Cluster cluster = load_cluster("8xh100");
  const auto problem = find_problem(plan, model, cluster);
  ASSERT_TRUE(problem.has_value());
  EXPECT_NE(problem->what_is_wrong.find("calls its layers 2 times"), std::string::npos);
  EXPECT_FALSE(find_problem(plan, once, cluster).has_value());
  Json three = called_document(3, 3);
  EXPECT_EQ(fold_calls(three), 3);
}

TEST(ModuleCalls, AProgramThatCallsOnceOrReadsItsOwnResultStays) {
  for (Json stays : {called_document(3, 1), called_document(3, 2, true)}) {
    const Json before = stays;
    EXPECT_EQ(fold_calls(stays), 1);
    EXPECT_EQ(stays, before);
  }
  EXPECT_THROW(layers_of(3, called_document(3, 2, true)), Error);
}

const LayerSpec& layer_named(const ModelSpec& model, const std::string& name) {
  for (const LayerInstance& layer : model.order) {
    if (layer.name == name) return model.kinds[at(layer.kind)];
  }
  throw Error(ExitCode::kInternal, "no layer " + name);
}

void take_gradient(Json& operation) {
  for (const char* key : {"node", "saved", "backward"}) operation.erase(key);
}

TEST(ModuleCalls, ATowerUnderNoGradIsFrozenLayers) {
  Json tower = called_document(3, 1);
  for (Json& operation : tower["operations"]) {
    const Json& module = operation["module"];
    if (module == "stem" || module == "blocks.0") take_gradient(operation);
  }
  for (const char* name : {"stem.weight", "blocks.0.weight"})
    tower["parameters"][name]["trainable"] = false;
  const ModelSpec model = parse_model_yaml(parse_yaml(layers_of(3, tower), "net.yaml"));
  EXPECT_FALSE(layer_named(model, "blocks.0").has_trainable());
  EXPECT_TRUE(layer_named(model, "blocks.1").has_trainable());
}

// A code book is first compared with what arrives, then looked up; only that is differentiated. A
// mask is written into zeros.
TEST(ModuleCalls, AParameterIsOfTheOperationThatHasItsGradient) {
  constexpr std::int64_t kSamples = 1024;
  Json book = called_document(kSamples, 1);
  Json made = Json::array();
  for (const Json& operation : book["operations"]) {
    if (operation["module"] == "blocks.1" && operation["op"] == "mm") {
      Json compared = operation, zeros = operation, masked = operation;
      take_gradient(compared);
      compared["out"][0]["tensor"] = 1000;
      take_gradient(zeros);
      zeros.update({{"op", "zeros"}, {"in", Json::array()}});
      zeros["out"][0]["tensor"] = 1001;
      masked.update({{"op", "mul"}, {"in", {operation["in"][0], 1001}}, {"saved", {1001}}});
      masked["out"][0]["tensor"] = 1002;
      made.insert(made.end(), {compared, zeros, masked});
    }
    made.push_back(operation);
  }
  book["operations"] = made;
  const ModelSpec model = parse_model_yaml(parse_yaml(layers_of(kSamples, book), "net.yaml"));
  const LayerSpec& block = layer_named(model, "blocks.1");
  std::vector<std::string> with_weight;
  std::int64_t kept = 0;
  for (const Operation& op : block.operations) {
    if (!op.parameters.empty()) with_weight.push_back(op.name);
    if (op.function != Function::kMultiply) continue;
    for (const auto t : op.saved) kept += elements(block.tensors[at(t)], kSamples, 1);
  }
  ASSERT_EQ(with_weight.size(), 1);
  EXPECT_TRUE(with_weight[0].starts_with("linear")) << with_weight[0];
  EXPECT_EQ(kept, kSamples * kFeatures);
}

}  // namespace
}  // namespace foreshard
