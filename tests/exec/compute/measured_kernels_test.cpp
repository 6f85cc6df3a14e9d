// What is measured on CPU ranks, of how many ranks at once.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <utility>

#include "calibration/measure/kernels.h"
#include "exec/comm/world.h"
#include "models/families.h"
#include "sim/graph/training_step.h"

namespace foreshard {
namespace {

TEST(MeasuredKernels, NoMoreRanksComputeThanHaveCores) {
  EXPECT_EQ(turns_of(1, 1, 2), (Turns{1, 1}));
  EXPECT_EQ(turns_of(2, 1, 2), (Turns{2, 1}));
  EXPECT_EQ(turns_of(4, 1, 2), (Turns{2, 4 / 2.0}));
  EXPECT_EQ(turns_of(2, 2, 3), (Turns{1, 2 * 2 / 3.0}));
  EXPECT_EQ(turns_of(3, 8, 2), (Turns{1, 3}));
}

MeasuredJob job() {
  ModelDims dims = family_dims("llama").value();
  dims.name = "small";
  dims.source = "tests";
  dims.layers = 2;
  dims.hidden = 128;
  dims.heads = 4;
  dims.kv_heads = 2;
  dims.head_dim = 32;
  dims.ffn = 256;
  dims.vocabulary = 128;
  dims.max_positions = dims.position_rows = 64;
  return {build_model(dims, Stack::kNative), 32, 2};
}

// Two heads of keys and values are not cut in four.
TEST(MeasuredKernels, AreOfEveryPartThatATensorParallelPlanComputes) {
  const std::vector<MeasuredJob> parts = over_tp(job(), DType::kFp32, 4);
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_EQ(parts[0].tp, 1);
  EXPECT_EQ(parts[1].tp, 2);

  using Shape = std::tuple<std::int64_t, std::int64_t, std::int64_t>;
  const auto world = std::move(thread_worlds(1).front());
  MeasureRequest request;
  request.seconds = 1e-3;
  Bench bench(*world, request.seconds);
  Json rows = Json::array();
  measure_kernels(parts[1], request, bench, *world, rows);
  std::set<Shape> measured;
  std::set<std::pair<int, int>> heads;
  for (const Json& row : rows) {
    if (row["kind"] == "gemm") measured.insert({row["m"], row["n"], row["k"]});
    if (row["kind"] == "attention") heads.insert({row["heads"], row["kv_heads"]});
  }
  EXPECT_EQ(heads, (std::set<std::pair<int, int>>{{4 / 2, 2 / 2}}));

  Plan plan;
  plan.runtime = {RuntimeKind::kNative, "1"};
  plan.host = HostKind::kComputes;
  plan.mesh.tp = 2;
  plan.batch = {32, 2, 1};
  std::set<Shape> needed;
  for (const Kernel& kernel : build_training_step(job().model, plan).kernels) {
    if (kernel.kind == KernelKind::kGemm) needed.insert({kernel.m, kernel.n, kernel.k});
  }
  EXPECT_EQ(measured, needed);
}

}  // namespace
}  // namespace foreshard
