// The central invariant: a plan never changes the numbers within one reduction order.
#include "exec/engine/engine.h"

#include <gtest/gtest.h>

#include "tests/exec/engine/engine_runs.h"

namespace foreshard {
namespace {

TEST(Engine, AnyNumberOfRanksGivesTheSameBits) {
  const ModelSpec model = small_model("llama");
  const EngineRun one = run_in_threads(model, small_plan(1), 3);
  for (const std::int64_t ranks : {2, 4}) {
    const EngineRun run = run_in_threads(model, small_plan(ranks), 3);
    EXPECT_EQ(run.hash, one.hash) << ranks;
    EXPECT_EQ(run.losses, one.losses) << ranks;
    EXPECT_EQ(run.norms, one.norms) << ranks;
  }
}

}  // namespace
}  // namespace foreshard
