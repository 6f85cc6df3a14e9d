// Models as YAML: what is written reads back as an equal model, the example by hand is the built-in
// model, and every mistake is told where it stands.
#include "models/yaml/model_yaml.h"

#include <gtest/gtest.h>

#include <string>

#include "calibration/machines.h"
#include "models/layers/variants.h"
#include "models/zoo.h"
#include "sim/base/error.h"
#include "sim/graph/training_step.h"
#include "sim/spec/plan_config.h"

namespace foreshard::model_yaml_test {
namespace {

ModelSpec parse(const std::string& text) {
  const ConfigNode root = parse_yaml(text, "m.yaml");
  return parse_model_yaml(root);
}

std::string failure(const std::string& text) {
  try {
    parse(text);
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.location().file, "m.yaml");
    EXPECT_GT(error.location().line, 0) << error.what();
    return error.what();
  }
  return "no error";
}

// Two layers of words, [T, 8] -> [T, 16] and a loss over 16 classes.
constexpr const char* kSmall = R"(model: small
positions: 64
layers:
  words:
    role: embedding
    tensors:
      ids: {per_token: 1, type: int64}
      rows: 8
    parameters:
      table.weight: [100, 8]
    operations:
      - {op: embedding, inputs: ids, outputs: rows, parameters: table.weight}
    output: rows
  block:
    role: block
    tensors:
      x: 8
      hidden: 32
      active: 32
      y: 8
      sum: 8
    parameters:
      up.weight: [32, 8]
      down.weight: [8, 32]
    operations:
      - {op: linear, inputs: x, outputs: hidden, parameters: up.weight}
      - {op: gelu, inputs: hidden, outputs: active}
      - {op: linear, inputs: active, outputs: y, parameters: down.weight}
      - {op: add, inputs: [x, y], outputs: sum}
    output: sum
  loss:
    role: loss
    tensors:
      x: 8
      loss: {fixed: 1, type: fp32}
    operations:
      - {op: cross_entropy, inputs: x, outputs: loss}
    output: loss
order:
  - words
  - {kind: block, name: "layers.{}", repeat: 3}
  - loss
)";

// `kSmall` with one text in place of another.
std::string with(const std::string& from, const std::string& to) {
  std::string text = kSmall;
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

void expect_failure(const std::string& text, const std::string& place, const std::string& what) {
  const std::string message = failure(text);
  EXPECT_EQ(message.rfind("m.yaml:" + place, 0), 0U) << message;
  EXPECT_NE(message.find(what), std::string::npos) << message;
}

TEST(ModelYamlTest, ASmallModelIsRead) {
  const ModelSpec model = parse(kSmall);
  EXPECT_EQ(model.name, "small");
  EXPECT_EQ(model.parameters(), 100 * 8 + 3 * 2 * 8 * 32);
  EXPECT_EQ(model.block_count(), 3);
  EXPECT_EQ(model.order[3].name, "layers.2");
  const Operation& up = model.kinds[1].operations.front();
  EXPECT_EQ(up.name, "up");
  EXPECT_EQ(up.n, 32);
  EXPECT_EQ(up.k, 8);
  EXPECT_EQ(up.saved, (std::vector<std::int16_t>{0}));
  EXPECT_EQ(model.kinds[1].operations[3].gradient, GradientRule::kAlias);
  // Products: 2 * 8 * 32 each, two a block; three blocks, three times forward.
  EXPECT_DOUBLE_EQ(model.training_flops_per_sequence(64).count(), 3.0 * 3 * 64 * 2 * 2 * 8 * 32);
}

TEST(ModelYamlTest, EveryBuiltInModelReadsBackEqual) {
  for (const std::string& name : zoo_names()) {
    const ModelSpec model = load_zoo_model(name);
    const ConfigNode root = parse_yaml(to_model_yaml(model), name + ".yaml");
    const ModelSpec read = parse_model_yaml(root);
    EXPECT_EQ(read, model) << name;
  }
}

EventGraph step_of(const ModelSpec& model) {
  const Cluster cluster = load_cluster("8xh100");
  PlanDocument document;
  for (const char* setting : {"recompute=selective", "batch.micro_batch=2"}) document = apply_set(document, setting);
  const ResolvedPlan plan = resolve(document, model, cluster);
  check(plan, model, cluster);
  return build_training_step(with_variants(model, plan.plan), plan.plan);
}

TEST(ModelYamlTest, TheExampleIsTheBuiltInModel) {
  const ModelSpec read = load_model_yaml(std::string(FORESHARD_SOURCE_DIR) + "/models/examples/tinyllama-1.1b.yaml");
  const ModelSpec built_in = load_zoo_model("tinyllama-1.1b");
  EXPECT_EQ(read, built_in);
  EXPECT_EQ(read.parameters(), 1'100'048'384);
  EXPECT_EQ(step_of(read).fingerprint(), step_of(built_in).fingerprint());
}

TEST(ModelYamlTest, WrongKeysAndWords) {
  expect_failure(with("positions: 64", "position: 64"), "2:1", "did you mean positions");
  expect_failure(with("positions: 64\n", ""), "1:1", "positions");
  expect_failure(with("role: block", "role: blok"), "15:11", "blok");
  expect_failure(with("op: gelu", "op: gelo"), "27:14", "gelo");
  expect_failure(with("type: int64", "type: int32"), "7:33", "int32");
  expect_failure("[1]", "1:1", "no model");
}

TEST(ModelYamlTest, WrongSizes) {
  expect_failure(with("hidden: 32", "hidden: -32"), "18:15", "-32");
  expect_failure(with("rows: 8", "rows: {per_token: 99999999999999999}"), "8:25", "");
  expect_failure(with("[32, 8]", "[32, 0]"), "23:23", "0");
  expect_failure(with("[32, 8]", "[4000000000, 4000000000]"), "23:18", "");
  expect_failure(with("positions: 64", "positions: 0"), "2:12", "0");
  expect_failure(with("repeat: 3", "repeat: 0"), "41:46", "0");
  expect_failure(with("up.weight: [32, 8]", "up.weight: [32, 9]"), "26:9", "k is 9");
}

TEST(ModelYamlTest, WrongReferences) {
  expect_failure(with("inputs: hidden", "inputs: hiden"), "27:28", "did you mean hidden");
  // A cycle is a use before it is written.
  expect_failure(
      with("inputs: x, outputs: hidden", "inputs: y, outputs: hidden"), "26:30", "nothing has written 'y' yet");
  expect_failure(with("outputs: active", "outputs: hidden"), "27:45", "written twice");
  expect_failure(with("      y: 8\n", "      y: 8\n      z: 8\n"), "21:10", "no operation uses 'z'");
  expect_failure(
      with("down.weight: [8, 32]", "down.weight: [8, 32]\n      spare: [4]"), "25:14", "no operation uses 'spare'");
  expect_failure(with("parameters: down.weight", "parameters: up.weight"), "28:62", "two operations");
  expect_failure(with("output: sum", "output: x"), "30:13", "no operation writes");
  expect_failure(with("outputs: hidden, ", "outputs: hidden, saved: active, "), "26:57", "is not there yet");
  expect_failure(with("kind: block", "kind: blocks"), "41:12", "there is no layer 'blocks'");
}

TEST(ModelYamlTest, WrongAttention) {
  const std::string attention =
      "      - {op: attention, inputs: x, outputs: y, attention: {heads: 4, kv_heads: 3, head_dim: 2}}\n";
  expect_failure(with("      - {op: linear, inputs: active, outputs: y, parameters: down.weight}\n", attention),
      "28:80", "3 key/value heads do not divide 4 heads");
}

TEST(ModelYamlTest, LayersThatDoNotFit) {
  // The head of the table is wider than what the block reads.
  expect_failure(with("      rows: 8\n    parameters:\n      table.weight: [100, 8]",
                     "      rows: 9\n    parameters:\n      table.weight: [100, 9]"),
      "41:5", "'layers.0' reads 10240 elements where 'words' hands on 11520");
  expect_failure(with("  - words\n", "  - {kind: block, name: first}\n"), "40:5", "reads the batch");
  expect_failure(with("  - loss\n", ""), "41:5", "makes the loss");
  expect_failure(with("  - loss\n", "  - {kind: words, name: more}\n  - loss\n"), "42:5", "begins a chain");
  expect_failure(
      with("  - loss\n", "  - {kind: block, name: \"layers.1\"}\n  - loss\n"), "42:5", "two layers are called");
  expect_failure(with("[x, y], outputs: sum", "[y], outputs: sum, gradient: none"), "15:5", "cannot be differentiated");
  // What the products compute is read by nobody.
  expect_failure(with("[x, y], outputs: sum", "[x, x], outputs: sum"), "15:5", "no gradient arrives at up.weight");
}

// It is the layer that is wrong, not the program.
TEST(ModelYamlTest, WhatCannotBeDifferentiatedIsNoInternalError) {
  try {
    parse_model_yaml(parse_yaml(with("[x, y], outputs: sum", "[x, x], outputs: sum"), "model.yaml"));
    FAIL();
  } catch (const Error& error) {
    const std::string what = error.what();
    EXPECT_EQ(error.exit_code(), ExitCode::kInvalidInput);
    EXPECT_EQ(what.find("internal"), std::string::npos) << what;
    EXPECT_EQ(what.find(".cpp"), std::string::npos) << what;
    EXPECT_NE(what.find("the layer cannot be differentiated: no gradient arrives at up.weight; "), std::string::npos)
        << what;
  }
}

TEST(ModelYamlTest, ChainsAreJoined) {
  // Another table of rows, joined with the first by a sum.
  std::string text = with("  loss:\n    role: loss\n", R"(  meet:
    role: inner
    tensors:
      a: 8
      b: 8
      c: 8
    joins: b
    operations:
      - {op: multiply, inputs: [a, b], outputs: c}
    output: c
  loss:
    role: loss
)");
  text.replace(text.find("  - {kind: block"), 0, "  - {kind: words, name: more}\n  - meet\n");
  const ModelSpec model = parse(text);
  EXPECT_EQ(model.kinds[2].joins, 1);
  EXPECT_EQ(chain_joined_at(model, 2), 1);
  EXPECT_GT(step_of(model).rows.size(), 0U);
}

TEST(ModelYamlTest, RopeScalingReadsBack) {
  using Kind = RopeScaling::Kind;
  const auto read = [](const std::string& scaling) {
    return parse(std::string(kSmall) + "numerics: {rope_scaling: " + scaling + "}\n");
  };
  const ModelSpec llama3 =
      read("{kind: llama3, factor: 8, low_frequency_factor: 1, high_frequency_factor: 4, original_positions: 4096}");
  EXPECT_EQ(llama3.numerics.rope_scaling, (RopeScaling{Kind::kLlama3, 8, 1, 4, 4096}));
  EXPECT_EQ(read("{kind: linear, factor: 2}").numerics.rope_scaling.factor, 2);
  EXPECT_EQ(read("true").numerics.rope_scaling.kind, Kind::kOther);
  EXPECT_EQ(read("false").numerics.rope_scaling, RopeScaling());
  for (const char* scaling : {"{kind: linear, factor: 2}", "true", "{kind: llama3, factor: 3}"}) {
    const ModelSpec model = read(scaling);
    EXPECT_EQ(parse(to_model_yaml(model)).numerics, model.numerics) << scaling;
  }
  const std::string many(kSmall);
  EXPECT_NE(failure(many + "numerics: {rope_scaling: {kind: yarn, factor: 2}}\n").find("linear"), std::string::npos);
}

}
}
