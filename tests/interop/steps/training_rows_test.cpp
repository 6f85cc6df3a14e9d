// Rows of training steps: the grammar, what breaks it, and how wide their forecasts are.
#include "interop/steps/training_rows.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "calibration/first_looks.h"
#include "interop/steps/measured_tables.h"
#include "interop/steps/step_forecaster.h"
#include "interop/steps/training_job.h"
#include "sim/base/error.h"
#include "sim/base/lookup.h"
#include "sim/base/text_file.h"
#include "sim/spec/checks/plan_check.h"
#include "tests/interop/training_cells.h"

namespace foreshard {
namespace {

TEST(TrainingRows, WhatBreaksTheGrammarIsSetAsideWithItsPlace) {
  struct Bad {
    const char* column;
    const char* cell;
  };
  for (const Bad& bad : {Bad{"attention_kernel", "fa4"}, Bad{"n_gpus", "0"}, Bad{"n_gpus", "-8"},
           Bad{"d_model", "1e3.5"}, Bad{"step_time_s", "-1"}, Bad{"step_time_s", "nan"}, Bad{"recompute", "every_0"},
           Bad{"reshard", "sometimes"}, Bad{"score", "maybe"}}) {
    Cells cells = small_run();
    cells[bad.column] = bad.cell;
    const CsvTable table = table_of({cells, small_run().size() == cells.size() ? small_run() : cells});
    const std::vector<AccuracyRow> rows = score_training_steps(table_of({cells}));
    ASSERT_EQ(rows.size(), 1U) << bad.column;
    EXPECT_FALSE(rows[0].scored) << bad.column;
    EXPECT_NE(rows[0].reason.find(bad.column), std::string::npos) << rows[0].reason;
    const std::vector<std::string> problems = grammar_problems(table_of({cells}));
    ASSERT_EQ(problems.size(), 1U);
    EXPECT_EQ(problems[0].find(std::string("runs.csv:2: ") + bad.column), 0U) << problems[0];
  }
}

// Unknown cells never fail; what is needed and missing is a reason, not an error.
TEST(TrainingRows, UnknownCellsAreForecastOrSetAside) {
  Cells cells = small_run();
  for (const char* column : {"attention_kernel", "norm_impl", "loss_impl", "gather_dtype"}) cells[column] = "unknown";
  cells["stack"] = "a_code_of_their_own";
  EXPECT_TRUE(score_training_steps(table_of({cells}))[0].scored);
  cells["gpu"] = "";
  const AccuracyRow without = score_training_steps(table_of({cells}))[0];
  EXPECT_FALSE(without.scored);
  EXPECT_NE(without.reason.find("gpu"), std::string::npos) << without.reason;
  cells["gpu"] = "h100-of-2031";
  EXPECT_FALSE(score_training_steps(table_of({cells}))[0].scored);
}

TEST(TrainingRows, IntervalsOfRowsWithOpenKernelsAreWider) {
  Cells stated = small_run();
  Cells open = small_run();
  // A family whose steps are known, and layers that no host keeps waiting: nothing else widens it.
  open["id"] = stated["id"] = "IE-1";
  open["d_model"] = stated["d_model"] = "4096";
  open["d_ff"] = stated["d_ff"] = "16384";
  open["stack"] = "generic";
  stated["stack"] = "generic";
  for (const auto& [column, word] : Cells{{"attention_kernel", "fa2"}, {"norm_impl", "layer_norm_low_precision"},
           {"residual_dtype", "bf16"}, {"loss_impl", "fused"}, {"optimizer_impl", "adamw_foreach"}}) {
    stated[column] = word;
    open[column] = "unknown";
  }
  const auto width = [](const Cells& cells) {
    const AccuracyRow row = score_training_steps(table_of({cells}))[0];
    EXPECT_TRUE(row.scored) << row.reason;
    return (row.high - row.low) / row.predicted;
  };
  EXPECT_GT(width(open), width(stated));
}

// Of the same row, under the name of a family that the evidence has (and is not used here) and of
// one that nobody has seen: by what first looks at codes with these facts were off by.
TEST(TrainingRows, AFamilyThatNobodyHasSeenIsLessCertain) {
  Cells cells = small_run();
  cells["network_gbit_s_per_node"] = "1600";
  const auto row_of = [&](const char* id) {
    cells["id"] = id;
    return score_training_steps(table_of({cells}))[0];
  };
  const auto upwards = [](const AccuracyRow& row) { return std::log(row.high / row.predicted); };
  const AccuracyRow known = row_of("IE-1"), unseen = row_of("X-1");
  EXPECT_TRUE(known.facts.empty());
  const double code = code_reach(first_looks(), first_looks().time, unseen.facts, "X").up;
  EXPECT_NEAR(upwards(unseen), std::hypot(upwards(known), code), 0.01);
  EXPECT_GT(upwards(unseen), upwards(known) + 0.01);
}

// Rows of which fields rest on a reading are of codes that take longer than they are described.
TEST(TrainingRows, FirstLooksShiftWhatIsForecast) {
  Cells cells = small_run();
  const AccuracyRow sure = score_training_steps(table_of({cells}))[0];
  cells["score"] = "flag";
  const AccuracyRow read = score_training_steps(table_of({cells}))[0];
  const FirstLooks& looks = first_looks();
  const double slower = code_shift(looks, looks.time, read.facts, "X") - code_shift(looks, looks.time, sure.facts, "X");
  EXPECT_GT(slower, 0.05);
  EXPECT_NEAR(read.predicted, sure.predicted * std::exp(slower), 1e-6 * sure.predicted);
}

// What `ask` promises of one run: half of the interval, which still holds as many as it should. Of
// published families whose steps have no say in their own forecasts.
TEST(TrainingRows, OneRunHalvesTheIntervalOfPublishedFamilies) {
  std::istringstream lines(
      read_text_file(FORESHARD_SOURCE_DIR "/calibration/published/training_steps.csv", kMaxTableBytes));
  std::string text, line;
  std::getline(lines, text);
  int kept = 0;
  for (int i = 0; std::getline(lines, line); ++i) {
    if (i % 7 != 0) continue;
    text += "\n" + line;
    ++kept;
  }
  ASSERT_GT(kept, 80);
  const std::vector<AccuracyRow> rows = score_training_steps(CsvTable(text, "steps.csv"));
  const std::vector<AccuracyRow> anchors = anchored(rows, 1);
  const AccuracySummary before = summarize_accuracy(pointers(rows));
  const AccuracySummary after = summarize_accuracy(pointers(anchors));
  EXPECT_NEAR(after.half_width / before.half_width, 0.5, 0.06);
  EXPECT_GE(after.coverage, 0.85 - 0.04);  // of all rows 88 %; these are few: a standard error
  EXPECT_LE(after.half_width, 0.055);
}

// Networks that rows say, one of each family and GPU, as a share of what the machine has at the most; the geometric
// mean that score_steps.cpp takes for a row that does not say, and what it is without any one table.
TEST(TrainingRows, NetworksThatAreSaid) {
  const char* const tables[] = {"calibration/published/training_steps", "reports/unseen/unseen_steps",
      "reports/unseen/unseen_steps_second", "reports/unseen/unseen_steps_third"};
  std::vector<std::vector<double>> logs;
  for (const char* const name : tables) {
    std::map<std::string, double> said;
    const std::string path = fmt::format("{}/{}.csv", FORESHARD_SOURCE_DIR, name);
    for (const TrainingRow& row : read_training_rows(CsvTable(read_text_file(path, kMaxTableBytes), path))) {
      if (!row.has("network_gbit_s_per_node") || row.word("gpu").starts_with("v100")) continue;
      TrainingRow silent = row;
      silent.numbers.erase("network_gbit_s_per_node");
      const TrainingJob job = training_job(silent);
      if (!leaves_network_open(silent, job.cluster)) continue;
      const double most = *with_network(silent, job.cluster, 1).number("network_gbit_s_per_node");
      const double share = *row.number("network_gbit_s_per_node") / most;
      said[fmt::format("{} {} {}", family_of(row.id), row.word("gpu"), share)] = std::log(share);
    }
    for (std::vector<double>& of_table = logs.emplace_back(); const auto& [what, log] : said) of_table.push_back(log);
  }
  for (std::size_t left_out = 0; left_out <= logs.size(); ++left_out) {
    double sum = 0, count = 0;
    for (std::size_t i = 0; i < logs.size(); ++i) {
      if (i == left_out) continue;
      for (const double log : logs[i]) sum += log, count += 1;
    }
    const double mean = std::exp(sum / count);
    if (left_out == logs.size()) {
      EXPECT_NEAR(mean, 0.64, 0.01);
    }
    EXPECT_GT(mean, 0.5) << left_out;
    EXPECT_LT(mean, 0.76) << left_out;
  }
}

TEST(TrainingRows, ANetworkThatIsNotSaidMayBeAQuarterOfTheMachines) {
  Cells cells = unknown_run("fsdp1");
  const AccuracyRow open = score_training_steps(table_of({cells}))[0];
  const auto with = [&](const char* gbit_s) {
    cells["network_gbit_s_per_node"] = gbit_s;
    return score_training_steps(table_of({cells}))[0];
  };
  const AccuracyRow whole = with("3200"), likely = with("2048"), quarter = with("800");
  EXPECT_EQ(open.predicted, likely.predicted);
  EXPECT_GE(open.predicted, whole.predicted);
  ASSERT_GT(quarter.predicted, open.predicted);
  // What is open besides and the slower network, as the root of squares.
  const double reach = std::log(quarter.predicted / open.predicted);
  EXPECT_NEAR(std::log(open.high / open.predicted), std::hypot(std::log(likely.high / likely.predicted), reach), 1e-9);
}

// On two cards without a switch: as far upwards as the slowest exchange through a host, 4 GB/s of
// bus bandwidth, is slower.
TEST(TrainingRows, CardsThatArePluggedInMayExchangeThroughTheHost) {
  Cells cells = unknown_run("ddp");
  cells["gpu"] = "l40s";
  cells["n_gpus"] = cells["gpus_per_node"] = cells["replicate_group"] = "2";
  TrainingJob job = training_job(row_of(cells));
  ASSERT_TRUE(may_exchange_through_host(job.cluster));
  job.cluster.node.gpu_link = BytesPerSecond(4e9);
  const std::vector<std::string> own = {"X"};
  const double slow = StepForecaster(job, own).step(0).seconds.value;
  const AccuracyRow row = score_training_steps(table_of({cells}))[0];
  ASSERT_TRUE(row.scored) << row.reason;
  const double shift = code_shift(first_looks(), first_looks().time, row.facts, "X");
  EXPECT_GE(row.high, slow * std::exp(shift));
  EXPECT_GT(slow * std::exp(shift), 1.02 * row.predicted);
}

// tokens/s/GPU x GPUs x seconds = tokens: 128 x 2048 / (1000 x 16) s.
// Megatron-LM's layers were its own until 2024-04, and what ran before PyTorch 2.0 is less certain.
TEST(TrainingRows, ADateSaysWhoseLayersAndKernelsRan) {
  Cells cells = unknown_run("zero1");
  cells["tp"] = "2", cells["shard_group"] = "1", cells["replicate_group"] = "8";
  cells.erase("runtime_version");
  const auto of = [&](const char* date) {
    cells["commit_date"] = date;
    const CsvTable table = table_of({cells});
    const Plan plan = training_job(read_training_rows(table)[0]).resolved.plan;
    const CodeFacts facts = score_training_steps(table)[0].facts;
    return std::pair(plan.runtime.version, contains(facts, CodeFacts::value_type("before_torch_2", 1)));
  };
  EXPECT_EQ(of("2022-11"), std::pair(std::string(kLocalMegatron), true));
  EXPECT_EQ(of("2023-12"), std::pair(std::string(kLocalMegatron), false));
  EXPECT_EQ(of("2024-06").first, newest_version(RuntimeKind::kMegatron));
}

TEST(TrainingRows, StepTimeFollowsFromTokensPerSecond) {
  Cells cells = small_run();
  cells["step_time_s"] = "";
  cells["tokens_per_s_per_gpu"] = "1000";
  const AccuracyRow row = score_training_steps(table_of({cells}))[0];
  EXPECT_EQ(row.quantity, "step_time_s");
  EXPECT_NEAR(row.measured, 128.0 * 2048 / 16000, 1e-9);
}

}
}
