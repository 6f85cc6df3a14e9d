// Layers of a program's own modules, of operations as foreshard-null --modules writes them.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "interop/capture/capture_import.h"
#include "models/yaml/model_yaml.h"
#include "sim/base/error.h"

namespace foreshard {
namespace {

constexpr std::int64_t kWidth = 8, kWords = 32;

// Two lists of two blocks; all blocks read a condition of each sequence, those of the second the
// first list's result, too. Scores are of every fourth pair; the head is the table. `skips`: the
// second block reads what the first one does, whose result is read behind both.
CapturedModules program(std::int64_t batch, std::int64_t sequence, bool again = false, bool skips = false) {
  const std::int64_t tokens = batch * sequence;
  Json operations = Json::array();
  int next = 1;  // 0: the batch
  const auto add = [&](const char* op, const char* module, Json in, std::int64_t count, Json more) {
    Json made = {{"op", op}, {"module", module}, {"in", in}, {"node", next}, {"saved", Json::array()},
        {"backward", {{{"elements", 1}, {"dtype", "torch.float32"}}}},
        {"out", {{{"tensor", next}, {"elements", count}, {"dtype", "torch.float32"}}}}};
    for (const Json& each : in) {
      if (each.is_number()) made["saved"].push_back(each);
    }
    if (more.is_object()) made.update(more);
    operations.push_back(made);
    return next++;
  };
  const Json product = {{"n", kWidth}, {"k", kWidth}};
  int x = add("embedding", "pos", {"pos.weight", 0}, tokens * kWidth, {});
  x = add("add", "", {x, add("embedding", "emb", {"emb.weight", 0}, tokens * kWidth, {})}, tokens * kWidth, {});
  const int c = add("mm", "cond", {x, "cond.weight"}, batch * kWidth, product);
  Json parameters = {{"emb.weight", {{"shape", {kWords, kWidth}}}}, {"pos.weight", {{"shape", {1, kWidth}}}},
      {"cond.weight", {{"shape", {kWidth, kWidth}}}}, {"norm.weight", {{"shape", {kWidth}}}}};
  std::vector<std::string> blocks;
  int first = c, beside = 0;
  for (const std::string list : {"a", "b"}) {
    for (int i = 0; i < 2; ++i) {
      blocks.push_back(list + "." + std::to_string(i));
      const std::string weight = blocks.back() + ".w";
      parameters[weight] = {{"shape", {kWidth, kWidth}}};
      const char* const module = blocks.back().c_str();
      const bool is_beside = skips && blocks.size() == 2;
      if (is_beside) beside = std::exchange(x, 1);
      x = add("mul", module, {x, c}, tokens * kWidth, {});
      const int scores = add("bmm", module, {x, first}, tokens * sequence / 4, {});
      x = add("bmm", module, {scores, x}, tokens * kWidth, {});
      x = add("mm", module, {x, weight}, tokens * kWidth, product);
    }
    first = x;
    const Json read = skips ? Json({x, beside}) : Json({x});
    if (list == "a") x = add(skips ? "add" : "gelu", "", read, tokens * kWidth, {});
  }
  if (again) x = add("mm", "a.0", {x, "a.0.w"}, tokens * kWidth, product);
  x = add("native_layer_norm", "norm", {x, "norm.weight"}, tokens * kWidth, {});
  x = add("mm", "", {x, "emb.weight"}, tokens * kWords, {{"n", kWords}, {"k", kWidth}});
  operations.push_back({{"op", "sum"}, {"module", nullptr}, {"in", {x}}, {"node", next}});
  operations.back()["saved"] = operations.back()["backward"] = Json::array();
  operations.back()["out"] = {{{"tensor", next}, {"elements", 1}, {"dtype", "torch.float32"}}};
  CapturedModules made = {.path = "modules.json", .document = {}, .batch = batch, .sequence = sequence};
  made.document = {{"class", "Net"}, {"block_list", "a"}, {"blocks", blocks}, {"parameters", parameters},
      {"given", {{"0", {{"elements", tokens}, {"dtype", "torch.int64"}}}}}, {"operations", operations}};
  return made;
}

TEST(ModuleModel, ListsAreBlocksAndWhatTravelsBesideIsKept) {
  CapturedModules other = program(4, 32);  // whose tensors have other numbers
  for (Json& operation : other.document["operations"]) {
    for (Json& in : operation["in"]) {
      if (in.is_number() && in > 0) in = in.get<int>() + 100;
    }
  }
  const std::string text = model_of_modules({program(2, 16), other}, "net");
  const ModelSpec model = parse_model_yaml(parse_yaml(text, "net.yaml"));
  std::vector<std::string> names;
  for (const LayerInstance& layer : model.order) names.push_back(layer.name);
  EXPECT_EQ(names, (std::vector<std::string>{"embedding", "a.0", "a.1", "inner3", "b.0", "b.1", "head", "loss"}));
  EXPECT_EQ(parse_model_yaml(parse_yaml(to_model_yaml(model), "again.yaml")), model);
  EXPECT_TRUE(model.tied_embeddings);
  EXPECT_EQ(model.parameters(), kWords * kWidth + 5 * kWidth * kWidth + 2 * kWidth);
  const LayerSpec& block = model.kinds[at(model.order[1].kind)];
  EXPECT_EQ(model.order[1].kind, model.order[2].kind);
  EXPECT_EQ(model.order[4].kind, model.order[5].kind);
  const TensorSpec& scores = block.tensors[at(block.operations[1].outputs[0])];
  EXPECT_EQ(elements(scores, 3, 64), 3 * 64 * 64 / 4);
  // The embedding hands two tensors on, of which the blocks read one: the other is kept there.
  const Operation& last = model.kinds[0].operations.back();
  EXPECT_TRUE(last.view);
  EXPECT_EQ(last.inputs.size(), 2);
  EXPECT_EQ(elements(model.kinds[0].tensors[at(last.saved[0])], 3, 64), 3 * kWidth);
}

// What SyncBatchNorm makes of all ranks' samples is one norm's, and so are its collectives.
// Logits that the program makes fp32 and lets go of are the head's; those that it keeps, the loss'.
TEST(ModuleModel, WhatStandsForTheResultIsTheHeads) {
  const auto is_of_head = [](bool is_kept) {
    CapturedModules made = program(2, 16);
    Json& operations = made.document["operations"];
    Json cast = operations.back();
    const std::size_t last = operations.size() - 1;
    operations[last]["in"] = {900};
    operations[last]["node"] = operations[last]["node"].get<int>() + 1;
    cast.update({{"op", "_to_copy"}, {"out", operations[last - 1]["out"]}, {"backward", {{{"elements", 1}}}}});
    cast["backward"][0]["dtype"] = "torch.float32";
    cast["out"][0]["tensor"] = 900;
    if (!is_kept) operations[last - 1]["out"][0]["freed"] = last;
    operations.insert(operations.begin() + static_cast<std::ptrdiff_t>(last), cast);
    const std::string text = model_of_modules({made}, "net");
    return text.find(R"("op":"cast")") < text.find(R"("loss":)");
  };
  EXPECT_TRUE(is_of_head(false));
  EXPECT_FALSE(is_of_head(true));
}

TEST(ModuleModel, NormsMayBeOfAllRanksSamples) {
  CapturedModules synchronized = program(2, 16);
  Json& operations = synchronized.document["operations"];
  Json& norm = operations[operations.size() - 3];
  norm["op"] = "batch_norm_elemt";
  Json statistics = norm;
  statistics.update({{"op", "batch_norm_stats"}, {"in", {norm["in"][0]}}, {"saved", Json::array()}});
  statistics["out"][0].update({{"tensor", 999}, {"elements", kWidth}});
  norm["in"].push_back(999);
  operations.insert(operations.end() - 3, statistics);
  const ModelSpec model = parse_model_yaml(parse_yaml(model_of_modules({synchronized}, "net"), "net.yaml"));
  EXPECT_EQ(parse_model_yaml(parse_yaml(to_model_yaml(model), "again.yaml")), model);
  std::vector<Operation> found;
  for (const LayerSpec& layer : model.kinds) {
    for (const Operation& operation : layer.operations) {
      if (operation.gathers.dim == MeshDim::kBatch) found.push_back(operation);
    }
  }
  ASSERT_EQ(found.size(), 1);
  EXPECT_EQ(found[0].inputs.size(), 1);
  EXPECT_EQ(found[0].n, kWidth);
  EXPECT_EQ(found[0].reduces.kind, CollectiveKind::kAllReduce);
}

TEST(ModuleModel, WhatOnlyTurnsATensorIsNoLayer) {
  CapturedModules turned = program(2, 16);
  for (Json& operation : turned.document["operations"]) {
    if (operation["op"] == "gelu") operation.update({{"op", "clone"}, {"backward", Json::array()}});
  }
  const std::string text = model_of_modules({turned}, "net");
  EXPECT_EQ(parse_model_yaml(parse_yaml(text, "net.yaml")).order[3].name, "b.0");
}

TEST(ModuleModel, BlocksBesideEachOtherAreTwo) {
  const std::string text = model_of_modules({program(2, 16, false, true), program(4, 32, false, true)}, "net");
  const ModelSpec model = parse_model_yaml(parse_yaml(text, "net.yaml"));
  EXPECT_EQ(model.order[1].name, "a.0");
  EXPECT_EQ(model.order[2].name, "a.1");
}

// A product that nobody saves, and whose name never ends, is there until its layer's backward is
// over; another model's forward comes and goes; tables in 16 bits are stored so.
TEST(ModuleModel, WhatTheAllocatorAndTheParametersSay) {
  constexpr std::int64_t kBefore = 1 << 20, kKept = 5;  // a.0's first operation makes it
  std::vector<CapturedModules> captures = {program(64, 16), program(128, 32)};
  for (CapturedModules& capture : captures) {
    Json& document = capture.document;
    document["before"] = kBefore * capture.batch;
    for (auto& [name, parameter] : document["parameters"].items())
      parameter["dtype"] = name == "emb.weight" ? "torch.bfloat16" : "torch.float32";
    Json& operations = document["operations"];
    for (std::size_t i = 0; i < operations.size(); ++i) {
      Json& saved = operations[i]["saved"];
      saved.erase(std::remove(saved.begin(), saved.end(), Json(kKept)), saved.end());
      for (Json& out : operations[i]["out"]) out["freed"] = i;
      for (const Json& in : operations[i]["in"]) {  // (read again)
        if (in.is_number() && in > 0) operations[in.get<std::size_t>() - 1]["out"][0]["freed"] = i;
      }
    }
    operations[kKept - 1]["out"][0].erase("freed");
  }
  const std::string text = model_of_modules(captures, "net");
  const ModelSpec model = parse_model_yaml(parse_yaml(text, "net.yaml"));
  const LayerSpec& first = model.kinds[at(model.order[0].kind)];
  const Operation& before = first.operations.front();
  EXPECT_EQ(elements(first.tensors[at(before.forward_workspace[0])], 3, 64), 3 * kBefore);
  EXPECT_TRUE(first.parameters[0].stored_as_computed);
  EXPECT_FALSE(first.parameters[1].stored_as_computed);
  const LayerSpec& block = model.kinds[at(model.order[1].kind)];
  const Operation& made = block.operations.front();
  EXPECT_NE(std::ranges::find(made.saved, made.outputs[0]), made.saved.end());
}

// A result that nothing reads has no gradient, nor have its weights; labels may be of any integers; a product's
// workspace is what it took at its peak, though its bias' gradient was made behind that.
TEST(ModuleModel, WhatHasNoGradient) {
  std::vector<CapturedModules> captures = {program(64, 16), program(128, 16)};
  constexpr std::int64_t kEach = 8192, kBias = 4 * kWidth;
  for (CapturedModules& capture : captures) {
    Json& document = capture.document;
    document["parameters"]["dead.weight"] = {{"shape", {kWidth, kWidth}}, {"gradient", false}};
    document["given"]["900"] = {{"elements", capture.batch * 16}, {"dtype", "torch.int32"}};
    Json& operations = document["operations"];
    Json dead = operations[operations.size() - 3];
    dead.update({{"op", "mm"}, {"in", {dead["in"][0], "dead.weight"}}, {"n", kWidth}, {"k", kWidth}});
    dead["out"][0]["tensor"] = 901;
    Json cast = operations.back();
    cast.update({{"op", "_to_copy"}, {"in", {900}}});
    cast["out"][0].update({{"tensor", 902}, {"elements", capture.batch * 16}, {"dtype", "torch.int64"}});
    for (Json* each : {&dead, &cast}) each->erase("node");
    for (Json& operation : operations) {
      if (operation["module"] != "a.0" || operation["op"] != "mm") continue;
      operation["backward_workspace"] = capture.batch * kEach - kBias;
      operation["backward"] = {{{"elements", kWidth}, {"dtype", "torch.float32"}}};
    }
    operations.back()["in"].push_back(902);
    operations.insert(operations.end() - 1, {dead, cast});
  }
  const std::string text = model_of_modules(captures, "net");
  const ModelSpec model = parse_model_yaml(parse_yaml(text, "net.yaml"));
  const LayerSpec& head = model.kinds[at(model.order[model.order.size() - 2].kind)];
  const auto weight = std::ranges::find(head.parameters, "dead.weight", &ParameterSpec::name);
  ASSERT_NE(weight, head.parameters.end());
  EXPECT_FALSE(weight->trainable);
  const LayerSpec& block = model.kinds[at(model.order[1].kind)];
  const Indices& workspace = block.operations.back().backward_workspace;
  ASSERT_EQ(workspace.size(), 1);
  EXPECT_EQ(elements(block.tensors[at(workspace[0])], 3, 16), 3 * kEach);
}

std::string refusal_of(const CapturedModules& capture) {
  try {
    model_of_modules({capture}, "net");
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// An expert that was given no rows, for the host read zeros where their number was to be.
TEST(ModuleModel, WhatHasAGradientWasRead) {
  CapturedModules capture = program(2, 16);
  capture.document["parameters"]["a.0.scale"] = {{"shape", {1}}, {"gradient", true}};
  Json& expert = capture.document["parameters"]["a.0.expert"];
  expert = {{"shape", {kWidth, kWidth}}, {"gradient", false}};
  EXPECT_EQ(refusal_of(capture), "");
  expert["gradient"] = true;
  EXPECT_NE(refusal_of(capture).find("a.0.expert has a gradient"), std::string::npos);
}

}
}
