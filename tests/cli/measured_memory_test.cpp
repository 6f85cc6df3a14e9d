// The engine's memory on a GPU, as forecast today, against what an H100 said: rows of a round
// (exec/gpu/README.md). Allocated leaves out the library's workspace of 32 MiB. The engine of that
// day held its gradients all the time, beside which nothing has changed.
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "tests/cli/program.h"

namespace foreshard {
namespace {

TEST(MeasuredMemory, OfTheEngineIsWhatAnH100Said) {
  std::ifstream rows(FORESHARD_SOURCE_DIR "/reports/validation/h100-sxm-20261126T163615Z/plans.jsonl");
  constexpr double kWorkspace = 32 << 20;
  int judged = 0;
  for (std::string line; std::getline(rows, line); ++judged) {
    const auto row = nlohmann::json::parse(line);
    const auto model = row.at("model").get<std::string>();
    SCOPED_TRACE(row.at("name").get<std::string>());
    const bool small = model == "tinyllama-1.1b";  // exec/gpu/round_plans.py: ONE, EIGHT
    std::string words = "predict --json --runtime native --model " + model + " --cluster " +
                        std::to_string(row.at("gpus").get<int>()) + "xh100-sxm" +
                        (small ? " --sequence 2048 --micro-batch 4" : " --sequence 8192 --micro-batch 1");
    for (const auto& [key, value] : row.at("set").items()) words += " --set " + key + "=" + value.get<std::string>();
    const auto memory = json_of(run(words)).at("memory");
    // In fp32: the shard, and two slots for the largest unit, the head.
    const double gradients = 4 * (small ? 1'100'048'384.0 : 8'030'261'248.0 / 64 + 2 * 128'256.0 * 4'096);
    double now = 0;
    for (const char* category : {"sharded_grad", "unsharded_grad"}) now += memory.at("at_peak").value(category, 0.0);
    const double allocated = row.at("peak_allocated_bytes");
    EXPECT_NEAR(memory.at("peak_allocated_bytes").at("value").get<double>() - now + gradients + kWorkspace, allocated,
        0.002 * allocated);
  }
  EXPECT_EQ(judged, 4);
}

}
}
