#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <limits>
#include <string>
#include <string_view>

#include "sim/base/config.h"

namespace foreshard::config_access_test {
namespace {

std::string refusal(const std::function<void()>& read) {
  try {
    read();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

// The value of the key `v` in one line of YAML or JSON.
ConfigNode yaml(std::string_view value) { return parse_yaml("v: " + std::string(value), "y").at("v"); }
ConfigNode json(std::string_view value) { return parse_json("{\"v\": " + std::string(value) + "}", "j").at("v"); }

TEST(ConfigAccess, ReadsIntegersHoweverTheyAreWritten) {
  EXPECT_EQ(yaml("8").as_int(), 8);
  EXPECT_EQ(yaml("+8").as_int(), 8);
  EXPECT_EQ(yaml("-8").as_int(), -8);
  EXPECT_EQ(yaml("0").as_int(), 0);
  EXPECT_EQ(yaml("1e9").as_int(), 1'000'000'000);
  EXPECT_EQ(yaml("1.5e1").as_int(), 15);
  EXPECT_EQ(yaml("8.0").as_int(), 8);
  EXPECT_EQ(yaml("800e-2").as_int(), 8);
  EXPECT_EQ(yaml("0e999").as_int(), 0);
  EXPECT_EQ(yaml("9007199254740993").as_int(), 9'007'199'254'740'993);  // beyond a double
  EXPECT_EQ(yaml("-9223372036854775808").as_int(), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(json("1e3").as_int(), 1000);
}

TEST(ConfigAccess, RefusesWhatIsNotAnInteger) {
  for (const char* text : {"1.5", "1e-1", "8 GPUs", "eight", "0x10", "010", "1_000", "1,000", "1e", "e9", "8.", ".5",
           "- 8", "~", "", "true", ".inf", ".nan", "8e1.5", "[8]", "{a: 8}", "1e99999999999999999999",
           "0.1e-99999999999999999999", "9223372036854775808", "1e19", "--8"}) {
    EXPECT_NE(refusal([&] { yaml(text).as_int(); }), "") << text;
  }
  EXPECT_EQ(refusal([] { yaml("8 GPUs").as_int(1, 1024); }),
      "y:1:4: v: '8 GPUs' is not an integer; expected an integer from 1 to 1,024, for example 8");
  EXPECT_EQ(refusal([] { yaml("1e30").as_int(1); }),
      "y:1:4: v: '1e30' overflows 64-bit integers; expected an integer of at least 1, for example 8");
}

TEST(ConfigAccess, RefusesNumbersOutsideTheRange) {
  EXPECT_EQ(refusal([] { yaml("0").as_int(1, 4); }),
      "y:1:4: v: 0 is out of range; expected an integer from 1 to 4, for example 4");
  EXPECT_NE(refusal([] { yaml("-1").as_int(0); }), "");
  EXPECT_NE(refusal([] { yaml("1.01").as_double(0, 1); }), "");
  EXPECT_NE(refusal([] { yaml("1e999").as_double(); }), "");
}

TEST(ConfigAccess, RefusesQuotedNumbersAndBooleans) {
  EXPECT_EQ(refusal([] { yaml("\"8\"").as_int(1, 8); }),
      "y:1:4: v: the text '8' stands here in quotes; expected an integer from 1 to 8, for example 8 without quotes");
  EXPECT_NE(refusal([] { json("\"8\"").as_int(); }), "");
  EXPECT_NE(refusal([] { json("\"0.5\"").as_double(); }), "");
  EXPECT_NE(refusal([] { json("\"true\"").as_bool(); }), "");
}

TEST(ConfigAccess, ReadsDoubles) {
  EXPECT_EQ(yaml("0.1").as_double(), 0.1);
  EXPECT_EQ(yaml("+1e-5").as_double(), 1e-5);
  EXPECT_EQ(json("-5").as_double(), -5);
  for (const char* text : {"nan", ".nan", "inf", ".inf", "1.0f", "half", "\"1\"", "[1]"}) {
    EXPECT_NE(refusal([&] { yaml(text).as_double(); }), "") << text;
  }
}

TEST(ConfigAccess, ReadsOnlyTrueAndFalseAsBooleans) {
  EXPECT_TRUE(yaml("true").as_bool());
  EXPECT_FALSE(json("false").as_bool());
  EXPECT_EQ(refusal([] { yaml("yes").as_bool(); }),
      "y:1:4: v: 'yes' is not a boolean; expected true or false; did you mean true?");
  EXPECT_NE(refusal([] { json("0").as_bool(); }), "");
}

TEST(ConfigAccess, ReadsStringsStrictlyInJson) {
  EXPECT_EQ(yaml("8").as_string(), "8");
  EXPECT_EQ(yaml("none").as_string(), "none");
  EXPECT_EQ(json("\"8\"").as_string(), "8");
  EXPECT_NE(refusal([] { json("8").as_string(); }), "");
  EXPECT_NE(refusal([] { json("null").as_string(); }), "");
  EXPECT_NE(refusal([] { yaml("[a]").as_string(); }), "");
  EXPECT_NE(refusal([] { yaml("").as_string(); }), "");
}

TEST(ConfigAccess, ReadsQuantitiesWithUnitsOnly) {
  EXPECT_EQ(yaml("80GiB").as_bytes(), Bytes(80LL << 30));
  EXPECT_EQ(json("\"80GiB\"").as_bytes(), Bytes(80LL << 30));
  EXPECT_EQ(yaml("400Gbit/s").as_bandwidth(), BytesPerSecond(50e9));
  EXPECT_EQ(yaml("989TFLOP/s").as_flop_rate(), FlopsPerSecond(989e12));
  EXPECT_EQ(yaml("12us").as_time(), Time::ns(12'000));
  EXPECT_EQ(refusal([] { yaml("80").as_bytes(); }), "y:1:4: v: '80' needs a unit, for example 80GiB");
  EXPECT_NE(refusal([] { json("80").as_bytes(); }), "");
  EXPECT_NE(refusal([] { yaml("[80GiB]").as_bytes(); }), "");
}

TEST(ConfigAccess, ChoosesAmongWords) {
  static constexpr std::array<std::string_view, 3> kWords = {"always", "never", "some"};
  EXPECT_EQ(yaml("never").as_choice(kWords), 1U);
  EXPECT_EQ(yaml("some").as_choice<3>(kWords), 2U);
  EXPECT_EQ(yaml("b").as_choice({"a", "b"}), 1U);
  EXPECT_EQ(refusal([] { yaml("nevr").as_choice(kWords); }),
      "y:1:4: v: 'nevr' is not known here; expected one of always, never, some; did you mean never?");
  EXPECT_NE(refusal([] { json("1").as_choice(kWords); }), "");
}

TEST(ConfigAccess, SuggestsTheSpellingOfAnUnknownKey) {
  const ConfigNode root = parse_yaml("mesh:\n  shrad: 8\n", "plan.yaml");
  EXPECT_EQ(refusal([&] {
    root.at("mesh").allow_only({"shard", "replicate"});
  }),
      "plan.yaml:2:3: mesh.shrad: unknown key 'shrad'; expected one of shard, replicate; did you mean shard?");
  EXPECT_NO_THROW(root.allow_only({"mesh", "model"}));
}

TEST(ConfigAccess, NamesAMissingKeyAndWhatStandsThere) {
  const ConfigNode root = parse_yaml("mesh:\n  shrad: 8\n", "plan.yaml");
  EXPECT_EQ(refusal([&] { root.at("mesh").at("shard"); }),
      "plan.yaml:2:3: mesh: the key 'shard' is missing; expected the key 'shard' beside "
      "shrad; did you mean 'shard' where 'shrad' stands?");
  EXPECT_EQ(refusal([&] { root.at("model", "the model's name, for example llama-3.1-8b"); }),
      "plan.yaml:1:1: the key 'model' is missing; expected the model's name, for example llama-3.1-8b");
  EXPECT_EQ(root.find("model"), nullptr);
  EXPECT_TRUE(root.has("mesh"));
}

TEST(ConfigAccess, TellsListsMappingsAndValuesApart) {
  EXPECT_EQ(refusal([] { yaml("8").items(); }),
      "y:1:4: v: a single value stands here; expected a mapping, for example {shard: 8}");
  EXPECT_EQ(refusal([] { json("[1]").at("x"); }),
      "j:1:7: v: an array stands here; expected an object, for example {\"shard\": 8}");
  EXPECT_EQ(refusal([] { yaml("").has("x"); }),
      "y:1:1: v: an empty value stands here; expected a mapping, for example {shard: 8}");
  EXPECT_NE(refusal([] { yaml("8").elements(); }), "");
  EXPECT_NE(refusal([] { json("{}").elements(); }), "");
}

TEST(ConfigAccess, NodesOutliveTheirRoot) {
  ConfigNode node;
  EXPECT_TRUE(node.is_null());
  EXPECT_EQ(node.location().file, "");
  {
    const ConfigNode root = parse_yaml("a: {b: [1, 2]}", "x");
    node = root.at("a");
  }
  EXPECT_EQ(node.at("b").elements()[1].as_int(), 2);
  EXPECT_EQ(node.at("b").location().key_path, "a.b");
  EXPECT_EQ(std::string(node.error("too short", "3 values").what()), "x:1:4: a: too short; expected 3 values");
}

}
}
