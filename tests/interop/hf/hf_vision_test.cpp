// Configurations of models that read images: the published ones give the zoo's models; what is left
// out is Hugging Face's default; what is not modelled is an error at its place.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "interop/hf/hf_config.h"
#include "models/zoo.h"
#include "sim/base/error.h"

namespace foreshard::hf_vision_test {
namespace {

std::string failure(const std::string& text) {
  try {
    const ConfigNode root = parse_json(text, "config.json");
    build_vision_model(parse_hf_config(root, "test").vision.value());
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::kInvalidInput);
    return error.what();
  }
  return "no error";
}

void expect_failure(const std::string& text, const std::string& place, const std::string& what) {
  const std::string message = failure(text);
  EXPECT_EQ(message.rfind("config.json:" + place, 0), 0U) << message;
  EXPECT_NE(message.find(what), std::string::npos) << message;
}

// The same model as the zoo's. google/vit-base-patch16-224 lists 1000 labels, here as their number.
TEST(HfVisionTest, PublishedConfigsGiveTheZoosModels) {
  for (const std::string name : {"vit-base-patch16-224", "clip-vit-large-patch14", "llava-1.5-7b"}) {
    ModelSpec read =
        build_hf_model(read_hf_config(std::string(FORESHARD_SOURCE_DIR) + "/tests/interop/configs/" + name + ".json"));
    const ModelSpec expected = load_zoo_model(name);
    read.source = expected.source;
    read.numerics = expected.numerics;
    EXPECT_EQ(read, expected) << name;
  }
}

// The classes' defaults: openai/clip-vit-base-patch32, llava-1.5-7b with 32000 words, and
// vit-base-patch16-224 with two labels.
TEST(HfVisionTest, DefaultsAreHuggingFaces) {
  const auto parameters = [](const std::string& text) {
    const ConfigNode root = parse_json(text, "config.json");
    return build_vision_model(parse_hf_config(root, "test").vision.value()).parameters();
  };
  EXPECT_EQ(parameters(R"({"model_type": "clip"})"), 151'277'313);
  EXPECT_EQ(parameters(R"({"model_type": "llava"})"), 7'063'427'072 - 2 * 64 * 4096);
  EXPECT_EQ(parameters(R"({"model_type": "vit"})"), 86'567'656 - 998 * 769);
  EXPECT_EQ(
      parameters(R"({"model_type": "vit", "id2label": {"0": "cat", "1": "dog", "2": "cow"}})"), 86'567'656 - 997 * 769);
  // Of each class on the meta device (transformers 5.17).
  EXPECT_EQ(parameters(R"({"model_type": "deit"})"), 85'801'730);
  EXPECT_EQ(parameters(R"({"model_type": "vit_msn"})"), 85'800'194);
  EXPECT_EQ(parameters(R"({"model_type": "ijepa"})"), 85'798'658);
  EXPECT_EQ(parameters(R"({"model_type": "dinov2"})"), 85'728'770);
  EXPECT_EQ(parameters(R"({"model_type": "dinov2_with_registers"})"), 85'824'002);
}

TEST(HfVisionTest, EveryKeyIsInTheLedger) {
  const HfConfig config =
      read_hf_config(std::string(FORESHARD_SOURCE_DIR) + "/tests/interop/configs/llava-1.5-7b.json");
  const auto use_of = [&](const std::string& key) {
    const auto found = std::ranges::find_if(config.ledger, [&](const HfKey& k) { return k.key == key; });
    return found == config.ledger.end() ? std::string("none") : std::string(to_string(found->use));
  };
  EXPECT_EQ(use_of("vision_config.patch_size"), "mapped");
  EXPECT_EQ(use_of("text_config.vocab_size"), "mapped");
  EXPECT_EQ(use_of("text_config.hidden_size"), "defaulted");
  EXPECT_EQ(use_of("vision_config.vocab_size"), "ignored");
  EXPECT_EQ(use_of("pad_token_id"), "ignored");
}

TEST(HfVisionTest, WhatIsNotModelledIsAnError) {
  expect_failure("{\"model_type\": \"vit\",\n \"hidden_act\": \"relu\"}", "2:16", "not supported");
  expect_failure("{\"model_type\": \"clip\",\n \"vision_config\": {\"attention_dropout\": 0.1}}", "2:41", "dropout");
  expect_failure("{\"model_type\": \"vit\",\n \"architectures\": [\"ViTModel\"]}", "2:20", "ViTForImageClassification");
  expect_failure("{\"model_type\": \"vit\",\n \"patch_size\": -16}", "2:16", "-16");
  expect_failure(
      "{\"model_type\": \"clip\",\n \"text_config\": {\"hidden_act\": \"gelu\"}}", "2:32", "different activations");
  expect_failure("{\"model_type\": \"llava\",\n \"vision_feature_layer\": -1}", "2:26", "-2");
  expect_failure(
      "{\"model_type\": \"llava\",\n \"vision_config\": {\"model_type\": \"siglip\"}}", "2:34", "clip_vision_model");
  expect_failure("{\"model_type\": \"llava\",\n \"image_seq_length\": 577}", "2:22", "576");
  expect_failure(
      "{\"model_type\": \"llava\",\n \"text_config\": {\"model_type\": \"mamba\"}}", "2:32", "not supported");
}

}
}
