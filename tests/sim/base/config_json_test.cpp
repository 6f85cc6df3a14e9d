#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "sim/base/config.h"

namespace foreshard::config_json_test {
namespace {

std::string refusal(std::string_view text) {
  try {
    parse_json(text, "config.json");
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::kInvalidInput);
    return error.what();
  }
  return "";
}

constexpr std::string_view kConfig = R"({
  "hidden_size": 4096,
  "rope": {"theta": 5e5, "scaling": null, "a\"b": [true, -1.5e-3, "x\\"]},
  "tie": false
}
)";

// As Python's json.dump() writes them.
TEST(JsonConfig, InfinitiesAreLargeNumbers) {
  const ConfigNode root = parse_json(R"({"limit": [0.0, -Infinity, Infinity], "a\"Infinity": 1})", "f");
  const auto limit = root.at("limit").elements();
  EXPECT_GT(limit[2].as_double(), 1e300);
  EXPECT_LT(limit[1].as_double(), -1e300);
  EXPECT_EQ(root.at("a\"Infinity").as_int(), 1);
}

TEST(JsonConfig, KnowsThePlaceOfEveryKeyAndValue) {
  const ConfigNode root = parse_json(kConfig, "config.json");
  const auto expect_at = [](const ConfigNode& node, int line, int key_column, int column) {
    EXPECT_EQ(node.location().line, line) << node.location().key_path;
    EXPECT_EQ(node.location().column, column) << node.location().key_path;
    EXPECT_EQ(node.key_location().column, key_column) << node.location().key_path;
  };
  expect_at(root.at("hidden_size"), 2, 3, 18);
  const ConfigNode rope = root.at("rope");
  expect_at(rope, 3, 3, 11);
  expect_at(rope.at("theta"), 3, 12, 21);
  const ConfigNode list = rope.at("a\"b");
  expect_at(list, 3, 43, 51);
  expect_at(list.elements()[0], 3, 52, 52);
  expect_at(list.elements()[1], 3, 58, 58);
  expect_at(list.elements()[2], 3, 67, 67);
  EXPECT_EQ(list.elements()[2].location().key_path, "rope.a\"b[2]");
  expect_at(root.at("tie"), 4, 3, 10);
}

TEST(JsonConfig, KeepsNumbersAsWrittenAndUnescapesStrings) {
  const ConfigNode root = parse_json(kConfig, "config.json");
  EXPECT_EQ(root.at("rope").at("theta").text(), "5e5");
  EXPECT_EQ(root.at("rope").at("theta").as_int(), 500'000);
  EXPECT_EQ(root.at("rope").at("a\"b").elements()[2].as_string(), "x\\");
  EXPECT_TRUE(root.at("rope").at("scaling").is_null());
  EXPECT_FALSE(root.at("tie").as_bool());
}

TEST(JsonConfig, RefusesEveryTruncation) {
  const std::string_view whole = kConfig.substr(0, kConfig.size() - 1);
  for (std::size_t size = 1; size < whole.size(); ++size) EXPECT_NE(refusal(whole.substr(0, size)), "") << size;
  EXPECT_EQ(refusal("{\n \"a\": [1,"),
      "config.json:2:10: a[1]: the JSON text ends too early; expected a complete file; is it truncated?");
}

TEST(JsonConfig, RefusesWhatStrictJsonDoesNotHave) {
  for (const char* text : {"{\"a\": 1} x", "{} {}", "{\"a\": 1,}", "[1,]", "{a: 1}", "{'a': 1}", "[01]", "[+1]", "[.5]",
           "[0x1]", "[NaN]", "[Inf]", "// c\n{}", "{\"a\" 1}", "[1 2]", "model: x", "[\"\n\"]", "[\"\\x\"]", "[1e999]",
           "\xEF\xBB\xBF\xEF\xBB\xBF{}", "<html>"}) {
    EXPECT_NE(refusal(text), "") << text;
  }
}

TEST(JsonConfig, NamesLineAndColumnOfSyntaxErrors) {
  EXPECT_EQ(refusal("{\"a\": 1}\n}"), "config.json:2:1: something follows the JSON value; expected one value per file");
  const std::string reason = refusal("{\n  \"a\": nope\n}");
  EXPECT_TRUE(reason.starts_with("config.json:2:")) << reason;
  EXPECT_NE(reason.find("not valid JSON"), std::string::npos) << reason;
  EXPECT_EQ(reason.find("exception"), std::string::npos) << reason;
}

TEST(JsonConfig, RefusesADuplicateKeyWithBothLines) {
  EXPECT_EQ(refusal("{\"a\": 1,\n \"b\": 2,\n \"a\": 3}"),
      "config.json:3:2: a: the key 'a' stands here again, after line 1; expected each key once");
}

TEST(JsonConfig, EndsQuicklyOnBombs) {
  EXPECT_NE(refusal(std::string(100'000, '[')).find("nested too deeply"), std::string::npos);
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  EXPECT_NE(refusal(objects).find("nested too deeply"), std::string::npos);
  std::string many = "[0";
  for (int i = 0; i < 1'000'000; ++i) many += ",0";
  EXPECT_NE(refusal(many + "]").find("too many values"), std::string::npos);
  std::string large(std::size_t{17} << 20, ' ');
  large += "{}";
  EXPECT_NE(refusal(large).find("too large"), std::string::npos);
}

TEST(JsonConfig, ALongKeyDoesNotMakeALongMessage) {
  const std::string reason = refusal("{\"" + std::string(1'000'000, 'k') + "\": [nope]}");
  EXPECT_LT(reason.size(), 500U);
  EXPECT_NE(reason.find("kkk"), std::string::npos);
}

TEST(JsonConfig, RefusesEmptyAndBinaryFiles) {
  using std::string_literals::operator""s;
  EXPECT_EQ(refusal(""), "config.json: the file is empty");
  EXPECT_NE(refusal("{\"a\": \"\0\"}"s).find("control character"), std::string::npos);
  EXPECT_NE(refusal("{\"a\": \"\xFF\"}").find("UTF-8"), std::string::npos);
}

}
}
