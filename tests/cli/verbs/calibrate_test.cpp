// calibrate with a table of products, run as a user does.
#include <gtest/gtest.h>

#include <map>

#include "tests/cli/program.h"

namespace foreshard {
namespace {

using Json = nlohmann::ordered_json;

// Six large products of an L40S at half of its 362 TFLOP/s.
const std::string kTable =
    "source,gpu,m,n,k,dtype,tflops,latency_us,layout,notes\n"
    "mine,NVIDIA L40S,4096,4096,4096,bf16,181,,,\n"
    "mine,NVIDIA L40S,8192,4096,4096,bf16,181,,,\n"
    "mine,NVIDIA L40S,8192,8192,4096,bf16,181,,,\n"
    "mine,NVIDIA L40S,8192,8192,8192,bf16,181,,,\n"
    "mine,NVIDIA L40S,4096,14336,4096,bf16,181,,,\n"
    "mine,NVIDIA L40S,8192,14336,4096,bf16,181,,,\n";

TEST(Calibrate, SaysWhatToMeasureNext) {
  const std::string table = write_temporary("products.csv", kTable);
  const std::string profile = write_temporary("profile.json", "");
  const Json answer = json_of(run("calibrate " + table + " --out " + profile + " --json"));
  ASSERT_EQ(answer["next"].size(), 8U);  // seven factors and the training code
  expect_follows_its_schema(answer);
  std::map<std::string, double> shares;
  double last = 1;
  for (const Json& next : answer["next"]) {
    EXPECT_LE(next["share"].get<double>(), last);  // the widest first
    last = next["share"];
    shares[next["factor"]] = last;
    EXPECT_FALSE(next["command"].get<std::string>().empty());
  }
  // An L40S has no NVLink: what moves between its nodes and GPUs is what is known least.
  EXPECT_GT(shares["matrix products"], 0);
  const Outcome text = run("calibrate " + table + " --out " + profile);
  EXPECT_NE(text.out.find("what would narrow forecasts most"), std::string::npos) << text.out;
}

}
}
