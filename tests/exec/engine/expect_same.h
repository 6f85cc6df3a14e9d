// One run against another to the bit.
#pragma once

#include <gtest/gtest.h>

#include "tests/exec/engine/engine_runs.h"

namespace foreshard {

inline void expect_same(const EngineRun& run, const EngineRun& reference) {
  EXPECT_EQ(run.hash, reference.hash);
  EXPECT_EQ(run.losses, reference.losses);
  EXPECT_EQ(run.norms, reference.norms);
  EXPECT_EQ(run.tensors_held, 0);
}

}
