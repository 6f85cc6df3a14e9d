// Headers written by hand: eight bytes of length, then JSON.
#include "interop/hf/safetensors.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "models/families.h"
#include "models/model_dims.h"
#include "sim/base/error.h"
#include "tests/support/temporary_folder.h"

namespace foreshard {
namespace {

std::string with_length(const std::string& header, std::uint64_t length) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(length >> (8 * i) & 0xff));
  return bytes + header;
}

// A file that stays until the process ends.
std::filesystem::path written(const std::string& name, const std::string& bytes) {
  static const TemporaryFolder folder;
  return folder.write(name, bytes);
}

ModelSpec tiny() {
  ModelDims dims = *family_dims("llama");
  dims.name = "tiny";
  dims.layers = 1;
  dims.hidden = dims.ffn = 8;
  dims.heads = dims.kv_heads = 2;
  dims.head_dim = 4;
  dims.vocabulary = 16;
  dims.max_positions = 8;
  return build_model(dims);
}

// Of every parameter of tiny(), with `change` applied to the names.
std::string header(const std::string& left_out) {
  std::string text = R"({"__metadata__": {"format": "pt"})";
  const auto add = [&](const std::string& name, const std::string& shape) {
    if (name == left_out) return;
    text += R"(, ")" + name + R"(": {"dtype": "BF16", "shape": )" + shape + R"(, "data_offsets": [0, 0]})";
  };
  add("model.embed_tokens.weight", "[16, 8]");
  for (const char* name : {"q", "k", "v", "o"}) {
    add(std::string("model.layers.0.self_attn.") + name + "_proj.weight", "[8, 8]");
  }
  for (const char* name : {"gate", "up", "down"}) {
    add(std::string("model.layers.0.mlp.") + name + "_proj.weight", "[8, 8]");
  }
  add("model.layers.0.input_layernorm.weight", "[8]");
  add("model.layers.0.post_attention_layernorm.weight", "[8]");
  add("model.norm.weight", "[8]");
  add("lm_head.weight", "[16, 8]");
  return text + "}";
}

TEST(Safetensors, AModelIsThatOfItsHeader) {
  const std::string text = header("");
  // Weights behind the header are not needed.
  const auto path = written("whole.safetensors", with_length(text, text.size()) + "weights");
  const StoredModel stored = read_safetensors(path);
  EXPECT_EQ(stored.tensors.size(), 12U);
  const ImportLedger ledger = check_stored(stored, tiny());
  ASSERT_EQ(ledger.size(), 1U) << ledger_text(ledger);
  // 2 x 16 x 8 + 7 x 8 x 8 + 3 x 8 = 728
  EXPECT_EQ(ledger[0].what, "12 tensors, 728 elements");
}

TEST(Safetensors, WhatIsMissingIsNamed) {
  const std::string norm = "model.layers.0.input_layernorm.weight";  // 8 of 728 elements: 1.1 %
  const std::string text = header(norm);
  const auto path = written("part.safetensors", with_length(text, text.size()));
  try {
    check_stored(read_safetensors(path), tiny());
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("not in the files: " + norm), std::string::npos) << error.what();
  }
}

TEST(Safetensors, FilesThatAreCutOffAreRefused) {
  const std::string text = header("");
  const std::string whole = with_length(text, text.size());
  for (const std::size_t size : {std::size_t{0}, std::size_t{5}, std::size_t{8}, whole.size() / 2, whole.size() - 1}) {
    const auto path = written("cut.safetensors", whole.substr(0, size));
    EXPECT_THROW(read_safetensors(path), ConfigError) << size;
  }
  const auto path = written("long.safetensors", with_length(text, std::uint64_t{1} << 60));
  EXPECT_THROW(read_safetensors(path), ConfigError);
}

}
}
