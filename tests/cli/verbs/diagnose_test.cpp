// Why a job is not as forecast, and what to find out, as a user asks.
#include <gtest/gtest.h>

#include <string>

#include "tests/cli/program.h"

namespace foreshard {
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
  // The same snapshot beside a smaller job: its tensors are other ones.
  const auto other =
      json_of(run("diagnose --json --snapshot own.pickle --sequence 512 --micro-batch 3" + kJob));
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

TEST(DiagnoseVerb, AMessageOfMissingMemoryIsHeldAgainstThePlansTensors) {
  // 16 x 1024 x 50257 logits of 4 bytes are 3.07 GiB.
  write_temporary(
      "oom.log",
      "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.07 GiB. GPU 0 has "
      "a total capacity of 79.11 GiB of which 1.20 GiB is free. Of the allocated memory "
      "70.10 GiB is allocated by PyTorch, and 1.10 GiB is reserved by PyTorch but "
      "unallocated.\n");
  const auto diagnosis =
      json_of(run("diagnose --json --log oom.log --micro-batch 16 --sequence 1024" + kJob));
  EXPECT_NE(diagnosis.at("findings").dump().find("the logits in fp32"), std::string::npos)
      << diagnosis.at("findings").dump();
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

TEST(DiagnoseVerb, ScoresItselfOnPublishedThreads) {
  const auto score = json_of(run(std::string("diagnose --json --threads ") + FORESHARD_SOURCE_DIR +
                                 "/reports/diagnose/threads.yaml"));
  EXPECT_GE(score.at("threads").size(), 25U);
  EXPECT_GE(score.at("among_three").get<double>(), 0.75);
}

}  // namespace
}  // namespace foreshard
