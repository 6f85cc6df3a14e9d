#include "sim/base/error.h"

#include <gtest/gtest.h>

#include <string>

namespace foreshard {
namespace {

TEST(ConfigError, NamesPlaceKeyFaultExpectationAndSuggestion) {
  const ConfigError error({"plan.yaml", 3, 5, "mesh.shrad"}, "unknown key 'shrad'", "one of shard, replicate", "shard");
  EXPECT_STREQ(error.what(),
      "plan.yaml:3:5: mesh.shrad: unknown key 'shrad'; expected one of shard, replicate; did you mean shard?");
  EXPECT_EQ(error.exit_code(), ExitCode::kInvalidInput);
  EXPECT_EQ(error.location().line, 3);
}

TEST(ConfigError, LeavesOutWhatIsNotKnown) {
  EXPECT_STREQ(ConfigError({"a.json", 0, 0, ""}, "no such file").what(), "a.json: no such file");
  EXPECT_STREQ(ConfigError({"a.json", 7, 0, ""}, "x").what(), "a.json:7: x");
  EXPECT_STREQ(ConfigError({"", 0, 0, "mesh"}, "x", "y").what(), "mesh: x; expected y");
}

TEST(Check, PassesSilentlyAndDoesNotBuildItsMessage) {
  int built = 0;
  const auto message = [&built] {
    ++built;
    return std::string("message");
  };
  FORESHARD_CHECK(true, message());
  EXPECT_EQ(built, 0);
}

TEST(Check, ThrowsAnInternalErrorWithBaseNameAndLine) {
  try {
    FORESHARD_CHECK(1 > 2, "ids are not ordered");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::kInternal);
    const std::string text = error.what();
    EXPECT_TRUE(text.starts_with("internal error: ids are not ordered (error_test.cpp:")) << text;
  }
}

}
}
