// The shipped profiles, and reading and writing them.
#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "calibration/machines.h"
#include "calibration/profile.h"
#include "calibration/profile_store.h"
#include "sim/base/error.h"

namespace foreshard {
namespace {

TEST(Profiles, SurviveWritingAndReading) {
  for (const Machine& machine : list_machines()) {
    const Json written = to_json(load_profile(machine.key));
    EXPECT_EQ(written, to_json(parse_calibration(to_text(written), "again"))) << machine.key;
  }
}

TEST(Profiles, LoadInMilliseconds) {
  double best = 1;
  for (int i = 0; i < 20; ++i) {
    const auto start = std::chrono::steady_clock::now();
    load_profile("h100-sxm");
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    best = std::min(best, taken.count());
  }
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "instrumented";
#endif
  EXPECT_LT(best, 3e-3);
}

TEST(Profiles, EveryNumberHasASource) {
  for (const Machine& machine : list_machines()) {
    const Calibration c = load_profile(machine.key);
    EXPECT_EQ(c.gpu, machine.key);
    EXPECT_FALSE(c.gemm_bf16.source.empty() || c.gemm_fp32.source.empty() || c.host.source.empty() ||
                 c.contention.source.empty() || c.sdpa_source.empty())
        << machine.key;
    EXPECT_FALSE(c.fabrics.empty()) << machine.key;
    for (const FabricCurve& curve : c.fabrics) EXPECT_FALSE(curve.source.empty());
    for (const AttentionCurve& curve : c.attention) EXPECT_FALSE(curve.source.empty());
    for (const MemoryCurve& curve : c.memory) EXPECT_FALSE(curve.source.empty());
    for (const FactorSpread& spread : c.spread) {
      EXPECT_FALSE(spread.source.empty());
      EXPECT_GT(spread.log_sd, 0.01);
      EXPECT_LT(spread.log_sd, 0.7);
    }
  }
}

// Both passes of what PyTorch runs, for every head dimension a model may have.
TEST(Profiles, HaveTheAttentionCurvesPyTorchNeeds) {
  for (const Machine& machine : list_machines()) {
    const Calibration c = load_profile(machine.key);
    for (const std::string& kernel : {c.sdpa_kernel, c.sdpa_preferred}) {
      for (const std::int64_t head_dim : {64, 128, 256}) {
        for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
          int found = 0;
          for (const AttentionCurve& curve : c.attention) {
            found += curve.kernel == kernel && curve.head_dim == head_dim && curve.pass == pass;
          }
          EXPECT_EQ(found, 1) << machine.key << ' ' << kernel << ' ' << head_dim;
        }
      }
    }
  }
}

// Two sequences of 2,048, 16 heads of 128 with a mask: Dao-AILab/flash-attention#1310.
TEST(Profiles, AttentionOnH20IsAsTimedThere) {
  const Calibration c = load_profile("h20");
  for (const auto& [kernel, seconds] : {std::pair{"fa2", 522e-6}, {"cudnn", 319e-6}, {"fa3", 319e-6}}) {
    for (const AttentionCurve& curve : c.attention) {
      if (curve.kernel != kernel || curve.head_dim != 128 || curve.pass != Pass::kForward) continue;
      const double full = 2.0 * 2 * 16 * 2048 * 2048 * 128 / (curve.efficiency * 148e12);
      const double fill = 1 + curve.c_half / (2 * 16 * 16 / 78.0);
      EXPECT_NEAR((full * (1 + curve.s_half / 2048) * fill + curve.overhead) / seconds, 1, 0.03) << kernel;
    }
  }
}

// Profiles of users may be older than a class.
TEST(Profiles, OlderOnesLackClasses) {
  Json json = to_json(load_profile("h100-sxm"));
  json["memory"].erase("generated_norm");
  json["memory"].erase("eager_norm_forward");
  const Calibration old = parse_calibration(to_text(json), "p.json");
  const auto fraction = [&](MemoryClass which) { return old.memory[at(which)].fraction; };
  EXPECT_EQ(fraction(MemoryClass::kGeneratedNorm), fraction(MemoryClass::kNormForward));
  EXPECT_EQ(fraction(MemoryClass::kEagerNormForward), fraction(MemoryClass::kElementwise));
}

TEST(Profiles, UnknownGpuListsTheKnown) {
  try {
    load_profile("k80");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::kMissingCapability);
    EXPECT_NE(std::string(error.what()).find("h100-sxm"), std::string::npos) << error.what();
  }
}

TEST(Profiles, ReaderIsStrict) {
  const Json good = to_json(load_profile("h100-sxm"));
  const auto expect_error = [](const Json& json, const char* expected) {
    try {
      parse_calibration(to_text(json), "p.json");
      ADD_FAILURE() << "accepted, expected: " << expected;
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find(expected), std::string::npos) << error.what();
    }
  };
  Json json = good;
  json["gemm_bf16"]["eficiency"] = 0.8;
  expect_error(json, "did you mean efficiency");
  json = good;
  json["gemm_bf16"].erase("k_half");
  expect_error(json, "k_half");
  json = good;
  json["contention"]["compute"] = 0.5;
  expect_error(json, "contention.compute");
  json = good;
  json["host"]["evidence"] = "guessed";
  expect_error(json, "host.evidence");
  json = good;
  json["schema"] = "foreshard.profile/9";
  expect_error(json, "foreshard.profile/1");
  json = good;
  json["fabrics"][0]["fixed_s"] = "20us";
  expect_error(json, "fixed_s");
  json = good;
  json.erase("fabrics");
  expect_error(json, "intra_node");
}

}
}
