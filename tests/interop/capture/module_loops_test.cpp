// Loops over samples and positions, of which captures of two sizes have different numbers of turns.
#include "interop/capture/module_loops.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "interop/capture/capture_import.h"
#include "models/yaml/model_yaml.h"
#include "sim/base/error.h"

namespace foreshard {
namespace {

constexpr std::int64_t kRow = 8;

// A product, then for each sample: its part of the result, for each target of it a square that is
// gone after the turn, and a sigmoid that is kept; their mean is the loss.
CapturedModules looping(std::int64_t samples, std::int64_t targets, bool is_other = false) {
  Json operations = Json::array();
  std::int64_t next = 0;
  const auto add = [&](const char* op, Json module, Json in, Json shapes, Json more = {}) {
    Json made = {{"op", op}, {"module", module}, {"in", in}, {"node", next}, {"saved", Json::array()},
        {"backward", Json::array()}, {"out", Json::array()}};
    for (const Json& shape : shapes) {
      std::int64_t elements = 1;
      for (const Json& extent : shape) elements *= extent.get<std::int64_t>();
      made["out"].push_back({{"tensor", ++next}, {"elements", elements}, {"shape", shape}, {"dtype", "torch.float32"}});
    }
    if (more.is_object()) made.update(more);
    operations.push_back(made);
    return next;
  };
  const std::int64_t x =
      add("mm", "fc", {0, "fc.weight"}, {{samples, kRow}}, {{"n", kRow}, {"k", kRow}, {"saved", {0}}});
  Json parts = Json::array(), kept = Json::array();
  for (std::int64_t sample = 0; sample < samples; ++sample) parts.push_back({kRow});
  const std::int64_t last = add("unbind", nullptr, {x}, parts, {{"view", true}});
  for (std::int64_t sample = 0; sample < samples; ++sample) {
    const std::int64_t part = last - samples + 1 + sample;
    for (std::int64_t target = 0; target < targets; ++target) {
      add(is_other && sample > 0 ? "exp" : "pow", nullptr, {part}, {{kRow}});
      operations.back()["out"][0]["freed"] = operations.size() - 1;
    }
    kept.push_back(add("sigmoid", nullptr, {part}, {{kRow}}));
    operations.back()["saved"] = {kept.back()};
  }
  add("stack", nullptr, kept, {{samples, kRow}});
  add("mean", nullptr, {next}, {{1}});
  return {.path = "modules.json",
      .document = {{"class", "Net"}, {"block_list", ""}, {"blocks", Json::array()},
          {"parameters", {{"fc.weight", {{"shape", {kRow, kRow}}}}}},
          {"given", {{"0", {{"elements", samples * kRow}, {"shape", {samples, kRow}}, {"dtype", "torch.float32"}}}}},
          {"operations", operations}},
      .batch = samples};
}

std::vector<std::string> names(const Json& document) {
  std::vector<std::string> all;
  for (const Json& operation : document.at("operations")) all.push_back(operation.at("op"));
  return all;
}

TEST(ModuleLoops, OneTurnStandsForAll) {
  CapturedModules two = looping(2, 3), three = looping(3, 5);
  fold_loops({&two.document, &three.document});
  const std::vector<std::string> once = {"mm", "unbind", "pow", "sigmoid", "stack", "mean"};
  ASSERT_EQ(names(two.document), once);
  ASSERT_EQ(names(three.document), once);
  for (const auto& [of, samples] : {std::pair(&two, 2), std::pair(&three, 3)}) {
    const Json& operations = of->document.at("operations");
    const auto made = [&](std::size_t i) { return operations[i].at("out")[0].at("elements"); };
    EXPECT_EQ(operations[1].at("out").size(), 1);  // the parts
    EXPECT_EQ(made(1), samples * kRow);
    EXPECT_EQ(made(2), kRow);  // gone again
    EXPECT_EQ(operations[2].at("out")[0].at("freed"), 2);
    EXPECT_EQ(made(3), samples * kRow);
    EXPECT_EQ(operations[3].at("saved"), Json({operations[3].at("out")[0].at("tensor")}));
    EXPECT_EQ(operations[4].at("in"), operations[3].at("saved"));
  }
  const ModelSpec model = parse_model_yaml(parse_yaml(model_of_modules({two, three}, "net"), "net.yaml"));
  std::int64_t kept = 0;
  for (const TensorSpec& tensor : model.kinds.back().tensors)
    kept += tensor.name.starts_with("sigmoid") ? tensor.per_token + tensor.per_sequence : 0;
  EXPECT_EQ(kept, kRow);
}

// Names of the last turn outlive the loop.
TEST(ModuleLoops, TheLastTurnsNamesStandForAll) {
  CapturedModules two = looping(2, 3), three = looping(3, 5);
  for (CapturedModules* of : {&two, &three}) {
    Json& operations = of->document["operations"];
    operations[operations.size() - 4]["out"][0]["freed"] = operations.size() - 1;
  }
  fold_loops({&two.document, &three.document});
  const Json& out = three.document["operations"][2]["out"][0];
  EXPECT_EQ(out["elements"], kRow);
  EXPECT_EQ(out["freed"], 5);
}

TEST(ModuleLoops, ManyTurnsAreFoldedWhateverTheOtherCapture) {
  CapturedModules alone = looping(40, 1);
  fold_loops({&alone.document});
  EXPECT_EQ(names(alone.document).size(), 6);
}

TEST(ModuleLoops, OtherDifferencesStay) {
  CapturedModules two = looping(2, 1), other = looping(3, 1, true);
  const Json before = two.document;
  fold_loops({&two.document, &other.document});
  EXPECT_EQ(two.document, before);
  EXPECT_THROW(model_of_modules({two, other}, "net"), Error);
}

}
}
