#include "models/names.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "models/zoo.h"
#include "sim/base/lookup.h"

namespace foreshard {
namespace {

std::string zoo_name(std::string_view text) {
  const auto found = published_name(text);
  return found ? found->zoo : "none";
}

// Every name of the zoo, however it is written.
TEST(NamesTest, OrganisationCaseAndSeparatorsDoNotCount) {
  for (const std::string& name : zoo_names()) {
    std::string loud = name;
    for (char& c : loud) {
      if (c == '-') c = '_';
      if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
    }
    for (const std::string& text : {name, loud, "some-org/" + name, name + "-Instruct"}) {
      EXPECT_EQ(zoo_name(text), name) << text;
    }
    EXPECT_FALSE(published_name(loud)->is_variant) << loud;
  }
}

// Repositories at huggingface.co and the zoo's name for their sizes.
TEST(NamesTest, PublishedRepositories) {
  const std::pair<const char*, const char*> rows[] = {
      {"meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"},
      {"meta-llama/Meta-Llama-3-70B", "llama-3-70b"},
      {"meta-llama/Llama-2-7b-chat-hf", "llama-2-7b"},
      {"mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b-v0.3"},
      {"mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b"},
      {"mistralai/Mistral-Large-Instruct-2407", "mistral-large-2407"},
      {"mistralai/Mistral-Nemo-Instruct-2407", "mistral-nemo-12b"},
      {"Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"},
      {"Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b"},
      {"google/gemma-2-9b-it", "gemma-2-9b"},
      {"microsoft/Phi-3-mini-4k-instruct", "phi-3-mini"},
      {"deepseek-ai/DeepSeek-V3-0324", "deepseek-v3"},
      {"deepseek-ai/DeepSeek-R1", "deepseek-v3"},
      {"EleutherAI/pythia-6.9b-deduped", "pythia-6.9b"},
      {"google-bert/bert-base-uncased", "bert-base"},
      {"bigscience/bloom", "bloom-176b"},
      {"TinyLlama/TinyLlama-1.1B-Chat-v1.0", "tinyllama-1.1b"},
      {"llava-hf/llava-1.5-7b-hf", "llava-1.5-7b"},
      {"google/gemma-3-27b-it", "gemma-3-27b"},
      {"openai/gpt-oss-120b", "gpt-oss-120b"},
      {"allenai/OLMo-2-1124-7B-Instruct", "olmo-2-7b"},
      {"HuggingFaceTB/SmolLM3-3B", "smollm3-3b"},
      {"ibm-granite/granite-3.3-8b-base", "granite-3.3-8b"},
      {"meta-llama/Llama-4-Scout-17B-16E-Instruct", "llama-4-scout"},
      {"qwen3 8b", "qwen3-8b"},
      {"llama3.1-8b", "llama-3.1-8b"},
  };
  for (const auto& [text, name] : rows) EXPECT_EQ(zoo_name(text), name) << text;
  EXPECT_TRUE(published_name("meta-llama/Llama-3.1-8B-Instruct")->is_variant);
  EXPECT_FALSE(published_name("meta-llama/Llama-3.1-8B")->is_variant);
}

// Other sizes, other weights and other models are not taken for their neighbours.
TEST(NamesTest, WhatIsAnotherModelIsNone) {
  for (const char* text : {"llama-3-9b", "llama", "", "qwen2-57b", "Llama-3.1-8B-bnb-4bit",
           "nvidia/Llama-3.1-Nemotron-70B-Instruct", "instruct", "8b", "-", "//", "llama-3.1-80b", "mistral-7b"}) {
    EXPECT_EQ(zoo_name(text), "none") << text;
  }
  EXPECT_EQ(zoo_name(std::string(100'000, 'a')), "none");
  std::string words;
  for (int i = 0; i < 40; ++i) words += "-chat";
  EXPECT_EQ(zoo_name("gpt2" + words), "none");
}

TEST(NamesTest, AliasesNameModels) {
  EXPECT_EQ(zoo_name("deepseek-v3.1"), "deepseek-v3");
  EXPECT_TRUE(published_name("deepseek-v3.1")->is_variant);
}

TEST(NamesTest, NearMissesNameTheFamily) {
  const SimilarNames similar = similar_names("meta-llama/Llama-3-9B");
  EXPECT_EQ(similar.family, "llama-3");
  EXPECT_EQ(similar.names.front(), "llama-3-8b");
  EXPECT_LE(similar.names.size(), 6U);
  for (const char* word : {"llama-3-9b", "lama-3.1-8b", "mamba-2.8b", "qwen9", "\n\x01",
           "a-word-that-is-rather-long-for-the-name-of-a-model-but-might-be-typed"}) {
    const std::string text = unknown_model(word);
    EXPECT_LE(text.size(), 260U) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  }
  EXPECT_NE(unknown_model("llama-3-9b").find("llama-3 comes as llama-3-8b, llama-3-70b"), std::string::npos)
      << unknown_model("llama-3-9b");
}

TEST(NamesTest, FiltersAreNamesInPart) {
  const auto qwen = zoo_names_with("qwen");
  EXPECT_GE(qwen.size(), 20U);
  EXPECT_TRUE(std::ranges::all_of(qwen, [](const std::string& name) { return contains(name, "qwen"); }));
  EXPECT_EQ(zoo_names_with("70B").size(), 5U);
  EXPECT_EQ(zoo_names_with("Llama-3.1"), (std::vector<std::string>{"llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b"}));
  EXPECT_TRUE(zoo_names_with("nothing-such").empty());
  EXPECT_TRUE(zoo_names_with("").empty());
}

}
}
