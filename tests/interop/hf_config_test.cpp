#include "interop/hf_config.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include "models/zoo.h"
#include "sim/base/error.h"

namespace foreshard {
namespace {

std::filesystem::path config(const std::string& name) {
  return std::filesystem::path(FORESHARD_SOURCE_DIR) / "tests/interop/configs" / name;
}

// A llama config of which one line is replaced or added; `extra` ends with a comma.
std::string llama(const std::string& extra, const std::string& hidden = "64",
                  const std::string& heads = "4") {
  return "{" + extra + "\n \"model_type\": \"llama\", \"hidden_size\": " + hidden +
         ",\n \"num_attention_heads\": " + heads +
         ", \"num_hidden_layers\": 2, \"intermediate_size\": 128,\n \"vocab_size\": 1000}";
}

HfConfig parse(const std::string& text) {
  const ConfigNode root = parse_json(text, "config.json");
  return parse_hf_config(root, "test");
}

std::string failure(const std::string& text) {
  try {
    parse(text);
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::kInvalidInput);
    return error.what();
  }
  return "no error";
}

void expect_failure(const std::string& text, const std::string& part) {
  const std::string message = failure(text);
  EXPECT_NE(message.find(part), std::string::npos) << message;
}

const HfKey* entry(const HfConfig& config, const std::string& key) {
  const auto found = std::find_if(config.ledger.begin(), config.ledger.end(),
                                  [&](const HfKey& k) { return k.key == key; });
  return found == config.ledger.end() ? nullptr : &*found;
}

// The same model as the zoo's, from the file that its authors publish.
TEST(HfConfigTest, PublishedConfigsGiveTheZoosModels) {
  for (const std::string name :
       {"llama-3.1-8b", "mistral-7b-v0.3", "qwen2.5-0.5b", "qwen3-0.6b", "gpt2", "mpt-7b"}) {
    ModelSpec read = load_hf_config(config(name + ".json"));
    const ModelSpec expected = load_zoo_model(name);
    EXPECT_EQ(read.parameters(), expected.parameters()) << name;
    read.source = expected.source;
    read.numerics = expected.numerics;  // the zoo has none
    EXPECT_EQ(read, expected) << name;
  }
}

TEST(HfConfigTest, NestedTextConfig) {
  const HfConfig read = read_hf_config(config("nested-text-config.json"));
  // Llama-7B with 64 more words in embedding and head.
  EXPECT_EQ(build_model(read.dims).parameters(), 6738415616 + 2 * 64 * 4096);
  ASSERT_NE(entry(read, "vision_config"), nullptr);
  EXPECT_EQ(entry(read, "vision_config")->use, KeyUse::kIgnored);
  EXPECT_EQ(entry(read, "text_config.hidden_size")->use, KeyUse::kMapped);
}

TEST(HfConfigTest, NamedAfterFileOrFolder) {
  EXPECT_EQ(read_hf_config(config("gpt2.json")).dims.name, "gpt2");
  const std::filesystem::path folder =
      std::filesystem::path(testing::TempDir()) / "hf_config_test" / "My-Model";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "config.json") << llama("");
  EXPECT_EQ(read_hf_config(folder / "config.json").dims.name, "My-Model");
}

TEST(HfConfigTest, DefaultsAreHuggingFaces) {
  const HfConfig read = parse(llama("\"rope_theta\": 10000.0, \"something_new\": [1],"));
  EXPECT_EQ(read.dims.kv_heads, 4);
  EXPECT_EQ(read.dims.head_dim, 16);
  EXPECT_EQ(read.dims.max_positions, 2048);
  EXPECT_FALSE(read.dims.tied);
  EXPECT_EQ(*entry(read, "num_key_value_heads"),
            (HfKey{"num_key_value_heads", KeyUse::kDefaulted, "4", ""}));
  EXPECT_EQ(*entry(read, "hidden_size"), (HfKey{"hidden_size", KeyUse::kMapped, "64", ""}));
  EXPECT_EQ(*entry(read, "rope_theta"), (HfKey{"rope_theta", KeyUse::kMapped, "10000.0", ""}));
  EXPECT_EQ(*entry(read, "something_new"), (HfKey{"something_new", KeyUse::kIgnored, "", ""}));
}

TEST(HfConfigTest, EveryKeyIsInTheLedgerOnce) {
  const std::filesystem::path path = config("mpt-7b.json");
  const HfConfig read = read_hf_config(path);
  for (const std::string& key : read_json_file(path).keys()) {
    EXPECT_EQ(std::count_if(read.ledger.begin(), read.ledger.end(),
                            [&](const HfKey& k) { return k.key == key; }),
              1)
        << key;
  }
}

TEST(HfConfigTest, ArchitectureNamesTheFamilyWithoutModelType) {
  EXPECT_EQ(parse(R"({"architectures": ["GPT2LMHeadModel"], "n_embd": 64, "n_head": 4,
                      "n_layer": 2, "vocab_size": 100})")
                .dims.family,
            "gpt2");
  expect_failure("{\"hidden_size\": 64}", "neither model_type nor architectures");
}

TEST(HfConfigTest, AliasesThatDisagree) {
  EXPECT_EQ(parse(llama("\"n_embd\": 64,")).dims.hidden, 64);
  expect_failure(llama("\"n_embd\": 65,"), "n_embd: differs from hidden_size");
}

TEST(HfConfigTest, SlidingWindowBoundsTheSequence) {
  const std::string mistral =
      R"("model_type": "mistral", "hidden_size": 64, "num_attention_heads": 8,
         "num_hidden_layers": 2, "intermediate_size": 128, "vocab_size": 1000,
         "max_position_embeddings": 32768})";
  EXPECT_EQ(parse("{" + mistral).dims.max_positions, 4096);
  EXPECT_EQ(parse("{\"sliding_window\": null, " + mistral).dims.max_positions, 32768);
  EXPECT_EQ(parse("{\"sliding_window\": 1024, " + mistral).dims.max_positions, 1024);
}

TEST(HfConfigTest, MptVariants) {
  const std::string mpt = R"("model_type": "mpt", "d_model": 64, "n_heads": 4, "n_layers": 2,
                             "vocab_size": 1000})";
  EXPECT_EQ(parse("{" + mpt).dims.positions, Positions::kAlibi);
  const ModelDims learned =
      parse("{\"attn_config\": {\"alibi\": false}, \"no_bias\": false, " + mpt).dims;
  EXPECT_EQ(learned.positions, Positions::kLearned);
  EXPECT_EQ(learned.position_rows, 2048);
  EXPECT_TRUE(learned.mlp_bias);
  EXPECT_EQ(parse("{\"attn_config\": {\"attn_type\": \"grouped_query_attention\", "
                  "\"kv_n_heads\": 2}, " +
                  mpt)
                .dims.kv_heads,
            2);
  expect_failure("{\"attn_config\": {\"rope\": true}, " + mpt, "rotary positions");
  expect_failure("{\"attn_config\": {\"qk_ln\": true}, " + mpt, "attn_config.qk_ln");
}

TEST(HfConfigTest, UnsupportedModels) {
  expect_failure("{\"model_type\": \"gemma2\"}", "model_type \"gemma2\" is not supported");
  expect_failure("{\"model_type\": \"gemma2\"}",
                 "expected one of llama, mistral, qwen2, qwen3, gpt2, mpt");
  expect_failure("{\"model_type\": \"lama\"}", "did you mean llama");
  expect_failure("{\"architectures\": [\"BertModel\"]}",
                 "architecture \"BertModel\" is not supported");
  expect_failure(
      "{\"architectures\": [\"LlamaForSequenceClassification\"], "
      "\"model_type\": \"llama\"}",
      "architecture \"LlamaForSequenceClassification\"");
  expect_failure(llama("\"num_local_experts\": 8,"), "mixtures of experts are not supported");
  expect_failure(llama("\"hidden_act\": \"gelu\","), "activation \"gelu\" is not supported");
}

TEST(HfConfigTest, BrokenFiles) {
  expect_failure("", "config.json");
  expect_failure("{\"model_type\": \"llama\", \"hidden_si", "config.json:1:");
  expect_failure("not json", "config.json:1:");
  expect_failure("[1, 2]", "this is not a JSON object");
  expect_failure("\"text\"", "this is not a JSON object");
  expect_failure("{\"text_config\": 3}", "text_config: this is not an object");
  EXPECT_THROW(load_hf_config(config("absent.json")), Error);
  EXPECT_THROW(load_hf_config(config("")), Error);  // a folder
}

TEST(HfConfigTest, ImpossibleSizes) {
  expect_failure(llama("", "0"), "config.json:2:40: hidden_size");
  expect_failure(llama("", "-64"), "hidden_size");
  expect_failure(llama("", "64.5"), "hidden_size");
  expect_failure(llama("", "\"64\""), "hidden_size");
  expect_failure(llama("", "99999999999999999999"), "hidden_size");
  expect_failure(llama("", "null"), "hidden_size");
  expect_failure(llama("", "66"), "the hidden size 66 is not divisible by 4 heads");
  EXPECT_EQ(parse(llama("\"head_dim\": 16,", "66")).dims.head_dim, 16);
  expect_failure(llama("\"num_key_value_heads\": 3,"), "3 key/value heads do not divide 4 heads");
  expect_failure("{\"model_type\": \"llama\"}", "num_hidden_layers");
}

TEST(HfConfigTest, Overflow) {
  const std::filesystem::path path =
      std::filesystem::path(testing::TempDir()) / "hf_config_overflow.json";
  std::ofstream(path) << "{\"model_type\": \"llama\", \"hidden_size\": 1000000000, "
                         "\"num_attention_heads\": 8, \"num_hidden_layers\": 90000, "
                         "\"intermediate_size\": 1000000000, \"vocab_size\": 1000}";
  try {
    load_hf_config(path);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("overflows"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace foreshard
