#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "calibration/measure/measure.h"
#include "models/families.h"
#include "sim/graph/training_step.h"

namespace foreshard {
namespace {

TEST(MeasuredKernels, NoMoreRanksComputeThanHaveCores) {
  EXPECT_EQ(turns_of(2, 1, 2), (Turns{2, 1}));
  EXPECT_EQ(turns_of(4, 1, 2), (Turns{2, 4 / 2.0}));
  EXPECT_EQ(turns_of(2, 2, 3), (Turns{1, 2 * 2 / 3.0}));
  EXPECT_EQ(turns_of(3, 8, 2), (Turns{1, 3}));
}

TEST(MeasuredKernels, AreOfEveryPartThatATensorParallelPlanComputes) {
  const ModelDims dims = family_dims("llama", "small", {2, 128, 4, 2, 32, 256, 128, 64});
  const MeasuredJob whole{build_model(dims, Stack::kNative), 32, 2};
  const std::vector<MeasuredJob> parts = over_tp(whole, DType::kFp32, 4);
  ASSERT_EQ(parts.size(), 2U);  // two heads of keys and values are not cut in four
  const auto world = std::move(thread_worlds(1).front());
  MeasureRequest request;
  Bench bench(*world, 1e-3);
  Json rows = Json::array();
  measure_kernels(parts[1], request, bench, *world, rows);
  using Shape = std::tuple<std::int64_t, std::int64_t, std::int64_t>;
  std::set<Shape> measured, needed;
  for (const Json& row : rows) {
    if (row["kind"] == "gemm") measured.insert(Shape(row["m"], row["n"], row["k"]));
    EXPECT_EQ(row.value("kv_heads", 2 / 2), 2 / 2);
  }
  Plan plan = {.runtime = {RuntimeKind::kNative, "1"}, .host = HostKind::kComputes};
  plan.mesh.tp = 2;
  plan.batch = {32, 2, 1};
  for (const Kernel& kernel : build_training_step(whole.model, plan).kernels) {
    if (kernel.kind == KernelKind::kGemm) needed.insert({kernel.m, kernel.n, kernel.k});
  }
  EXPECT_EQ(measured, needed);
}

}
}
