#include "sim/base/json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "sim/base/error.h"

namespace foreshard {
namespace {

TEST(Json, WritesKeysInOrderWithTwoSpacesAndANewlineAtTheEnd) {
  Json json;
  json["b"] = 1;
  json["a"]["list"] = {0.1, 1e300, 3};
  EXPECT_EQ(to_text(json),
      "{\n  \"b\": 1,\n  \"a\": {\n    \"list\": [\n      0.1,\n      1e+300,\n      3\n"
      "    ]\n  }\n}\n");
}

TEST(Json, RefusesWhatJsonCannotExpress) {
  for (const double value : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
    Json json;
    json["step"]["values"] = {1.0, value};
    try {
      to_text(json);
      ADD_FAILURE() << value;
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::kInternal);
      EXPECT_NE(std::string(error.what()).find("step.values.1"), std::string::npos) << error.what();
    }
  }
}

TEST(Json, ReplacesBytesThatAreNotUtf8) { EXPECT_EQ(to_text(Json("plan\xFF.yaml")), "\"plan\xEF\xBF\xBD.yaml\"\n"); }

}
}
