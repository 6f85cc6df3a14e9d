// explain --run of a trace alone, as a user calls it. The traces of GPUs are forecasts written down
// as torch.profiler writes them; that of CPU ranks is a recording.
#include <gtest/gtest.h>

#include <filesystem>

#include "planner/job.h"
#include "tests/cli/program.h"
#include "tests/support/cuda_trace.h"

namespace foreshard {
namespace {

namespace fs = std::filesystem;

const std::string kTraces = std::string(FORESHARD_SOURCE_DIR) + "/tests/interop/traces";

// A trace of the job that the options name, on the GPUs of its cluster.
std::string traced(const std::vector<std::string>& set, bool shapes) {
  JobOptions options = {.model = "llama-3.2-1b", .cluster = "8xh100", .sequence = "2048", .assignments = {set}};
  const Job job = load_job(options);
  const Forecast made = forecast(job.model, job.resolved.plan, cost_model(job));
  CudaTraceOptions trace = {.shapes = shapes};
  return write_temporary("rank-0.trace.json", cuda_trace(made, made.timeline, trace));
}

nlohmann::ordered_json key_of(const nlohmann::ordered_json& answer, const std::string& key) {
  for (const auto& inferred : answer.at("inferred").at("keys")) {
    if (inferred.at("key") == key) return inferred;
  }
  return {{"value", ""}};
}

TEST(ExplainTrace, FindsTheJobAndItsForecastInATraceAlone) {
  const std::string trace = traced({"reshard_after_forward=never", "recompute=full"}, true);
  const auto json = json_of(run("explain --json --run " + trace));
  expect_follows_its_schema(json);
  EXPECT_EQ(json.at("asked").size(), 0U);
  EXPECT_EQ(key_of(json, "model").at("value"), "llama-3.2-1b");
  EXPECT_EQ(key_of(json, "cluster").at("value"), "8xh100");
  EXPECT_EQ(key_of(json, "reshard_after_forward").at("value"), "never");
  EXPECT_EQ(key_of(json, "recompute").at("value"), "full");
  EXPECT_EQ(key_of(json, "batch.sequence").at("value"), "2048");
  EXPECT_EQ(json.at("inferred").at("plan").at("recompute"), "full");
  // The run did as the forecast of its own job.
  EXPECT_EQ(json.at("difference_ns"), 0);
  EXPECT_EQ(json.at("trace").at("collectives").at("differences").size(), 0U);
  EXPECT_GT(json.at("trace").at("collectives").at("compared"), 0);
  // A small model that runs everything again: not to do so gains time.
  const auto& list = json.at("suggestions");
  const auto found =
      std::ranges::find_if(list, [](const auto& one) { return one.at("set").at(0) == "recompute=none"; });
  ASSERT_NE(found, list.end());
  const auto& best = *found;
  EXPECT_GT(best.at("gain_s"), 0);
  EXPECT_NEAR(
      best.at("step_s").get<double>() + best.at("gain_s").get<double>(), json.at("predicted_s").get<double>(), 1e-9);
}

TEST(ExplainTrace, EndsWithTheSettingsToChange) {
  const Outcome outcome = run("explain --run " + traced({"recompute=full"}, true));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  expect_says(outcome.out, "the job, as the trace shows it");
  const std::size_t settings = outcome.out.find("settings to change, by the forecast");
  ASSERT_NE(settings, std::string::npos);
  EXPECT_GT(settings, outcome.out.find("what differs most"));
  EXPECT_NE(outcome.out.find(". set recompute=none: -", settings), std::string::npos) << outcome.out;
}

TEST(ExplainTrace, AsksByNameForWhatTheTraceDoesNotTell) {
  const std::string trace = traced({}, false);
  const Outcome asked = run("explain --run " + trace);
  EXPECT_EQ(asked.exit_code, 2);
  expect_says(asked.out, "llama-3.2-1b");
  for (const char* flag : {"--sequence N", "--micro-batch N", "record_shapes=True"}) expect_says(asked.err, flag);
  const Outcome as_json = run("explain --json --run " + trace);
  EXPECT_EQ(as_json.exit_code, 2);
  const auto json = nlohmann::ordered_json::parse(as_json.out);
  expect_follows_its_schema(json);
  EXPECT_EQ(json.at("asked").size(), 2U);
  const auto told = json_of(run("explain --json --sequence 2048 --micro-batch 1 --run " + trace));
  EXPECT_EQ(told.at("difference_ns"), 0);
}

TEST(ExplainTrace, WhatTheUserSaysIsOverWhatWasInferred) {
  const std::string trace = traced({}, true);
  const auto json = json_of(run("explain --json --set prefetch.forward=2 --run " + trace));
  EXPECT_EQ(json.at("inferred").at("plan").at("prefetch").at("forward"), 2);
  EXPECT_EQ(key_of(json, "prefetch.forward").at("value"), "implicit");
}

TEST(ExplainTrace, RefusesATraceOfCpuRanksAgainstGpus) {
  const std::string trace = kTraces + "/fsdp2_cpu";
  const std::string model = " --model " + kTraces + "/model.json";
  for (const std::string& more : {std::string(), model}) {
    const Outcome refused = run("explain --cluster 8xh100 --run " + trace + more);
    EXPECT_EQ(refused.exit_code, 3);
    expect_says(refused.err, "CPU ranks over gloo");
    expect_says(refused.err, "--cluster local");
  }
  const Outcome planned = run("explain --cluster 2xh100 --plan " + kTraces + "/plan.yaml --run " + trace);
  EXPECT_EQ(planned.exit_code, 3);
  expect_says(planned.err, "CPU ranks over gloo");
}

TEST(ExplainTrace, InfersAPlanOfCpuRanksByTheirModel) {
  const std::string trace = kTraces + "/fsdp2_cpu";
  const Outcome asked = run("explain --run " + trace);
  EXPECT_EQ(asked.exit_code, 2);
  expect_says(asked.err, "--model NAME|config.json");
  const auto json = json_of(run("explain --json --run " + trace + " --model " + kTraces +
                                "/model.json --sequence 64 --micro-batch 2 --profile " + FORESHARD_SOURCE_DIR +
                                "/tests/fuzz/corpus/local_profile/two_ranks.json"));
  EXPECT_EQ(key_of(json, "mesh.shard").at("value"), "2");
  EXPECT_EQ(key_of(json, "units.head").at("value"), "with_norm");
  EXPECT_EQ(key_of(json, "optimizer.clip_norm").at("value"), "1.0");
  EXPECT_EQ(json.at("inferred").at("order_likeness"), 1.0);
  EXPECT_EQ(json.at("trace").at("missing").size(), 0U);
}

}
}
