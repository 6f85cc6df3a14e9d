// Programs that call their blocks, or use their weights, several times in a step, and what else of a program its layers
// have to say: towers under no_grad, parameters that nothing reads, names that outlast their last reader.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "calibration/machines.h"
#include "interop/capture/capture_import.h"
#include "models/yaml/model_yaml.h"
#include "sim/base/error.h"
#include "sim/base/lookup.h"
#include "sim/graph/layers/layer_program.h"
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
    Json made = {{"op", op}, {"module", module}, {"in", in}, {"node", next}, {"saved", Json::array()},
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
    int x = add("mm", "stem", {recurs && view > 0 ? results.back().get<int>() : view, "stem.weight"}, count, true);
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
  return {{"class", "Net"}, {"block_list", "blocks"}, {"blocks", {"blocks.0", "blocks.1"}}, {"parameters", parameters},
      {"given", given}, {"operations", operations}};
}

std::string layers_of(std::int64_t samples, Json of) {
  return model_of_modules({{.path = "modules.json", .document = std::move(of), .batch = samples}}, "net");
}

ModelSpec model_of(std::int64_t samples, Json of) {
  return parse_model_yaml(parse_yaml(layers_of(samples, std::move(of)), "net.yaml"));
}

// A loss sums over ranks in place, which autograd does not see: the gradient passes by.
TEST(ModuleCalls, ASumOverRanksIsInTheChain) {
  Json of = called_document(3, 1);
  const Json result = of["operations"].back()["in"];
  const Json sum = {{"op", "allreduce_"}, {"module", nullptr}, {"in", result}, {"in_place", true},
      {"out", {{{"tensor", 500}, {"elements", 3 * kFeatures}, {"dtype", "torch.float32"}}}}};
  of["operations"].insert(of["operations"].end() - 1, sum);
  of["operations"].back()["in"] = {500};
  const std::string text = layers_of(3, of);
  EXPECT_NE(text.find(R"("all_reduce":true,"gradient":"alias")"), text.npos) << text;
  EXPECT_EQ(parse_model_yaml(parse_yaml(text, "net.yaml")).parameters(), 4 * kFeatures * kFeatures);
}

TEST(ModuleCalls, BlocksThatAreCalledAgainRunTheirWeightsAgain) {
  // For other samples, or for what the call before made.
  for (const bool recurs : {false, true}) {
    const ModelSpec model = model_of(3, called_document(3, 2, recurs));
    EXPECT_EQ(model.parameters(), 4 * kFeatures * kFeatures);
    std::vector<std::string> runs;
    for (const LayerInstance& layer : model.order) {
      if (model.kinds[at(layer.kind)].role != LayerRole::kBlock) continue;
      runs.push_back(layer.same_as < 0 ? layer.name : model.order[at(layer.same_as)].name);
    }
    EXPECT_EQ(runs, std::vector<std::string>({"blocks.0", "blocks.1", "blocks.0", "blocks.1"}));
    // The stem's weight, used again between the calls, gets another gradient.
    std::int64_t again = 0;
    for (const LayerSpec& kind : model.kinds) {
      for (const ParameterSpec& parameter : kind.parameters) again += parameter.tied ? 1 : 0;
    }
    EXPECT_EQ(again, 1);
    // Each call gathers under sharded parameters.
    Plan plan;
    plan.mesh.shard = 8;
    plan.batch.sequence = model.fixed_sequence;
    const Cluster cluster = load_cluster("8xh100");
    EXPECT_FALSE(find_problem(plan, model, cluster).has_value());
    plan.runtime = {.kind = RuntimeKind::kZero3, .version = "0.19"};
    EXPECT_TRUE(find_problem(plan, model, cluster).has_value());
  }
}

// A block of two products, called three times for what it made itself.
TEST(ModuleCalls, CallsBehindEachOtherAreTheSameOperationsAgain) {
  const auto document = [](const std::vector<std::string>& weights) {
    Json of = called_document(3, 1);
    Json blocks = Json::array();
    int from = 100;  // what the stem made
    for (const std::string& weight : weights) {
      Json product = of["operations"][1], relu = of["operations"][2];
      for (Json* each : {&product, &relu}) {
        (*each)["in"][0] = from;
        (*each)["saved"] = {from};
        from = 200 + static_cast<int>(blocks.size());
        (*each)["node"] = (*each)["out"][0]["tensor"] = from;
        (*each)["module"] = "blocks.0";
        if (each == &product) (*each)["in"][1] = weight;
        blocks.push_back(*each);
      }
      of["parameters"][weight] = of["parameters"]["stem.weight"];
    }
    Json& operations = of["operations"];
    operations.erase(operations.begin() + 1, operations.begin() + 5);
    operations.insert(operations.begin() + 1, blocks.begin(), blocks.end());
    operations[operations.size() - 2]["in"][0] = from;
    of["blocks"] = {"blocks.0"};
    of["parameters"].erase("blocks.1.weight");
    return of;
  };
  const auto calls = [&](const std::vector<std::string>& weights) {
    const ModelSpec model = model_of(3, document(weights));
    return std::ranges::count_if(
        model.order, [&](const LayerInstance& layer) { return model.kinds[at(layer.kind)].role == LayerRole::kBlock; });
  };
  const std::string one = "blocks.0.weight", other = "blocks.0.other";
  EXPECT_EQ(calls({one, other, one, other, one, other}), 3);
  EXPECT_EQ(calls({one, one}), 2);
  EXPECT_EQ(calls({one, other}), 1);  // alike operations of different weights are one call's
}

// What runs its weights again may compute something else, but reads no others.
TEST(ModuleCalls, ACallThatComputesSomethingElseHasAKindOfItsOwn) {
  Json document = called_document(3, 2);
  Json& operations = document["operations"];
  operations[10]["op"] = "gelu";
  const ModelSpec model = model_of(3, document);
  const LayerInstance& last = model.order[model.order.size() - 3];
  ASSERT_GE(last.same_as, 0);
  EXPECT_NE(last.kind, model.order[at(last.same_as)].kind);
  operations[10]["in"].push_back("blocks.1.bias");
  document["parameters"]["blocks.1.bias"] = {{"shape", {kFeatures}}};
  EXPECT_THROW(layers_of(3, document), Error);
}

const LayerSpec& layer_named(const ModelSpec& model, const std::string& name) {
  for (const LayerInstance& layer : model.order) {
    if (layer.name == name) return model.kinds[at(layer.kind)];
  }
  throw Error(ExitCode::kInternal, "no layer " + name);
}

TEST(ModuleCalls, NamesHoldOfTheStepBeforeUntilTheyAreBoundAgain) {
  Json document = called_document(3, 1);
  constexpr std::int64_t kEach = 3 * 4096;          // bytes
  document["held"] = {{0, 3 * kEach}, {2, kEach}};  // operations, bytes
  const ModelSpec model = model_of(3, document);
  const auto held = [&](const char* layer) {
    return std::ranges::count_if(layer_named(model, layer).tensors,
        [](const TensorSpec& tensor) { return tensor.name.starts_with("step before"); });
  };
  EXPECT_EQ(held("blocks.0"), 2);
  EXPECT_EQ(held("head"), 1);
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
  for (const char* name : {"stem.weight", "blocks.0.weight"}) tower["parameters"][name]["trainable"] = false;
  const ModelSpec model = model_of(3, tower);
  EXPECT_FALSE(layer_named(model, "blocks.0").has_trainable());
  EXPECT_TRUE(layer_named(model, "blocks.1").has_trainable());
}

// The second tower's stem reads nothing of the first one's last block, which keeps its unit; the
// loss reads a part of what either makes, which has a gradient whatever its size.
TEST(ModuleCalls, AnotherTowerLeavesTheBlockBeforeItAlone) {
  Json document = called_document(3, 2);
  Json& operations = document["operations"];
  for (std::size_t i = 6; i < 11; ++i) {
    Json& operation = operations[i];
    operation["out"][0]["elements"] = 2 * 3 * kFeatures;
    for (Json* name : {&operation["module"], &operation["in"].back()}) {
      if (!name->is_string()) continue;
      const std::string own = "other " + name->get<std::string>();
      if (name != &operation["module"]) document["parameters"][own] = {{"shape", {8, 8}}};
      *name = own;
    }
  }
  document["blocks"] = {"blocks.0", "blocks.1", "other blocks.0", "other blocks.1"};
  for (const std::size_t i : {11, 5}) {  // the heads
    Json& part = operations[i];
    part.update({{"op", "select"}, {"view", true}, {"module", "net"}, {"saved", Json::array()}});
    part["in"].erase(1);
    for (const char* key : {"n", "k"}) part.erase(key);
    part["out"][0]["elements"] = 3;
  }
  std::rotate(operations.begin() + 5, operations.begin() + 6, operations.begin() + 11);
  Json dead = operations[9];
  take_gradient(dead);
  dead.update({{"module", "head"}, {"in", {operations[9]["out"][0]["tensor"], "head.weight"}}});
  dead["out"][0]["tensor"] = 900;
  document["parameters"]["head.weight"]["gradient"] = false;
  operations.insert(operations.begin() + 10, dead);
  const ModelSpec model = model_of(3, document);
  std::vector<std::string> names;
  for (const LayerInstance& layer : model.order) names.push_back(layer.name);
  EXPECT_EQ(names, (std::vector<std::string>{"embedding", "blocks.0", "blocks.1", "inner3", "other blocks.0",
                       "other blocks.1", "head", "loss"}));
  const LayerSpec& head = layer_named(model, "head");
  EXPECT_FALSE(head.operations.back().view);
  const auto beside = [](const Operation& op) { return op.name.starts_with("beside"); };
  EXPECT_EQ(std::ranges::find_if(head.operations, beside)->gradient, GradientRule::kAlias);
}

// The batch of another model (a teacher) is there through the step, and grows with the samples.
TEST(ModuleCalls, TensorsOfOthersMayGrowWithTheSamples) {
  constexpr std::int64_t kEach = 1 << 16, kModel = 1 << 20;
  std::vector<CapturedModules> captures;
  for (const std::int64_t samples : {3, 5}) {
    captures.push_back({.path = "modules.json", .document = called_document(samples, 1), .batch = samples});
    captures.back().document["others"] = samples * kEach + kModel;
  }
  const ModelSpec model = parse_model_yaml(parse_yaml(model_of_modules(captures, "net"), "net"));
  const LayerSpec& first = model.kinds[at(model.order[0].kind)];
  EXPECT_EQ(first.resident_bytes, kModel);
  const Index others = first.operations[0].outputs[0];
  EXPECT_EQ(elements(first.tensors[at(others)], 7, 1), 7 * kEach);
  EXPECT_TRUE(contains(first.operations[1].saved, others));
}

// The last operation of a function keeps what an earlier one read, which is there until then.
TEST(ModuleCalls, WhatIsKeptIsThereUntilItIs) {
  Json document = called_document(1024, 1);
  Json& operations = document["operations"];
  operations[4]["saved"] = std::exchange(operations[3]["saved"], Json::array());
  EXPECT_EQ(layer_named(model_of(1024, document), "blocks.1").operations[1].released, Indices({0}));
  // What the function wrote in place is read behind it.
  Json sum = operations[4];
  sum.update({{"op", "add"}, {"in", {104, 102}}, {"saved", Json::array()}});
  sum["out"][0]["tensor"] = 1000;
  operations[5]["in"][0] = 1000;
  operations.insert(operations.begin() + 5, sum);
  EXPECT_TRUE(layer_named(model_of(1024, document), "blocks.1").operations[1].released.empty());
}

// Of a program whose allocator was seen: a target, and what blocks are given beside their input.
TEST(ModuleCalls, WhatTheBatchGivesIsThereThroughTheStep) {
  std::vector<CapturedModules> captures;
  for (const std::int64_t samples : {3, 5}) {
    Json document = called_document(samples, 1);
    document["operations"].back()["out"][0]["freed"] = 6;
    for (const auto& [number, reader] : {std::pair{"200", 3}, std::pair{"300", 6}}) {
      document["given"][number] = {{"elements", 1000 * samples}, {"dtype", "torch.float32"}};
      document["operations"][at(reader)]["in"].push_back(std::stoi(number));
    }
    captures.push_back({.path = "modules.json", .document = document, .batch = samples});
  }
  const ModelSpec model = parse_model_yaml(parse_yaml(model_of_modules(captures, "net"), "net"));
  const LayerSpec& first = model.kinds[at(model.order[0].kind)];
  std::int64_t held = 0;
  for (const Operation& op : first.operations) {
    if (op.inputs.empty()) held += elements(first.tensors[at(op.outputs[0])], 7, 1);
  }
  EXPECT_EQ(held, 2 * 7 * 1000);
}

// A code book is first compared with what arrives, then looked up; only that is differentiated. A
// mask is written into zeros, or comes of the host.
void expect_of_book(const Json& from) {
  constexpr std::int64_t kSamples = 1024;
  Json book = called_document(kSamples, 1);
  Json made = Json::array();
  for (const Json& operation : book["operations"]) {
    if (operation["module"] == "blocks.1" && operation["op"] == "mm") {
      Json compared = operation, zeros = operation, masked = operation;
      take_gradient(compared);
      compared["out"][0]["tensor"] = 1000;
      take_gradient(zeros);
      zeros.update({{"op", "zeros"}, {"in", from}});
      zeros["out"][0]["tensor"] = 1001;
      masked.update({{"op", "mul"}, {"in", {operation["in"][0], 1001}}, {"saved", {1001}}});
      masked["out"][0]["tensor"] = 1002;
      append(made, {compared, zeros, masked});
    }
    made.push_back(operation);
  }
  book["operations"] = made;
  const ModelSpec model = model_of(kSamples, book);
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
TEST(ModuleCalls, AParameterIsOfTheOperationThatHasItsGradient) {
  expect_of_book(Json::array());
  expect_of_book({-1});
}

// Attention's weights that a program draws are larger than what its loss is made of.
TEST(ModuleCalls, WhatOnlyMetricsLookAtIsNotHandedToTheLoss) {
  Json document = called_document(3, 1);
  Json &operations = document["operations"], drawn = operations[4], looked = operations[4];
  drawn["op"] = "_softmax";
  drawn["in"] = {operations[4]["out"][0]["tensor"]};
  drawn["out"][0].update({{"tensor", 900}, {"elements", 3 * 100 * kFeatures}});
  take_gradient(looked);
  looked.update({{"op", "mul"}, {"module", nullptr}, {"in", {900}}});
  looked["out"][0]["tensor"] = 901;
  operations.insert(operations.begin() + 5, drawn);
  operations.push_back(looked);
  const ModelSpec model = model_of(3, document);
  EXPECT_EQ(elements(model.kinds.back().tensors.front(), 3, 1), 3 * kFeatures);
}

TEST(ModuleCalls, AConvolutionsWeightMayBeComputed) {
  Json document = called_document(3, 1);
  Json &operations = document["operations"], normed = operations[5];
  normed.update({{"op", "_weight_norm_interface"}, {"in", {"head.weight"}}});
  normed["saved"] = Json::array();
  normed["out"][0].update({{"tensor", 900}, {"elements", kFeatures * kFeatures}});
  Json& head = operations[5];
  ASSERT_EQ(head["module"], "head");
  head.update({{"op", "convolution"}, {"positions", 3}, {"in", {head["in"][0], 900, "head.bias"}}});
  head.erase("n");
  head.erase("k");
  document["parameters"]["head.bias"] = {{"shape", {kFeatures}}};
  operations.insert(operations.begin() + 5, normed);
  EXPECT_EQ(model_of(3, document).parameters(), 4 * kFeatures * kFeatures + kFeatures);
}

// Of a determinant its logarithm leads to the loss, not its sign.
TEST(ModuleCalls, TheResultThatIsReadHasTheGradient) {
  Json document = called_document(3, 1);
  Json& out = document["operations"][2]["out"];
  out = {{{"tensor", 900}, {"elements", 1}, {"dtype", "torch.float32"}}, out[0]};
  const ModelSpec model = model_of(3, document);
  const LayerSpec& block = model.kinds[1];
  const Operation& relu = block.operations.back();
  EXPECT_EQ(relu.outputs.size(), 2);
  EXPECT_EQ(elements(block.tensors[at(relu.outputs.front())], 3, 1), 3 * kFeatures);
}

// A recurrent layer: ten steps of a product for all samples.
TEST(ModuleCalls, ProductsBesideAnOperationAreItsTime) {
  std::vector<CapturedModules> both;
  for (const std::int64_t samples : {3, 5}) {
    Json document = called_document(samples, 1);
    document["operations"][2]["products"] = {{0, 0, 0, 0}, {samples, 32, 16, 10}};
    both.push_back({.path = "modules.json", .document = document, .batch = samples});
  }
  const std::string text = model_of_modules(both, "net");
  const ModelSpec model = parse_model_yaml(parse_yaml(text, "net.yaml"));
  EXPECT_EQ(parse_model_yaml(parse_yaml(to_model_yaml(model), "again")), model);
  const LayerProgram block = build_layer_program(model.kinds[1], {.batch = 7, .sequence = 1});
  const auto& kernels = block.forward.kernels;
  const auto product = std::ranges::find(kernels, 10, &Kernel::kernels);
  ASSERT_NE(product, kernels.end());
  EXPECT_EQ(std::tuple(product->m, product->n, product->k), std::tuple(7, 32, 16));
}

// Label smoothing reads log-probabilities twice: their second gradient is added to the first.
TEST(ModuleCalls, ALossAddsGradientsInPlace) {
  Json document = called_document(3, 1);
  Json &operations = document["operations"], sum = operations.back();
  operations.erase(operations.size() - 1);
  int from = operations.back()["out"][0]["tensor"];
  for (const char* op : {"_log_softmax", "exp", "sin"}) {
    Json made = operations.back();
    made.update({{"op", op}, {"module", nullptr}, {"in", {from}}, {"saved", Json::array()}});
    made["out"][0]["tensor"] = 900 + operations.size();
    if (from < 900) from = made["out"][0]["tensor"];
    operations.push_back(made);
  }
  sum["in"] = {from + 1, from + 2};
  operations.push_back(sum);
  const LayerProgram loss = build_layer_program(model_of(3, document).kinds.back(), {.batch = 3, .sequence = 1});
  EXPECT_FALSE(std::ranges::any_of(loss.slots, [](const Slot& slot) { return slot.name.ends_with("grad sum"); }));
}

// DDP's second step fails where a weight has no gradient; on one rank nothing is wrapped.
TEST(ModuleCalls, WeightsWithoutGradientsAreNoFaultOfOneRank) {
  Json document = called_document(3, 1);
  document["parameters"]["stem.weight"]["gradient"] = false;
  const ModelSpec model = model_of(3, document);
  Plan plan;
  plan.runtime = {.kind = RuntimeKind::kDdp, .version = "2.11"};
  plan.batch.sequence = model.fixed_sequence;
  for (const int ranks : {8, 1}) {
    plan.mesh.replicate = ranks;
    const Cluster cluster = load_cluster(ranks > 1 ? "8xh100" : "1xh100");
    EXPECT_EQ(find_problem(plan, model, cluster).has_value(), ranks > 1);
  }
}

TEST(ModuleCalls, WhatIsCountedBehindTheLossIsNotTheLoss) {
  Json document = called_document(3, 1);
  Json counted = document["operations"].back();
  take_gradient(counted);
  counted["out"][0]["tensor"] = 1000;
  document["operations"].push_back(counted);
  const LayerSpec loss = layer_named(model_of(3, document), "loss");
  ASSERT_EQ(loss.operations.size(), 2);
  EXPECT_EQ(loss.output, loss.operations[0].outputs[0]);
}

TEST(ModuleCalls, ParametersThatNothingReadsAreTheirLayers) {
  Json document = called_document(3, 1);
  document["parameters"]["blocks.1.unused"] = {{"shape", {5}}};
  const ModelSpec model = model_of(3, document);
  EXPECT_EQ(model.parameters(), 4 * kFeatures * kFeatures + 5);
  EXPECT_EQ(layer_named(model, "blocks.1").parameters.size(), 2);
}

// The allocator saw a product's block go behind a later operation than the last one that reads it,
// or in backward behind the node of the first.
TEST(ModuleCalls, NamesEndWhereTheAllocatorSawThem) {
  constexpr std::int64_t kSamples = 1024;
  for (const bool in_backward : {false, true}) {
    Json document = called_document(kSamples, 1);
    Json made = Json::array();
    for (Json operation : document["operations"]) {
      const bool is_mine = operation["module"] == "blocks.1";
      if (is_mine && operation["op"] == "mm") {
        const auto place = static_cast<std::int64_t>(made.size());
        operation["out"][0][in_backward ? "freed_backward" : "freed"] = in_backward ? place : place + 2;
      }
      if (is_mine && operation["op"] == "relu") {
        operation["saved"] = Json::array();
        Json first = operation;
        first["out"][0]["tensor"] = 1000;
        made.push_back(first);
        operation["in"] = {1000};
      }
      made.push_back(operation);
    }
    document["operations"] = made;
    const LayerSpec block = layer_named(model_of(kSamples, document), "blocks.1");
    ASSERT_EQ(block.operations.size(), 3);
    const auto product = block.operations[0].outputs;
    EXPECT_EQ(block.operations[2].released == product, !in_backward);
    const auto& saved = block.operations[0].saved;
    EXPECT_EQ(contains(saved, product[0]), in_backward);
  }
}

// A product's name outlasts its block: it is there while the next one runs, until that has its own.
TEST(ModuleCalls, WhatANameHoldsIsThereWhileTheNextBlockRuns) {
  Json document = called_document(1024, 1);
  Json& operations = document["operations"];
  operations[1]["out"][0]["freed"] = 3;  // blocks.0's product, behind blocks.1's
  operations[2]["saved"] = Json::array();
  const LayerSpec block = layer_named(model_of(1024, document), "blocks.1");
  ASSERT_EQ(block.operations.size(), 3);
  EXPECT_TRUE(block.operations[0].inputs.empty());
  EXPECT_EQ(block.operations[1].released, block.operations[0].outputs);
}

// The model has its batch of the host itself; its blocks have words before their numbers.
TEST(ModuleCalls, ABatchOfTheHostIsTheInput) {
  const std::string text = called_document(3, 1).dump();
  Json document = Json::parse(std::regex_replace(text, std::regex("blocks\\.(.)"), "blocks.b_$1"));
  const Json copied = {{"op", "_to_copy"}, {"module", "stem"}, {"in", {-1}},
      {"out", {{{"tensor", 0}, {"elements", 24}, {"dtype", "torch.float32"}}}}};
  document["given"] = Json::object();
  document["operations"].insert(document["operations"].begin(), copied);
  const ModelSpec model = model_of(3, document);
  EXPECT_EQ(model.order[1].name, "blocks.b_0");
  EXPECT_EQ(model.kinds[0].operations.size(), 1);
}

// Of an activation in place whose gradient a sum shares with the block's input.
TEST(ModuleCalls, AGradientThatOthersShareIsNotTakenInPlace) {
  Json document = called_document(3, 1);
  Json& operations = document["operations"];
  Json sum = operations[4];
  operations[4].update({{"op", "relu_"}, {"in_place", true}, {"saved", Json::array()}});
  operations[3]["saved"] = Json::array();
  sum.update({{"op", "add"}, {"in", {104, 102}}, {"backward", Json::array()}});
  sum["saved"] = Json::array();
  sum["out"][0]["tensor"] = 1000;
  operations[5]["in"][0] = 1000;
  operations.insert(operations.begin() + 5, sum);
  EXPECT_TRUE(layer_named(model_of(3, document), "blocks.1").operations[1].in_place);
}

}
}
