// Why a job is not as forecast, and what to find out, as a user asks.
#include <gtest/gtest.h>

#include <string>

#include "planner/job.h"
#include "sim/simulate/simulate.h"
#include "tests/cli/program.h"
#include "tests/support/cuda_trace.h"

namespace foreshard::diagnose_test {
namespace {

const std::string kJob = " --model gpt2 --cluster 8xa100 --set stack=hf_trainer ";

TEST(DiagnoseVerb, DocumentsFollowTheirSchemas) {
  const auto diagnosis = json_of(run("diagnose --json --measured step=3s" + kJob));
  EXPECT_EQ(diagnosis.at("schema"), "foreshard.diagnosis/1");
  expect_follows_its_schema(diagnosis);
  double sum = diagnosis.at("as_forecast").get<double>();
  for (const auto& cause : diagnosis.at("causes")) sum += cause.at("probability").get<double>();
  EXPECT_LE(sum, 1 + 1e-9);
  const auto questions = json_of(run("ask --json" + kJob));
  EXPECT_EQ(questions.at("schema"), "foreshard.questions/1");
  expect_follows_its_schema(questions);
}

TEST(DiagnoseVerb, ASnapshotIsHeldAgainstTheForecast) {
  EXPECT_EQ(run("predict" + kJob + "--memory-snapshot own.pickle").exit_code, 0);
  const auto own = json_of(run("diagnose --json --snapshot own.pickle" + kJob));
  const std::string findings = own.at("findings").dump();
  EXPECT_NE(findings.find("the snapshot has"), std::string::npos) << findings;
  EXPECT_EQ(findings.find("none of that size"), std::string::npos) << findings;
  EXPECT_NEAR(own.at("memory_ratio").get<double>(), 1, 0.03);  // with the allocator's rounding
  EXPECT_EQ(own.at("ran_out"), false);
  // The same snapshot beside a smaller job: its tensors are other ones.
  const auto other = json_of(run("diagnose --json --snapshot own.pickle --sequence 512 --micro-batch 3" + kJob));
  EXPECT_NE(other.at("findings").dump().find("the snapshot has"), std::string::npos);
  write_temporary("code.pickle",
      "\x80\x02"
      "cos\nsystem\n.");
  const Outcome code = run("diagnose --snapshot code.pickle" + kJob);
  EXPECT_EQ(code.exit_code, 3) << code.err;
  EXPECT_NE(code.err.find("code.pickle: byte 2"), std::string::npos) << code.err;
}

TEST(AskVerb, IsAFlagOfPredictToo) {
  auto asked = json_of(run("ask --json" + kJob));
  auto flagged = json_of(run("predict --ask --json" + kJob));
  EXPECT_EQ(asked.at("facts"), flagged.at("facts"));
  EXPECT_EQ(asked.at("half_width"), flagged.at("half_width"));
}

TEST(AskVerb, TakesAPlanByItsName) {
  write_temporary("plan.yaml", "model: gpt2\ncluster: 8xa100\nruntime: fsdp2\n");
  const Outcome named = run("ask plan.yaml --json");
  EXPECT_EQ(named.exit_code, 0) << named.err;
  EXPECT_GT(json_of(named).at("half_width").get<double>(), 0);
}

TEST(DiagnoseVerb, ALogNamesTheLink) {
  write_temporary("train.log",
      "NCCL INFO Channel 00/0 : 1[0] -> 8[0] [receive] via NET/Socket/0\n"
      "step: 10  loss: 10.2  grad_norm: 3.2  memory: 65.02GiB(82.1%)  tps: 3,120\n"
      "step: 20  loss:  9.2  grad_norm: 3.2  memory: 65.02GiB(82.1%)  tps: 3,110\n");
  const auto diagnosis =
      json_of(run("diagnose --json --log train.log --model llama-3.1-8b --cluster 64xh100 "
                  "--set stack=torchtitan_2025"));
  EXPECT_EQ(diagnosis.at("causes").at(0).at("name"), "slow_link");
  EXPECT_GT(diagnosis.at("step_ratio").get<double>(), 1);
}

// The step of 16 GPUs, with work so many times as long, as torch.profiler writes it.
std::string traced(const std::vector<Factor>& factors, double times) {
  JobOptions options = {
      .model = "llama-3.2-1b", .cluster = "16xh100", .sequence = "8192", .assignments = {{"stack=torchtitan_2025"}}};
  const Job job = load_job(options);
  const CostModel costs = cost_model(job);
  const Forecast made = forecast(job.model, job.resolved.plan, costs);
  FactorDraw draw = costs.center();
  for (const Factor factor : factors) draw[at(factor)] *= times;
  const Timeline timeline = Simulator().simulate(made.graph, costs.price(made.graph, draw));
  return write_temporary("rank-0.trace.json", cuda_trace(made, timeline));
}

nlohmann::ordered_json diagnosis_of_trace(const std::string& trace) {
  return json_of(
      run("diagnose --json --model llama-3.2-1b --cluster 16xh100 --sequence 8192 --set stack=torchtitan_2025 --run " +
          trace));
}

// Of a trace the times of compute, of collectives and of waiting are told apart.
TEST(DiagnoseVerb, ATraceNamesWhatIsSlow) {
  const auto as_forecast = diagnosis_of_trace(traced({}, 1));
  expect_follows_its_schema(as_forecast);
  EXPECT_NEAR(as_forecast.at("step_ratio").get<double>(), 1, 0.02);
  const double right = as_forecast.at("as_forecast").get<double>();
  EXPECT_GT(right, as_forecast.at("causes").at(0).at("probability").get<double>());

  const auto link = diagnosis_of_trace(traced({Factor::kInterNode}, 6));
  EXPECT_GT(link.at("step_ratio").get<double>(), 1.05);
  EXPECT_EQ(link.at("causes").at(0).at("name"), "slow_link") << link.at("causes").dump();
  EXPECT_LT(link.at("as_forecast").get<double>(), right);

  const auto clocks = diagnosis_of_trace(traced({Factor::kGemm, Factor::kAttention}, 2));
  EXPECT_GT(clocks.at("step_ratio").get<double>(), 1.05);
  EXPECT_EQ(clocks.at("causes").at(0).at("name"), "clock_cap") << clocks.at("causes").dump();
}

TEST(DiagnoseVerb, ATraceOfAnotherJobIsRefused) {
  const Outcome other = run("diagnose --model gpt2 --cluster 8xa100 --run " + traced({}, 1));
  EXPECT_NE(other.exit_code, 0);
  EXPECT_NE(other.err.find("rank-0.trace.json"), std::string::npos) << other.err;
}

TEST(DiagnoseVerb, AMessageOfMissingMemoryIsHeldAgainstThePlansTensors) {
  // 16 x 1024 x 50257 logits of 4 bytes are 3.07 GiB.
  write_temporary("oom.log",
      "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.07 GiB. GPU 0 has a total capacity of 79.11 GiB "
      "of which 1.20 GiB is free. Of the allocated memory 70.10 GiB is allocated by PyTorch, and 1.10 GiB is reserved "
      "by PyTorch but unallocated.\n");
  const auto diagnosis = json_of(run("diagnose --json --log oom.log --micro-batch 16 --sequence 1024" + kJob));
  EXPECT_NE(diagnosis.at("findings").dump().find("the logits in fp32"), std::string::npos)
      << diagnosis.at("findings").dump();
}

std::string out_of_memory(const std::string& tried, const std::string& allocated, const std::string& others) {
  return "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate " + tried +
         ". GPU 0 has a total capacity of 79.11 GiB of which 100.00 MiB is free. " + others +
         "Including non-PyTorch memory, this process has 70.00 GiB memory in use. Of the allocated memory " +
         allocated + " is allocated by PyTorch, and 1.10 GiB is reserved by PyTorch but unallocated.\n";
}

// What a job that ran out had allocated is no peak: a plan that does not fit runs out wherever it
// comes to the end of the GPU.
TEST(DiagnoseVerb, APlanThatDoesNotFitRunsOutOfMemoryAsForecast) {
  const std::string job = " --model llama-3.1-8b --cluster 8xh100 --micro-batch 2 --json --log ";
  const std::string log = write_temporary("end.log", out_of_memory("224.00 MiB", "68.00 GiB", ""));
  const auto wide = json_of(run("diagnose" + job + log));
  const auto& first = wide.at("causes").at(0);
  EXPECT_GT(wide.at("as_forecast").get<double>(), first.at("probability").get<double>());
  EXPECT_TRUE(wide.at("memory_ratio").is_null());
  EXPECT_NE(wide.at("findings").dump().find("it fits with --set"), std::string::npos) << wide.at("findings").dump();
  for (const auto& cause : wide.at("causes")) {  // nothing of its time was measured
    if (cause.at("name") == "clock_cap") {
      EXPECT_EQ(cause.at("probability"), 0);
    }
  }
  // With its blocks recomputed it fits by far: something else is there.
  const auto narrow = json_of(run("diagnose --set recompute=full" + job + log));
  EXPECT_LT(narrow.at("as_forecast").get<double>(), 0.1) << narrow.dump();
  EXPECT_GT(narrow.at("memory_ratio").get<double>(), 1);
  EXPECT_EQ(narrow.at("ran_out"), true);
}

TEST(DiagnoseVerb, AnotherProcessOnTheGpuIsNamed) {
  const std::string log =
      write_temporary("two.log", out_of_memory("224.00 MiB", "28.00 GiB", "Process 71 has 40.00 GiB memory in use. "));
  const auto diagnosis =
      json_of(run("diagnose --model llama-3.1-8b --cluster 8xh100 --set recompute=full --json --log " + log));
  EXPECT_EQ(diagnosis.at("causes").at(0).at("name"), "other_process") << diagnosis.dump();
  EXPECT_NE(diagnosis.at("findings").dump().find("40.00 GiB"), std::string::npos);
}

TEST(DiagnoseVerb, SaysWhatIsWrongWithItsInput) {
  const Outcome unit = run("diagnose --measured step=3" + kJob);
  EXPECT_EQ(unit.exit_code, 2);
  EXPECT_NE(unit.err.find("needs a unit"), std::string::npos) << unit.err;
  EXPECT_EQ(run("diagnose --measured speed=3" + kJob).exit_code, 2);
  EXPECT_EQ(run("diagnose" + kJob).exit_code, 2);
  write_temporary("none.txt", "nothing of a step\n");
  const Outcome none = run("diagnose --log none.txt" + kJob);
  EXPECT_EQ(none.exit_code, 3);
  EXPECT_NE(none.err.find("none.txt:1"), std::string::npos) << none.err;
  write_temporary("other.log",
      "INFO - Model llama3 8B size: 8,030,261,248 total parameters\n"
      "step: 10  loss: 10.2  memory: 6.02GiB(7.66%)  tps: 3,120\n");
  const Outcome other = run("diagnose --log other.log" + kJob);
  EXPECT_EQ(other.exit_code, 3);
  EXPECT_NE(other.err.find("other.log:1"), std::string::npos) << other.err;
}

TEST(DiagnoseVerb, WhatIsSaidIsHeldAgainstPublishedThreads) {
  const std::string said = "diagnose --json --model llama-3.1-8b --cluster 16xh100 --said ";
  const auto link = json_of(run(said + "'16 GPUs on two nodes are eight times slower than a single node'"));
  EXPECT_EQ(link.at("causes").at(0).at("name"), "slow_link");
  EXPECT_NE(link.at("causes").at(0).at("like").get<std::string>().find('#'), std::string::npos);
  EXPECT_EQ(link.at("explained"), true);
  const auto leak =
      json_of(run(said + "'memory climbs by 40 MB in each step' --said 'the losses are put into a list'"));
  EXPECT_EQ(leak.at("causes").at(0).at("name"), "memory_growth");
  EXPECT_EQ(json_of(run(said + "'lorem ipsum'")).at("explained"), false);
}

TEST(DiagnoseVerb, ScoresItselfOnPublishedThreads) {
  const auto score =
      json_of(run(std::string("diagnose --json --threads ") + FORESHARD_SOURCE_DIR + "/reports/diagnose/threads.yaml"));
  EXPECT_GE(score.at("threads").size(), 490U);
  EXPECT_GE(score.at("among_three").get<double>(), 0.75);  // each by the others
}

}
}
