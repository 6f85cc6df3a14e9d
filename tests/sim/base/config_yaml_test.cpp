#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "sim/base/config.h"

namespace foreshard::config_yaml_test {
namespace {

std::string refusal(std::string_view text) {
  try {
    parse_yaml(text, "plan.yaml");
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::kInvalidInput);
    return error.what();
  }
  return "";
}

std::string repeat(std::string_view text, int times) {
  std::string result;
  for (int i = 0; i < times; ++i) result += text;
  return result;
}

TEST(Yaml, KeepsOrderTextAndPlaces) {
  const ConfigNode root = parse_yaml(
      "model: llama-3.1-8b  # a comment\n"
      "mesh: {shard: 8, replicate: '8'}\n"
      "units:\n"
      "  - {units: 0-30, value: always}\n"
      "  - units: 31\n"
      "    value: \"n\\u00e9ver\"\n"
      "offload:\n",
      "plan.yaml");
  EXPECT_EQ(root.keys(), (std::vector<std::string>{"model", "mesh", "units", "offload"}));
  EXPECT_EQ(root.at("model").as_string(), "llama-3.1-8b");
  EXPECT_FALSE(root.at("mesh").at("shard").is_quoted());
  EXPECT_TRUE(root.at("mesh").at("replicate").is_quoted());
  EXPECT_TRUE(root.at("offload").is_null());
  EXPECT_EQ(root.at("offload").location().line, 7);

  const ConfigNode value = root.at("units").elements()[1].at("value");
  EXPECT_EQ(value.as_string(), "n\xC3\xA9ver");
  EXPECT_EQ(value.location().file, "plan.yaml");
  EXPECT_EQ(value.location().key_path, "units[1].value");
  EXPECT_EQ(value.location().line, 6);
  EXPECT_EQ(value.location().column, 12);
  EXPECT_EQ(value.key_location().column, 5);
}

TEST(Yaml, SkipsAByteOrderMarkAndReadsWindowsLineEnds) {
  const ConfigNode root = parse_yaml(
      "\xEF\xBB\xBF"
      "a: 1\r\nb: 2\r\n",
      "x");
  EXPECT_EQ(root.at("b").as_int(), 2);
  EXPECT_EQ(root.at("b").location().line, 2);
  EXPECT_EQ(root.at("a").location().column, 4);
}

TEST(Yaml, RefusesADuplicateKeyWithBothLines) {
  EXPECT_EQ(refusal("mesh:\n  shard: 8\n  shard: 16\n"),
      "plan.yaml:3:3: mesh.shard: the key 'shard' stands here again, after line 2; expected each key once");
}

TEST(Yaml, NamesLineAndColumnOfSyntaxErrors) {
  EXPECT_EQ(refusal("a: 1\n\tb: 2\n"), "plan.yaml:2:1: a: a tab in the indentation; expected spaces");
  EXPECT_EQ(refusal("a:\n\t- b"), "plan.yaml:2:2: a: a tab in the indentation; expected spaces");
  EXPECT_EQ(refusal("a: \"x"), "plan.yaml:1:6: a: the text ends before the closing quote");
  EXPECT_EQ(refusal("mesh: {shard: 8, x: [1, 2\nb: 3\n").substr(0, 16), "plan.yaml:1:21: ");
  EXPECT_EQ(refusal("a: b: c").substr(0, 15), "plan.yaml:1:5: ");
  EXPECT_EQ(refusal("a: 1\n b: 2").substr(0, 15), "plan.yaml:2:3: ");
  EXPECT_EQ(refusal("a: 1\n- b").substr(0, 15), "plan.yaml:2:1: ");
  EXPECT_EQ(refusal("a: *b").substr(0, 15), "plan.yaml:1:4: ");
  EXPECT_EQ(refusal("a: @b").substr(0, 15), "plan.yaml:1:4: ");
}

TEST(Yaml, RefusesASecondDocumentAndTrailingText) {
  EXPECT_EQ(parse_yaml("---\na: 1\n...\n", "x").at("a").as_int(), 1);
  EXPECT_EQ(refusal("a: 1\n---\nb: 2\n"),
      "plan.yaml:2:1: a second YAML document starts here; expected one document per file");
  EXPECT_NE(refusal("'a' 'b'").find("something follows the end"), std::string::npos);
}

TEST(Yaml, RefusesEmptyTextsAndThoseOfComments) {
  EXPECT_EQ(refusal(""), "plan.yaml: the file is empty");
  EXPECT_EQ(refusal(" \n\r\n"), "plan.yaml: the file is empty");
  EXPECT_NE(refusal("# nothing\n").find("no values"), std::string::npos);
}

TEST(Yaml, RefusesBytesThatAreNotText) {
  using std::string_literals::operator""s;
  EXPECT_EQ(refusal("a: 1\nb: \xFF"), "plan.yaml:2:4: the text is not valid UTF-8; expected a text file in UTF-8");
  EXPECT_NE(refusal("a: \xC0\x80"), "");          // overlong
  EXPECT_NE(refusal("a: \xED\xA0\x80"), "");      // surrogate
  EXPECT_NE(refusal("a: \xF5\x80\x80\x80"), "");  // beyond Unicode
  EXPECT_NE(refusal("a: \xE2\x82"), "");          // truncated
  EXPECT_NE(refusal("\xFF\xFE"
                    "a\0"s),
      "");  // UTF-16
  EXPECT_EQ(refusal("a: \0b"s).substr(0, 38), "plan.yaml:1:4: control character 0x00 ");
  EXPECT_NE(refusal("a: 1\n\x04hidden"), "");  // yaml-cpp would stop reading here
}

TEST(Yaml, RefusesTagsAndKeysThatAreNotWords) {
  EXPECT_TRUE(parse_yaml("a: !!str 8", "x").at("a").is_quoted());
  EXPECT_NE(refusal("a: !!python/object:os.system x").find("YAML tag"), std::string::npos);
  EXPECT_NE(refusal("? [a]\n: b").find("where a key is due"), std::string::npos);
  EXPECT_NE(refusal("~: b").find("a key is missing"), std::string::npos);
}

TEST(Yaml, ExpandsAliasesWithTheirOwnKeyPaths) {
  const ConfigNode root = parse_yaml("a: &x {b: [1, 2]}\nc: *x\nd: [*x]\n", "x");
  EXPECT_EQ(root.at("c").at("b").elements()[1].as_int(), 2);
  EXPECT_EQ(root.at("d").elements()[0].at("b").location().key_path, "d[0].b");
  EXPECT_NE(refusal("a: &x [*x]").find("inside its own anchor"), std::string::npos);
}

TEST(Yaml, EndsQuicklyOnBombs) {
  std::string laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 12; ++i) {
    const std::string below = "*a" + std::to_string(i - 1);
    laughs += fmt::format("a{0}: &a{0} [{1}{2}]\n", i, repeat(below + ", ", 8), below);
  }
  EXPECT_NE(refusal(laughs).find("too many values"), std::string::npos);
  EXPECT_NE(refusal("a: &a " + std::string(1'000'000, 'x') + "\nb: [" + repeat("*a, ", 90) + "]").find("64 MiB"),
      std::string::npos);
  EXPECT_NE(refusal(repeat("k: [", 100'000)).find("nested too deeply"), std::string::npos);
  EXPECT_NE(refusal(repeat("- ", 100'000)).find("nested too deeply"), std::string::npos);
  EXPECT_NE(refusal(repeat("[", 100'000)), "");
  EXPECT_NE(refusal(repeat("{", 100'000)), "");
  EXPECT_NE(refusal(repeat("? ", 100'000)), "");
  EXPECT_NE(refusal("[" + repeat("1,", 100'000) + "1]").find("too many values"), std::string::npos);
  EXPECT_NE(refusal(std::string(std::size_t{3} << 20, 'x')).find("too large"), std::string::npos);
}

TEST(Yaml, AcceptsNestingUpToTheLimit) {
  EXPECT_EQ(refusal(repeat("[", 64) + repeat("]", 64)), "");
  EXPECT_NE(refusal(repeat("[", 65) + repeat("]", 65)), "");
}

}
}
