// Captures of programs: forecasts of a kept one, and foreshard-null around a small program that
// makes CUDA's calls itself.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "sim/base/lookup.h"
#include "sim/spec/fsdp2_version.h"
#include "tests/cli/program.h"

namespace foreshard {
namespace {

// FSDP2 of PyTorch 2.11 as rank 0 of 8; its train.py lies beside it. What its allocator said:
constexpr double kPeakAllocated = 3497353216;
const std::string kCapture = FORESHARD_SOURCE_DIR "/tests/captures/fsdp2_8";

TEST(Captured, AKeptCaptureIsForecast) {
  const Outcome outcome = run("predict --json --capture " + kCapture + " --cluster 8xh100");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto report = json_of(outcome);
  expect_follows_its_schema(report);
  EXPECT_EQ(report["origin"], "captured");
  EXPECT_EQ(report["memory"]["peak_allocated_bytes"]["value"], kPeakAllocated);
  EXPECT_GE(report["memory"]["peak_reserved_bytes"]["value"], kPeakAllocated);
  const double seconds = report["step"]["seconds"]["value"];
  EXPECT_LT(report["step"]["seconds"]["low"], seconds);
  EXPECT_GT(report["step"]["seconds"]["high"], seconds);
  EXPECT_GT(report["capture"]["host_s"], 0);
  EXPECT_TRUE(report["capture"]["unknown_kernels"].empty());
  EXPECT_EQ(comparable(outcome), comparable(run("predict --json --capture " + kCapture + " --cluster 8xh100")));
}

// Units of six blocks and the root: seven gathers forward, six backward (the root keeps its
// parameters), seven reductions, and the norm of the gradients.
TEST(Captured, TheScheduleHasEveryCollective) {
  const Outcome outcome = run("schedule --capture " + kCapture + " --cluster 8xh100");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto count = [&](const std::string& kind) {
    std::size_t rows = 0;
    for (std::size_t at = outcome.out.find("," + kind + ","); at != std::string::npos;
         at = outcome.out.find("," + kind + ",", at + 1)) {
      ++rows;
    }
    return rows;
  };
  EXPECT_EQ(count("all_gather"), 2 * 13U);  // once as kind, once as stream
  EXPECT_EQ(count("all_reduce"), 2 * 1U);
  expect_says(outcome.out, ",reduce_scatter,");
}

// "all_gather 4194304", in the order of the schedule.
std::vector<std::string> collectives(const Outcome& schedule) {
  std::vector<std::string> found;
  std::istringstream lines(schedule.out);
  for (std::string line; std::getline(lines, line);) {
    std::vector<std::string> cells;
    std::istringstream rest(line);
    for (std::string cell; std::getline(rest, cell, ',');) cells.push_back(cell);
    if (cells.size() > 7 && (cells[1] == "all_gather" || cells[1] == "reduce_scatter" || cells[1] == "all_reduce")) {
      found.push_back(cells[1] + " " + cells[7]);
    }
  }
  return found;
}

// Small Llamas: unit by unit with norm and head together, replicated in fp32 under autocast, under
// FullyShardedDataParallel, and DeepSpeed's. Lowered again, each plan is its capture; where a step
// ends is the program's matter (ZeRO gathers behind its optimizer).
TEST(Captured, AnImportedPlanIsTheCapture) {
  for (const auto& [name, said, count] :
      {std::tuple("llama_fsdp2_8", "head: with_norm", 24U), std::tuple("llama_autocast_8", "residual: fp32", 2U),
          std::tuple("llama_fsdp1_8", "use_orig_params: true", 8U),
          std::tuple("llama_zero2_8", "runtime: zero2@0.19", 4U),
          std::tuple("llama_zero3_8", "runtime: zero3@0.19", 10U), std::tuple("llama_tp_8", "tables: head", 9U)}) {
    const std::string capture = FORESHARD_SOURCE_DIR "/tests/captures/" + std::string(name);
    const Outcome imported = run("import " + capture + " --out mine.yaml --plan plan.yaml");
    ASSERT_EQ(imported.exit_code, 0) << imported.err;
    expect_says(read_temporary("plan.yaml"), said);
    const auto planned = collectives(run("schedule --plan plan.yaml"));
    EXPECT_EQ(planned.size(), count) << name;
    auto done = collectives(run("schedule --capture " + capture + " --cluster 8xh100"));
    for (std::size_t turn = 0; turn < done.size() && done != planned; ++turn) {
      std::rotate(done.begin(), done.begin() + 1, done.end());
    }
    EXPECT_EQ(planned, done) << name;
    const auto captured = json_of(run("predict --json --capture " + capture + " --cluster 8xh100"));
    const auto report = json_of(run("predict --json --plan plan.yaml"));
    // cuBLAS' workspaces of two threads are the libraries' in a plan's memory.
    const double asked = captured["capture"]["requested_peak_bytes"].get<double>() - (64 << 20);
    EXPECT_NEAR(report["memory"]["peak_allocated_bytes"]["value"].get<double>() / asked, 1, 0.002) << name;
    // What the allocator holds of models this small is a few segments of 20 MiB.
    const char* const held = "peak_reserved_bytes";
    EXPECT_NEAR(
        report["memory"][held]["value"].get<double>(), captured["memory"][held]["value"].get<double>(), 32 << 20)
        << name;
  }
  const Outcome nameless = run("import " + kCapture + " --out mine.yaml");
  EXPECT_EQ(nameless.exit_code, 6);
  expect_says(nameless.err, "foreshard predict --capture");
}

// A GPT of two blocks in plain PyTorch (train.py beside its captures), of two sizes, with
// operations that no layer has a word for (a running sum that decays, halves of a product): its
// layers are read off, alike ones once, and forecast as it was; search cuts it for eight GPUs.
TEST(Captured, AProgramOfItsOwnIsImportedByItsModules) {
  const std::string folder = FORESHARD_SOURCE_DIR "/tests/captures/modules_gpt/";
  const Outcome imported = run("import " + folder + "large " + folder + "small --out mine.yaml --plan plan.yaml");
  ASSERT_EQ(imported.exit_code, 0) << imported.err;
  expect_says(read_temporary("plan.yaml"), "zero_grad: after_forward");
  const std::string model = read_temporary("mine.yaml");
  expect_says(model, R"("name":"blocks.{}","repeat":2)");
  expect_says(model, R"("kv_heads":4,"head_dim":64,"causal":true)");
  // A running sum is turned round, summed and turned back: tensors beside its gradient.
  expect_says(model, R"("backward_temporaries":["temporary_)");
  const auto captured = json_of(run("predict --json --capture " + folder + "large --cluster 1xh100"));
  const auto report = json_of(run("predict --json --plan plan.yaml"));
  expect_says(run("predict --capture " + folder + "large --cluster 1xh100").out, "0.00196 B param");
  expect_says(run("predict --plan plan.yaml").out, "0.00196 B param");
  // The libraries' own: two workspaces of cuBLAS, one of cuBLASLt.
  const double asked = captured["capture"]["requested_peak_bytes"].get<double>() - (65 << 20);
  EXPECT_NEAR(report["memory"]["peak_allocated_bytes"]["value"].get<double>() / asked, 1, 0.005);
  EXPECT_EQ(run("search --plan plan.yaml --cluster 8xh100").exit_code, 0);
  // What its script calls then: its blocks' names, what each keeps.
  const Outcome sharded = run("export --plan plan.yaml --cluster 8xh100 --to fsdp2 --set recompute=full");
  expect_says(
      sharded.out, "    [\"blocks.0\"],\n    [\"blocks.1\"],\n]\nRESHARD = [True] * 2\nRECOMPUTE = [\"blocks.0\", ");
  expect_says(sharded.out, "fully_shard(model, reshard_after_forward=False, **options)");
  expect_says(run("export --plan plan.yaml --cluster 8xh100 --to fsdp2 --runtime ddp").out, "broadcast_buffers=True,");
  // Of one size, too, and packed to be sent; and a program that is another one is refused.
  EXPECT_EQ(run("import " + folder + "small --out one.yaml").exit_code, 0);
  const Outcome sent =
      shell("cp -r " + folder + "small sent && gzip sent/calls.txt && \"$F\" import sent --out sent.yaml");
  EXPECT_EQ(sent.exit_code, 0) << sent.err;
  expect_says(read_temporary("sent.yaml"), R"("repeat":2)");
  // What torch.compile made is compiled in its plan; beside its loss, zeros stand for the gradient
  // of logits that the loop keeps.
  const Outcome compiled = shell("cp -r " + folder + "small compiled && sed -i 's/\"schema\"/\"compiled\":[\"\"],&/' " +
                                 "compiled/model.json && \"$F\" import compiled --out c.yaml --plan c.plan");
  ASSERT_EQ(compiled.exit_code, 0) << compiled.err;
  expect_says(read_temporary("c.plan"), "compile: model");
  const auto temporaries = [](const std::string& more) {
    const std::string set = " --set batch.micro_batch=512 --set loss=compiled --set loss_in_forward=true --set logits=";
    const auto memory = json_of(run("predict --json --plan c.plan" + set + more))["memory"];
    return memory["at_peak"]["backward_temp"].get<std::int64_t>();
  };
  const std::int64_t logits = 512 * 64 * 1000 * 2;  // bf16, as their gradient is
  EXPECT_EQ(temporaries("released"), logits);
  EXPECT_GE(temporaries("held"), 2 * logits);
  // Of an input with two rows for each sample that is handed on, samples are half of the rows.
  const Outcome rows = shell("cp -r " + folder + "large " + folder +
                             R"(small . && cd large && for each in ../small .; do cd $each
sed -i 's/\[3, 64\]/[6, 64]/; s/\[4, 256\]/[8, 256]/' model.json
sed -i 's/\[192, 1000\]/[3, 64, 1000]/; s/\[1024, 1000\]/[4, 256, 1000]/' modules.json
cd ../large; done; cd ..; "$F" import large small --out rows.yaml)");
  ASSERT_EQ(rows.exit_code, 0) << rows.err;
  EXPECT_EQ(read_temporary("rows.yaml"), model);
  const Outcome other = run("import " + folder + "small " + kCapture + " --out mine.yaml");
  EXPECT_EQ(other.exit_code, 3) << other.err;
}

// Of a class of transformers whose config is not read, layers are what its modules compute; an
// image's positions are those that attention sees at once.
TEST(Captured, AConfigThatIsNotReadGivesWayToTheModules) {
  const std::string small = FORESHARD_SOURCE_DIR "/tests/captures/modules_gpt/small";
  const auto imported = [&](const std::string& change) {
    return shell("rm -rf own && cp -r " + small + " own && sed -i '" + change +
                 "' own/model.json && \"$F\" import own --out own.yaml --plan own.plan");
  };
  ASSERT_EQ(imported("").exit_code, 0);
  const std::string plan = read_temporary("own.plan"), model = read_temporary("own.yaml");
  expect_says(plan, "sequence: ");
  const std::string unread = R"(1s/{/{"config": {"model_type": "mpnet"},/)";
  ASSERT_EQ(imported(unread).exit_code, 0);
  EXPECT_EQ(read_temporary("own.yaml"), model);
  const Outcome without = shell("rm own/modules.json; \"$F\" import own --out own.yaml");
  EXPECT_EQ(without.exit_code, 6);
  expect_says(without.err, "mpnet");
  expect_says(without.err, "--modules");
  ASSERT_EQ(imported("s/torch.int64/torch.float32/").exit_code, 0);
  EXPECT_EQ(read_temporary("own.plan"), plan);
}

// fp32 parameters under autocast: sums stay in fp32, whoever shards them.
TEST(Captured, AutocastWithoutAPolicyIsThePlans) {
  const auto plan_of = [](const std::string& name, const std::string& change) {
    const Outcome done =
        shell("rm -rf own && cp -r " FORESHARD_SOURCE_DIR "/tests/captures/" + name + " own && sed -i '" + change +
              "' own/model.json && \"$F\" import own --out own.yaml --plan own.plan");
    EXPECT_EQ(done.exit_code, 0) << done.err;
    return read_temporary("own.plan");
  };
  const std::string alone = plan_of("llama_autocast_8", R"(s/"ddp"/"none"/)");
  expect_says(alone, "{param: fp32, master: fp32, autocast: bf16}");
  expect_says(alone, "residual: fp32");
  const std::string said = R"(1s/{/{"autocast": "torch.bfloat16",/)";
  const std::string sharded =
      plan_of("llama_fsdp2_8", said + R"(; s/"param_dtype": "torch.bfloat16"/"param_dtype": "None"/g)");
  expect_says(sharded, "autocast: bf16");
  expect_says(sharded, "residual: fp32");
  EXPECT_EQ(plan_of("llama_fsdp2_8", said).find("autocast"), std::string::npos);
}

TEST(Captured, AnotherMachineIsPricedAnew) {
  const auto seconds = [](const std::string& cluster) -> double {
    const auto report = json_of(run("predict --json --capture " + kCapture + " --cluster " + cluster));
    return report["step"]["communication_s"]["value"];
  };
  EXPECT_GT(seconds("8xa100"), seconds("8xh100"));
}

TEST(Captured, EveryVerbTakesIt) {
  const std::string named = " --capture " + kCapture + " --cluster 8xh100";
  expect_says(run("predict" + named).out, "captured: rank 0 of 8");
  expect_says(run("explain" + named).out, "all_gather");
  EXPECT_EQ(run("report" + named + " --html page.html").exit_code, 0);
  expect_says(read_temporary("page.html"), "captured");
}

TEST(Captured, WrongWordsAreRefused) {
  const Outcome ranks = run("predict --capture " + kCapture + " --cluster 16xh100");
  EXPECT_EQ(ranks.exit_code, 3);
  expect_says(ranks.err, "--world 16");
  const Outcome model = run("predict --model gpt2 --capture " + kCapture + " --cluster 8xh100");
  EXPECT_EQ(model.exit_code, 2);
  EXPECT_EQ(run("predict --capture " + kCapture).exit_code, 2);
  const Outcome none = run("predict --capture nowhere --cluster 8xh100");
  EXPECT_EQ(none.exit_code, 3);
  expect_says(none.err, "foreshard-null");
}

TEST(Captured, AWrongLineIsNamed) {
  write_temporary("capture.json", R"({"gpu": "h100-sxm", "world": 1, "rank": 0})");
  for (const auto& [text, line] : {std::pair("N 0 kernel\nL 1 0 0 1\n", ":2:"), std::pair("Z 1 2\n", ":1:"),
           std::pair("H 1 0 5\n", ":1:"), std::pair("N 1 late\n", ":1:"), std::pair("W 1 x 2 3\n", ":1:")}) {
    write_temporary("calls.txt", text);
    const Outcome outcome = run("predict --capture . --cluster 1xh100");
    EXPECT_EQ(outcome.exit_code, 3) << text;
    expect_says(outcome.err, std::string("calls.txt") + line);
    expect_no_crash(outcome);
  }
  write_temporary("calls.txt", "H 1 0 0\n");
  EXPECT_EQ(run("predict --capture . --cluster 1xh100").exit_code, 3);
}

// A rank of a job as foreshard-null writes it: group 9 is of ranks 1 and 3, the two stages of its pipeline.
void write_rank(const std::string& folder, int rank, const std::string& step) {
  shell("mkdir -p " + folder);
  write_temporary(folder + "/capture.json", fmt::format(R"({{"gpu": "h100-sxm", "world": 4, "rank": {}}})", rank));
  const std::string end = "H 1 0 0\n";
  write_temporary(folder + "/calls.txt",
      "N 0 step 0 AdamW\nN 1 group 9 1 3\nN 2 9\nN 3 cublasGemmEx\nN 4 send\nN 5 recv\nN 6 all_gather\n"
      "H 1 0 1\nK 1 0 7 2 0 2\n" +
          end + step + end + step + end);
}
constexpr int kBytes = 64 << 20;
// A product of 8192 x 8192 x 8192, a transfer with the other rank, and what makes one stream wait for the other.
const std::string kProduct = "G 1 0 0 3 8192 8192 8192 1 9 9 0 0\n";
std::string transfer(int name, int peer) { return fmt::format("X 1 0 77 7 {} {} 9 {}\n", name, kBytes, peer + 1); }
const std::string kTransferWaits = "E 1 0 0 5\nW 1 0 77 5\n", kComputeWaits = "E 1 0 77 6\nW 1 0 0 6\n";

TEST(Captured, RanksOfAPipelineWaitForEachOther) {
  const std::string send_out = kTransferWaits + transfer(4, 1) + "E 1 0 77 8\n",
                    receive_out = transfer(5, 1) + kComputeWaits;
  const std::string send_back = kTransferWaits + transfer(4, 0), receive_back = transfer(5, 0) + kComputeWaits;
  const std::string host_waits = "Y 1 0 100 0\n";  // for the device, as Megatron-Core does behind a batch of transfers
  write_rank("first", 1, kProduct + send_out + receive_out + host_waits + kProduct);
  write_rank("second", 3, receive_back + kProduct + kProduct + kProduct + send_back);
  const auto step = [](const std::string& captures) {
    const Outcome said = run("predict --json --capture " + captures + " --cluster 4xh100");
    EXPECT_EQ(said.exit_code, 0) << said.err;
    return json_of(said);
  };
  const auto seconds = [](const nlohmann::json& report) -> double { return report["step"]["seconds"]["value"]; };
  const auto one = step("first"), other = step("second"), both = step("first second");
  EXPECT_EQ(both["capture"]["ranks"], (std::vector<int>{1, 3}));
  // The first stage waits for the second's three products between its own two, and the other way round.
  EXPECT_GT(seconds(both), 0.95 * (seconds(one) + seconds(other)));
  EXPECT_LT(seconds(both), 1.05 * (seconds(one) + seconds(other)));
  expect_says(run("explain --capture first second --cluster 4xh100").out, "pipeline bubble");
  expect_says(one.dump(), "--rank 3");
  EXPECT_EQ(both.dump().find("--rank"), std::string::npos);

  write_rank("other", 3, receive_back + kProduct);
  const Outcome unlike = run("predict --capture first other --cluster 4xh100");
  EXPECT_EQ(unlike.exit_code, 3);
  expect_says(unlike.err, "sends 0 times a step to rank 1");
  EXPECT_EQ(run("predict --capture first first --cluster 4xh100").exit_code, 3);
}

// NCCL runs a group of sends and receives as one kernel; ranks of the group are two nodes apart.
TEST(Captured, PartsForEveryRankAreOneAllToAll) {
  std::string parts;
  for (int peer = 0; peer < 2; ++peer) parts += transfer(4, peer) + transfer(5, peer);
  write_rank("all", 1, kProduct + kTransferWaits + parts + kComputeWaits + kProduct);
  const std::string rows = run("schedule --capture all --cluster 4xh100").out;
  expect_says(rows, "all_to_all");
  expect_says(rows, fmt::format(",{},", 2 * kBytes));
  EXPECT_EQ(rows.find("send_recv"), std::string::npos);
}

#ifdef FORESHARD_NULL_STEP
Outcome null(const std::string& flags, const std::string& part) {
  return shell("\"$(dirname \"$F\")/foreshard-null\" " + flags + " -- " FORESHARD_NULL_STEP " " + part);
}

TEST(NullGpu, TheStepOfAProgramIsCapturedAndForecast) {
  const Outcome ran = null("--rank 0 --world 8 --gpu h100 --out c", "train");
  ASSERT_EQ(ran.exit_code, 0) << ran.out << ran.err;
  const Outcome outcome = run("predict --json --capture c --cluster 8xh100");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto report = json_of(outcome);
  constexpr double kWhole = 2 << 20;
  EXPECT_EQ(report["memory"]["peak_allocated_bytes"]["value"], kWhole / 8 + 2 * kWhole);
  EXPECT_EQ(report["capture"]["launches"], 3);  // a product, an addition, a small copy
  EXPECT_EQ(report["capture"]["blind_reads"].size(), 1U);
  const std::string rows = run("schedule --capture c --cluster 8xh100").out;
  expect_says(rows, ",all_gather,");
  expect_says(rows, ",2097152,");  // whole buffers, as nccl-tests counts
  expect_says(rows, ",reduce_scatter,");
  expect_says(rows, "2147483648");  // FLOPs of the product
}

// Three steps of a model by its config.json: words behind -- are the Python; the GPU is never full.
TEST(NullGpu, AConfigAloneIsACommand) {
  write_temporary("config.json", "{}");
  const std::string program = "\"$(dirname \"$F\")/foreshard-null\" --gpu h100 --out c ";
  const std::string python = R"( -- sh -c 'echo "$0 $@; $FORESHARD_NULL_GPU $FORESHARD_NULL_AFTER"')";
  const Outcome ran = shell(program + "--after a b --config config.json --batch 3 --sequence 64" + python);
  EXPECT_EQ(ran.exit_code, 6) << ran.err;  // no call of a GPU
  expect_says(ran.out, "-m foreshard_train /");
  expect_says(ran.out, "/config.json --batch 3 --dtype autocast --sequence 64; name=");
  expect_says(ran.out, ";memory=70368744177664;");  // 64 TiB
  expect_says(ran.out, "/a:/");
  for (const char* wrong : {"--batch 3", "--config config.json --world 8", "--config none.json"}) {
    EXPECT_EQ(shell(program + wrong + python).exit_code, 2) << wrong;
  }
}

// What Python measured behind each step, in the geometric mean: 4 of 8, 2 and 4.
TEST(NullGpu, HostTimeIsOfTheProcessorAroundItsSteps) {
  const auto captured_on = [](const std::string& model) {
    const Outcome ran =
        shell("\"$(dirname \"$F\")/foreshard-null\" --gpu h100 --out c -- sh -c '" +
              (model.empty() ? "" : "echo \"" + model + "\" > c/model.json; ") + "exec " FORESHARD_NULL_STEP " train'");
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    return nlohmann::json::parse(read_temporary("c/capture.json"))["processor"].get<double>();
  };
  EXPECT_NEAR(captured_on(R"({\"processor\": [8, 2, 4]})"), 4, 1e-12);
  EXPECT_NEAR(captured_on(R"({\"processor\": [3.5]})"), 3.5, 1e-12);
  EXPECT_EQ(captured_on(R"({})"), 1);
  EXPECT_EQ(captured_on(""), 1);
}

// A launched graph's work is done again, its allocations are not; the host launches once.
TEST(NullGpu, AGraphIsLaunchedAgainAndAgain) {
  ASSERT_EQ(null("--gpu h100 --out c", "graph").exit_code, 0);
  const auto report = json_of(run("predict --json --capture c --cluster 1xh100"));
  EXPECT_EQ(report["capture"]["launches"], 2);
  EXPECT_EQ(report["memory"]["peak_allocated_bytes"]["value"], 3 * (2 << 20));
  const std::string rows = run("schedule --capture c --cluster 1xh100").out;
  EXPECT_EQ(std::ranges::count(rows, '\n'), 2) << rows;  // the head and one row
  expect_says(rows, "2147483648");
}

TEST(NullGpu, RecurrentLayersAreProducts) {
  const Outcome ran = null("--gpu h100 --out c", "recurrent");
  ASSERT_EQ(ran.exit_code, 0) << ran.out << ran.err;
  const auto report = json_of(run("predict --json --capture c --cluster 1xh100"));
  // Of two layers in two directions: forward and of data all steps at once, five steps, the cells;
  // of weights the input's and the state's.
  EXPECT_EQ(report["capture"]["launches"], 4 * (2 * (1 + 5 + 1) + 2));
}

TEST(NullGpu, ConvolutionsAreProductsOfChannelsInnermost) {
  ASSERT_EQ(null("--gpu h100 --out c", "convolutions").exit_code, 0);
  const std::string calls = read_temporary("c/calls.txt");
  // 128 pixels of 32 filters, each of 9 * 64; groups; bf16. Operands and result once.
  const std::string product = std::to_string(2 * (2 * 64 * 64 + 32 * 64 * 9 + 2 * 32 * 64)) + " 128 32 576 1 14\n";
  const std::size_t first = calls.find(product);
  ASSERT_NE(first, std::string::npos);
  EXPECT_NE(calls.find(product, first + 1), std::string::npos);
  // Read and written by tiles of 32 by 32: 9 taps of a filter are one. Channels innermost: none.
  for (const int bytes : {2 * 2 * 64 * 64 * 2, 2 * 32 * 64 * 32 * 2, 2 * 2 * 32 * 64 * 2}) {
    const std::string transposed = " " + std::to_string(bytes) + "\n";
    const std::size_t at = calls.find(transposed);
    ASSERT_NE(at, std::string::npos) << bytes;
    EXPECT_EQ(calls.find(transposed, at + 1), std::string::npos) << bytes;
  }
}

TEST(NullGpu, OperandsOnTheDeviceAreKnown) {
  ASSERT_EQ(null("--gpu h100 --out c", "tables").exit_code, 0);
  const std::string calls = read_temporary("c/calls.txt");
  expect_says(calls, " 32 32 64 3 14 14 ");  // n, rows of a group, k, groups; of bf16
  // The table and the three buffers that it names.
  expect_says(calls, " -1 8388608 2097152 4 0 0 0\n");
  // Two strided tensors: what they hold, a vector once, and what warps ask for, of it a byte for
  // each element; two dimensions.
  const std::int64_t array = 2 * 1024 * 1024;
  expect_says(calls, " 1048576 6291456 2097152 3 " + std::to_string(2 * array + 2048) + " " +
                         std::to_string(2 * array + 1024 * 1024) + " 2\n");
  // A reduction's source and its result: what it is given, results, bytes of an element.
  expect_says(calls, " -1 4194304 2097152 2 4194304 1024 4\n");
  // The product's rows, all groups together.
  expect_says(run("schedule --capture c --cluster 1xh100").out, std::to_string(2 * 96 * 64 * 32));
}

TEST(NullGpu, KernelsAreOfAnArchitectureThatTheBinaryHas) {
  for (const auto& [gpu, expected] : {std::pair("h100", 90), std::pair("b300", 100), std::pair("a10", 80)}) {
    EXPECT_EQ(null(std::string("--gpu ") + gpu, "architecture").exit_code, expected) << gpu;
  }
}

TEST(NullGpu, AnswersAreThoseOfAGpu) {
  for (const auto& [flags, part] : {std::pair("", "memory"), std::pair("", "done"), std::pair("", "list"),
           std::pair("", "counts"), std::pair("--events pending ", "pending")}) {
    const Outcome ran = null(std::string(flags) + "--gpu a10", part);
    EXPECT_EQ(ran.exit_code, 0) << part << ran.out << ran.err;
  }
  EXPECT_EQ(null("--gpu v100", "capability").exit_code, 7);
  EXPECT_EQ(null("--gpu h200", "capability").exit_code, 9);
}

// A build of PyTorch looks for its libraries by these names; what it asks them for is the null GPU's.
TEST(NullGpu, AbsentLibrariesAreAnswered) {
  write_temporary("load.py", R"(import ctypes, pathlib, sys
for name in pathlib.Path(sys.argv[1]).read_text().split():
    ctypes.CDLL(str(pathlib.Path(sys.argv[2]) / name), ctypes.RTLD_GLOBAL)
runtime, version, at = ctypes.CDLL("libcudart.so.12"), ctypes.c_int(), ctypes.c_void_p()
runtime.cudaRuntimeGetVersion(ctypes.byref(version))
assert version.value in (12080, 13000)
assert runtime.cudaMalloc(ctypes.byref(at), ctypes.c_size_t(64)) == 0 and at.value
assert ctypes.CDLL("libnccl.so.2").ncclGroupStart() == 0
)");
  const Outcome ran = shell(
      "\"$(dirname \"$F\")/foreshard-null\" --gpu h100 --out c -- python3 "
      "load.py " FORESHARD_SOURCE_DIR "/exec/null/absent/libraries.txt \"$(dirname \"$F\")/null/absent\"");
  EXPECT_EQ(ran.exit_code, 0) << ran.out << ran.err;
}

// reports/capture_versions.md has a row for each version of fully_shard, and what is not to the byte would be said.
TEST(NullGpu, EveryVersionOfPyTorchWasRun) {
  const std::string table = shell("cat " FORESHARD_SOURCE_DIR "/reports/capture_versions.md").out;
  for (std::int32_t minor = kOldestFsdp2; minor <= kNewestFsdp2; ++minor) {
    const auto at = table.find(fmt::format("\n| 2.{}.", minor));
    ASSERT_NE(at, std::string::npos) << minor;
    const std::string row = table.substr(at + 1, table.find('\n', at + 1) - at);
    EXPECT_EQ(std::ranges::count(row, ','), 3) << row;  // of each runtime peak and collectives
    EXPECT_FALSE(contains(row, "allocated")) << row;
  }
}

TEST(NullGpu, WhatIsNotAnsweredIsNamed) {
  const Outcome ran = null("--gpu h100 --out c", "unanswered");
  EXPECT_EQ(ran.exit_code, 6);
  expect_says(ran.err, "cuNobodyKnowsThis");
  expect_says(read_temporary("c/refused.txt"), "cuNobodyKnowsThis");
}

// Each fault is found, named with its kind, and is not found where the program orders its streams.
TEST(NullGpu, PlantedFaultsAreFound) {
  const auto checked = [](const std::string& words) {
    return shell(
        "\"$(dirname \"$F\")/foreshard-null\" --check --gpu h100 --out c -- " + (FORESHARD_NULL_FAULT + (" " + words)));
  };
  std::istringstream names(shell(FORESHARD_NULL_FAULT " list").out);
  std::size_t faults = 0;
  for (std::string name; names >> name; ++faults) {
    const Outcome wrong = checked(name + " wrong");
    EXPECT_EQ(wrong.exit_code, 5) << name;
    const bool is_capture =
        contains(name, "capture") || contains(name, "outside") || name.find("joined") == name.size() - 6;
    const char* const kind = name == "freed_blocks_joined" ? "handed out"
                             : is_capture                  ? "capture"
                             : contains(name, "free")      ? "handed out"
                             : contains(name, "again")     ? "written while"
                                                           : "used before it is made";
    expect_says(wrong.err, kind);
    const Outcome right = checked(name + " right");
    EXPECT_EQ(right.exit_code, 0) << name << right.err;
    EXPECT_EQ(right.err, "") << name;
  }
  EXPECT_EQ(faults, 19U);
}

// A step of a program in Python, by its CUDA calls alone: mostly products in bf16, one in fp32, the
// host waits, and something is kept that nobody gives back.
TEST(NullGpu, FindingsNameFileAndLine) {
  write_temporary("train.py", R"(import ctypes
gpu = ctypes.CDLL(None)
say = gpu._ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE
blas, memory = ctypes.c_void_p(), ctypes.c_void_p()
gpu.cublasCreate_v2(ctypes.byref(blas))
gpu.cudaMalloc(ctypes.byref(memory), ctypes.c_size_t(1 << 26))
def product(kind):
    gpu.cublasGemmEx(blas, 0, 0, 1024, 1024, 1024, None, memory, kind, 1024, memory, kind, 1024, None, memory, kind, 1024, 0, 0)
def step(number):
    product(14)
    product(14)
    product(0)
    size = 1 << 20
    say(ctypes.c_void_p(memory.value + number * size), ctypes.c_int64(size), ctypes.c_size_t((number + 1) * size), ctypes.c_size_t(1 << 26), ctypes.c_int16(1))
    gpu.cudaStreamSynchronize(None)
    gpu.foreshard_null_mark(b"step 0 SGD")
for number in range(3):
    step(number)
)");
  const Outcome ran = shell("\"$(dirname \"$F\")/foreshard-null\" --check --gpu h100 --out c -- python3 train.py");
  ASSERT_EQ(ran.exit_code, 0) << ran.out << ran.err;
  const Outcome outcome = run("predict --json --capture c --cluster 1xh100");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto report = json_of(outcome);
  expect_follows_its_schema(report);
  std::vector<std::string> found;
  for (const auto& finding : report["capture"]["lint"]) {
    const std::string place = finding["place"];
    found.push_back(finding["rule"].get<std::string>() + place.substr(place.rfind('/') + 1));
    EXPECT_FALSE(finding["fix"].get<std::string>().empty());
  }
  EXPECT_EQ(found, (std::vector<std::string>{
                       "host_waittrain.py:15 step", "fp32_producttrain.py:8 product", "kept_tensortrain.py:14 step"}));
  expect_says(run("predict --capture c --cluster 1xh100").out, "train.py:15 step");
}

// A program that stumbles over what nobody computed is told where it read it, and runs again with
// ones for zeros; one that still fails keeps its exit status.
TEST(NullGpu, ReadsOfAProgramThatFailedAreNamed) {
  const std::string program = R"(import ctypes
gpu = ctypes.CDLL(None)
memory, length = ctypes.c_void_p(), ctypes.c_int64(5)
gpu.cudaMalloc(ctypes.byref(memory), ctypes.c_size_t(64))
gpu.cudaMemcpyAsync(ctypes.byref(length), memory, ctypes.c_size_t(8), 2, None)
if length.value == )";
  const char* const command = "\"$(dirname \"$F\")/foreshard-null\" --gpu h100 --out c -- python3 train.py";
  write_temporary("train.py", program + "0: raise SystemExit(3)\n");
  const Outcome ran = shell(command);
  EXPECT_EQ(ran.exit_code, 0);
  for (const char* words : {"train.py:5 <module>", "again, with --values", "again, where they are"})
    expect_says(ran.err, words);
  write_temporary("train.py", program + "length.value: raise SystemExit(3)\n");
  const Outcome failed = shell(command);
  EXPECT_EQ(failed.exit_code, 3);
  expect_says(failed.err, "give what lengths");
}

// Exceptions that have a way around are named with the program's own line.
TEST(NullGpu, AFailureNamesItsLineAndAWayAround) {
  const std::pair<const char*, const char*> programs[] = {
      {"import urllib.request\nurllib.request.urlopen('http://localhost:9/')", "no network"},
      {"import json\nimport a_library_with_kernels", "install it for this Python"}};
  for (const auto& [program, way] : programs) {
    write_temporary("train.py", program);
    const Outcome ran = shell("\"$(dirname \"$F\")/foreshard-null\" --gpu h100 --out c -- python3 ./train.py");
    EXPECT_EQ(ran.exit_code, 1);
    expect_says(ran.err, "train.py:2 <module>: ");
    expect_says(ran.err, way);
  }
}

TEST(NullGpu, ALoopThatWaitsForAValueIsNamed) {
  write_temporary("train.py", R"(import ctypes
gpu = ctypes.CDLL(None)
memory, length = ctypes.c_void_p(), ctypes.c_int64(5)
gpu.cudaMalloc(ctypes.byref(memory), ctypes.c_size_t(64))
for _ in range(1500):
    gpu.cudaMemcpyAsync(ctypes.byref(length), memory, ctypes.c_size_t(8), 2, None)
)");
  const Outcome ran = shell("\"$(dirname \"$F\")/foreshard-null\" --gpu h100 --out c -- python3 ./train.py");
  EXPECT_EQ(ran.exit_code, 0);
  expect_says(ran.err, "train.py:6 <module>: has read 1000 numbers");
}

TEST(NullGpu, ExitStatusesAreTheCommands) {
  const auto exits = [](const std::string& rest) { return shell("\"$(dirname \"$F\")/foreshard-null\" " + rest); };
  EXPECT_EQ(exits("--gpu h100 -- sh -c 'exit 9'").exit_code, 9);
  const Outcome idle = exits("--gpu h100 -- true");
  EXPECT_EQ(idle.exit_code, 6);
  expect_says(idle.err, "no call to a GPU");
  EXPECT_EQ(exits("--gpu h999 -- true").exit_code, 2);
  EXPECT_EQ(exits("--gpu mi300x -- true").exit_code, 6);
  EXPECT_EQ(exits("--gpu h100 --rank 8 --world 8 -- true").exit_code, 2);
  EXPECT_EQ(exits("--gpu h100").exit_code, 2);
}
#endif

}
}
