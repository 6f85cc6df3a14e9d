// What training steps say about latent factors: the sums, the posterior, and that no family is
// forecast with its own steps.
#include "calibration/training_evidence.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "calibration/profile_store.h"
#include "interop/steps/measured_tables.h"
#include "interop/steps/step_forecaster.h"
#include "interop/steps/training_job.h"

namespace foreshard {
namespace {

CsvTable published_steps() {
  return read_table(std::filesystem::path(FORESHARD_SOURCE_DIR) / "calibration/published/training_steps.csv");
}

// One factor with prior sd 0.1 and one row that says log(measured / forecast) = 0.06 with
// sensitivity 1 and noise 0.1: precision 100 + 100, information 100 * 0.06, so mean 0.03 and sd
// 1 / sqrt(200).
TEST(TrainingEvidence, PosteriorOfOneFactorByHand) {
  Calibration calibration = load_profile("a100-80gb");
  for (FactorSpread& spread : calibration.spread) spread.log_sd = 0.1;
  TrainingEvidence evidence = {.plan_log_sd = 0.04,
      .names = {"gemm a100"},
      .prior_log_sd = {0.1},
      .prior_log_mean = {0},
      .families = {{"A", 1, {{100}}, {100 * 0.06}}, {"B", 1, {{1e6}}, {1e6}}}};
  Cluster cluster;
  cluster.gpu.key = "a100-80gb";
  const FactorCauses names = causes_of(cluster, calibration, {"fa2", 128});
  const FactorKnowledge known = *informed(calibration, evidence, names, {"B"}).knowledge;
  EXPECT_NEAR(known.center[0], 0.03, 1e-9);
  EXPECT_NEAR(known.mixing[0][0], 1 / std::sqrt(200.0), 1e-9);
  EXPECT_EQ(known.informed_by, "A");
  EXPECT_EQ(known.plan_log_sd, 0.04);
  for (std::size_t f = 1; f < kFactors; ++f) {  // nobody said anything
    EXPECT_NEAR(known.center[f], 0, 1e-12);
    EXPECT_NEAR(known.mixing[f][f], 0.1, 1e-9);
  }
  const FactorKnowledge prior = *informed(calibration, evidence, names, {"A", "B"}).knowledge;
  EXPECT_NEAR(prior.center[0], 0, 1e-12);
  EXPECT_TRUE(prior.informed_by.empty());
}

// Products of a card that was measured are off by what its chip is; a borrowed curve's by more, and
// an early library's by yet more: spreads 0.04, 0.18 and 0.155 beside it, and 0.113 slower.
TEST(TrainingEvidence, CausesOfProductsAddUp) {
  Cluster measured, borrowed;
  measured.gpu.key = "h100-sxm";
  borrowed.gpu.key = "h100-96gb-500w";
  measured.gpu.architecture = borrowed.gpu.architecture = "hopper";
  Calibration known = load_profile("h100-sxm"), moved = known;
  known.spread[at(Factor::kGemm)].log_sd = 0.04;
  moved.spread[at(Factor::kGemm)].log_sd = 0.18;
  TrainingEvidence evidence = {.names = {"gemm h100"}, .prior_log_sd = {0.04}, .prior_log_mean = {0}};
  const auto gemm_sd = [&](const Cluster& cluster, const Calibration& calibration, GemmLibrary library) {
    const FactorCauses causes = causes_of(cluster, calibration, {"fa2", 128, library});
    return informed(calibration, evidence, causes, {}).knowledge->mixing[0][0];
  };
  EXPECT_NEAR(gemm_sd(measured, known, GemmLibrary::kCurrent), 0.04, 1e-6);
  EXPECT_NEAR(gemm_sd(borrowed, moved, GemmLibrary::kCurrent), 0.18, 1e-6);
  EXPECT_NEAR(gemm_sd(measured, known, GemmLibrary::kEarly), std::hypot(0.04, 0.155), 1e-6);
  EXPECT_NEAR(gemm_sd(borrowed, moved, GemmLibrary::kEarly), std::hypot(0.18, 0.155), 1e-6);
  measured.gpu.architecture = "ampere";  // its library was old already
  EXPECT_NEAR(gemm_sd(measured, known, GemmLibrary::kEarly), 0.04, 1e-6);
}

// A site's host and network say nothing of another's; its kernels do.
TEST(TrainingEvidence, HostsAndNetworksAreASitesOwn) {
  Cluster cluster;
  cluster.gpu.key = "a100-80gb";
  const Calibration calibration = load_profile("a100-80gb");
  const auto name = [&](Factor factor, const char* site) {
    const FactorCauses causes = causes_of(cluster, calibration, {"fa2", 128, GemmLibrary::kCurrent, site});
    return causes.at(at(factor)).front().name;
  };
  EXPECT_EQ(name(Factor::kGemm, "LF"), name(Factor::kGemm, ""));
  EXPECT_EQ(name(Factor::kHost, "LF"), "host LF");
  EXPECT_EQ(name(Factor::kInterNode, "LF"), "inter_node LF");
  const std::vector<std::string>& known = training_evidence().names;
  for (const Factor factor : {Factor::kHost, Factor::kInterNode}) {
    EXPECT_EQ(std::ranges::count(known, name(factor, "")), 0);
  }
}

TEST(TrainingEvidence, CardsOfOneChipShareTheirKernels) {
  Cluster forty, eighty;
  forty.gpu.key = "a100-40gb";
  eighty.gpu.key = "a100-80gb";
  const Calibration calibration = load_profile("a100-80gb");
  constexpr auto kAttention = at(Factor::kAttention);
  const auto attention = [&](const Cluster& cluster, const char* kernel, std::int64_t head_dim) {
    return causes_of(cluster, calibration, {kernel, head_dim}).at(kAttention).front().name;
  };
  EXPECT_EQ(attention(forty, "fa1", 64), attention(eighty, "fa1", 80));
  EXPECT_NE(attention(forty, "fa1", 64), attention(forty, "fa1", 128));
  EXPECT_NE(attention(forty, "fa1", 64), attention(forty, "fa2", 64));
}

// The file is what the published rows give, to the last digit.
TEST(TrainingEvidence, IsWhatThePublishedStepsGive) {
  EXPECT_EQ(to_json(gather_evidence(published_steps())).dump(), to_json(training_evidence()).dump())
      << "foreshard accuracy calibration/published/training_steps.csv --evidence "
         "calibration/evidence/training_steps.json";
}

// Every family that has a say is named, and leaving it out leaves nothing of it.
TEST(TrainingEvidence, NoFamilyIsForecastWithItsOwnSteps) {
  const TrainingEvidence& all = training_evidence();
  ASSERT_GE(all.families.size(), 3U);
  std::vector<TrainingRow> rows = read_training_rows(published_steps());
  for (const FamilyEvidence& family : all.families) {
    TrainingEvidence wild = all;  // what the family says is nonsense
    for (FamilyEvidence& each : wild.families) {
      if (each.family != family.family) continue;
      for (double& value : each.information) value = value * -7 + 1000;
    }
    for (const TrainingRow& row : rows) {
      if (family_of(row.id) != family.family || row.word("score") != "yes") continue;
      const TrainingJob job = training_job(row);
      const StepForecaster forecaster(job, std::vector<std::string>{family.family});
      const FactorKnowledge& used = *forecaster.calibration().knowledge;
      EXPECT_EQ(used.informed_by.find(family.family), std::string::npos);
      const FactorKnowledge other =
          *informed(load_profile(job.cluster.gpu.key), wild, forecaster.causes(), {family.family}).knowledge;
      const FactorKnowledge same =
          *informed(load_profile(job.cluster.gpu.key), all, forecaster.causes(), {family.family}).knowledge;
      EXPECT_EQ(other.center, same.center);
      break;  // one row of each
    }
  }
}

// Every eighth row, in the file's order.
CsvTable some_steps() {
  const std::filesystem::path path =
      std::filesystem::path(FORESHARD_SOURCE_DIR) / "calibration/published/training_steps.csv";
  std::ifstream file(path);
  std::string text, line;
  for (int number = 0; std::getline(file, line); ++number) {
    if (number == 0 || number % 8 == 1) text += line + "\n";
  }
  return CsvTable(text, "some steps");
}

// Every row appears, once for each quantity that it measured.
TEST(TrainingEvidence, EveryPublishedRowIsInTheAnswer) {
  const CsvTable table = some_steps();
  const std::vector<AccuracyRow> rows = score_training_steps(table);
  std::size_t steps = 0, scored = 0;
  for (const AccuracyRow& row : rows) {
    if (row.quantity != "step_time_s") continue;
    ++steps;
    scored += row.scored ? 1 : 0;
    if (!row.scored) {
      EXPECT_FALSE(row.reason.empty()) << row.id;
    } else {
      EXPECT_LE(row.low, row.predicted) << row.id;
      EXPECT_GE(row.high, row.predicted) << row.id;
    }
  }
  EXPECT_EQ(steps, table.rows());
  EXPECT_GT(scored, table.rows() * 8 / 10);
  EXPECT_LT(summarize_balanced(rows).median_abs_error, 0.07);
}

}
}
