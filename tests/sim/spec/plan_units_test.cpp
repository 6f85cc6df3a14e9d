// The numbers a plan may use for units are those of the units that are built.
#include <gtest/gtest.h>

#include "sim/graph/training_step.h"
#include "sim/spec/checks/plan_check.h"
#include "tests/support/fixtures.h"

namespace foreshard {
namespace {

TEST(PlanUnits, AreCountedAsTheyAreBuilt) {
  using enum UnitPlacement;
  const ModelSpec model = tiny_model(7);
  for (const RuntimeKind runtime : {RuntimeKind::kFsdp2, RuntimeKind::kNative}) {
    for (const UnitPlacement embedding : {kOwn, kRoot, kWithHead}) {
      for (const UnitPlacement head : {kOwn, kRoot, kWithNorm}) {
        const bool is_native = runtime == RuntimeKind::kNative;
        if (embedding == kWithHead && (is_native || head == kRoot)) continue;  // check() refuses
        for (const std::int64_t layers : {1, 3, 7}) {
          Plan plan = {.runtime = {runtime, newest_version(runtime)}};
          plan.batch.sequence = 128;
          plan.mesh = {8, 1};
          plan.units = {layers, embedding, head};
          const auto built = static_cast<std::int64_t>(list_units(model, plan).size());
          EXPECT_EQ(unit_count(plan, model), built)
              << to_string(runtime) << " " << to_string(embedding) << " " << to_string(head) << " " << layers;
        }
      }
    }
  }
}

}
}
