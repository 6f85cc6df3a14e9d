// export, launch, import of trainers' files: what the program writes, and what it leaves when it cannot.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "tests/cli/program.h"

namespace foreshard::export_test {
namespace {

const std::string kJob = "--model llama-3.1-8b --cluster 16xh100 --runtime fsdp2@2.11 --set mesh.shard=8 ";

TEST(Export, TheScriptIsPythonOfThisPlan) {
  const Outcome outcome = run("export --to fsdp2 " + kJob +
                              "--set prefetch.forward=2 --set recompute=every-2 --set "
                              "accumulation.mode=keep_unsharded --accumulation 2");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* part : {"SHARD = 8\n", "REPLICATE = 2\n", "RECOMPUTE = [\"full\"] + [\"none\"]",
           "set_modules_to_forward_prefetch(order[i + 1 : i + 1 + 2])", "set_requires_gradient_sync",
           "PARAMETERS = 8030261248", "self.self_attn.q_proj = nn.Linear", "ROPE_THETA = 500000", "ROPE_FACTOR = 8",
           "ROPE_POSITIONS = 8192", "frequencies *= kept"}) {
    expect_says(outcome.out, part);
  }
  // Only what the plan needs.
  for (const char* part : {"CPUOffloadPolicy", "set_modules_to_backward_prefetch", "Shard(1)"}) {
    EXPECT_EQ(outcome.out.find(part), std::string::npos) << part;
  }
  expect_says(outcome.err, "mapped");
  const Outcome compiled = shell(
      "\"$F\" export --to fsdp2 " + kJob + "2>/dev/null | python3 -c 'import ast,sys; ast.parse(sys.stdin.read())'");
  EXPECT_EQ(compiled.exit_code, 0) << compiled.err;
}

TEST(Export, WhatNoScriptCanDoIsMissingCapability) {
  for (const std::string& set : {std::string("--set lora.rank=8"), std::string("--set float8=rowwise"),
           std::string("--runtime zero3"), std::string("--set 'unshard_in_backward=[{units: 2, value: false}]'")}) {
    const Outcome outcome = run("export --to fsdp2 --model llama-3.1-8b --cluster 16xh100 " + set);
    EXPECT_EQ(outcome.exit_code, 6) << set << outcome.out.substr(0, 100);
    expect_says(outcome.err, "unsupported");
    expect_says(outcome.err, "nearest plan");
  }
}

void expect_python(const std::string& words) {
  const Outcome parsed = shell(
      "\"$F\" export --to fsdp2 " + words + " 2>/dev/null | python3 -c 'import ast,sys; ast.parse(sys.stdin.read())'");
  EXPECT_EQ(parsed.exit_code, 0) << words << parsed.err;
}

TEST(Export, RanksThatShareSequencesAttendInARing) {
  const std::string job =
      "--model llama-3.1-8b --cluster 16xh100 --runtime fsdp2@2.11 --set mesh.cp=4 "
      "--set context_parallel.rotate=alltoall ";
  const Outcome ring = run("export --to fsdp2 " + job);
  ASSERT_EQ(ring.exit_code, 0) << ring.err;
  for (const char* part : {"CP = 4 ", "set_rotate_method(\"alltoall\")", "_enable_context_parallel_dispatcher()",
           "DTensor.from_local(t, CP_MESH, [Shard(2)])", "model(inputs, positions)",
           "_HeadTailLoadBalancer(SEQUENCE, CP, DEVICE)"}) {
    expect_says(ring.out, part);
  }
  EXPECT_EQ(ring.out.find("parallelize_module"), std::string::npos);
  expect_python(job + "--set mesh.tp=2");
  expect_python("--model gpt2 --cluster 8xh100 --runtime fsdp2@2.11 --set mesh.cp=2");
  const Outcome plain = run("export --to fsdp2 " + job + "--set context_parallel.balance=none");
  expect_says(plain.out, "balancer = None");
}

TEST(Export, RanksThatShareExpertsSendRows) {
  const std::string job = "--model mixtral-8x7b --cluster 16xh100 --runtime fsdp2@2.11 --set mesh.ep=4 ";
  const Outcome spread = run("export --to fsdp2 " + job);
  ASSERT_EQ(spread.exit_code, 0) << spread.err;
  for (const char* part : {"EP = 4 ", "functional.all_to_all_single", "spread_experts(model, mesh)",
           "with_experts(unit, order[i + 1 : i + 1 + 1], blocks)", "--balanced", "clip(model, 1)"}) {
    expect_says(spread.out, part);
  }
  expect_python(job + "--set mesh.cp=2");
  const Outcome counted = run("export --to fsdp2 " + job + "--set expert_parallel.zipf=1");
  expect_says(counted.err, "routers say where rows go");
}

TEST(Export, AxesThatNoScriptHasAreRefusedByName) {
  const std::string llama = "--model llama-3.1-8b --cluster 16xh100 --runtime fsdp2@2.11 ";
  const std::string mixtral = "--model mixtral-8x7b --cluster 16xh100 --runtime fsdp2@2.11 ";
  const std::pair<std::string, const char*> refused[] = {
      {llama + "--set mesh.cp=2 --set context_parallel.rotate=ulysses", "context_parallel.rotate"},
      {llama + "--set mesh.cp=2 --set attention=flex", "mesh.cp"},
      {llama + "--set mesh.cp=2 --set compile=blocks", "compile"},
      {llama + "--set mesh.tp=2 --set tensor_parallel.sequence=false", "tensor_parallel.sequence"},
      {mixtral + "--set mesh.ep=2 --set mesh.tp=2", "mesh.tp"},
  };
  for (const auto& [words, key] : refused) {
    const Outcome outcome = run("export --to fsdp2 " + words);
    EXPECT_EQ(outcome.exit_code, 6) << words << outcome.out.substr(0, 100);
    expect_says(outcome.err, std::string("unsupported: ") + key);
    expect_says(outcome.err, "nearest plan");
  }
  const Outcome other = run("export --to accelerate " + llama + "--set mesh.cp=2");
  EXPECT_EQ(other.exit_code, 6);
  expect_says(other.err, "are written for torchtitan");
}

TEST(Export, TheTransposedMeshIsMadeOrSaidToBeLost) {
  const std::string job = kJob + "--set mesh.inner=replicate";
  const Outcome script = run("export --to fsdp2 " + job);
  ASSERT_EQ(script.exit_code, 0) << script.err;
  expect_says(script.out, "INNER = \"replicate\"");
  expect_says(script.out, "torch.arange(replicate * shard).view(shard, replicate).t()");
  for (const char* format : {"accelerate", "torchtitan"}) {
    const Outcome other = run(std::string("export --to ") + format + " " + job);
    ASSERT_EQ(other.exit_code, 0) << other.err;
    const std::size_t line = other.err.find("mesh.inner");
    ASSERT_NE(line, std::string::npos) << other.err;
    expect_says(other.err.substr(other.err.rfind('\n', line) + 1), "unsupported");
  }
  expect_says(run("export --to launch " + job).err, "transposed");
}

TEST(Export, EveryFormatIsOneDocumentWithItsLedger) {
  for (const std::string& format : {std::string("fsdp2"), std::string("accelerate"), std::string("deepspeed"),
           std::string("torchtitan"), std::string("launch")}) {
    const Outcome outcome = run(fmt::format("export --json --to {} {}", format, kJob));
    ASSERT_EQ(outcome.exit_code, 0) << format << outcome.err;
    const auto json = json_of(outcome);
    EXPECT_EQ(json["schema"], "foreshard.export/1");
    EXPECT_EQ(json["to"], format);
    EXPECT_FALSE(json["text"].get<std::string>().empty());
    EXPECT_FALSE(json["ledger"].empty()) << format;
  }
}

TEST(Export, AFileIsWholeOrNotThere) {
  const Outcome outcome = run("export --to accelerate --out missing/accelerate.yaml " + kJob);
  EXPECT_EQ(outcome.exit_code, 3);
  expect_says(outcome.err, "missing/accelerate.yaml: cannot be written");
  const Outcome written = run("export --to accelerate --out a.yaml --ledger a.txt " + kJob);
  ASSERT_EQ(written.exit_code, 0) << written.err;
  EXPECT_EQ(written.out, "written to a.yaml\n");
  expect_says(read_temporary("a.yaml"), "distributed_type: FSDP");
  expect_says(read_temporary("a.txt"), "mapped");
  EXPECT_EQ(shell("ls *.part").out, "");
}

TEST(Export, ImportBringsAnExportBack) {
  ASSERT_EQ(run("export --to torchtitan --out t.toml --ledger t.txt " + kJob).exit_code, 0);
  const Outcome outcome = run("import t.toml --cluster 16xh100 --out back.yaml");
  ASSERT_EQ(run("import t.toml --cluster 16xh100 --plan same.yaml").exit_code, 0);
  EXPECT_EQ(read_temporary("same.yaml"), read_temporary("back.yaml"));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto report = json_of(run("predict --json --plan back.yaml"));
  EXPECT_EQ(report["plan"]["mesh"]["shard"], 8);
  EXPECT_EQ(report["plan"]["model"], "llama-3.1-8b");
  EXPECT_EQ(report["plan"]["batch"]["sequence"], 8192);
}

TEST(Import, UnknownKeysAreListedWithTheirLine) {
  write_temporary("ds.json", "{\n \"zero_optimization\": {\"stage\": 3,\n  \"overlap_com\": true}\n}\n");
  const Outcome outcome = run("import ds.json --model gpt2");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  expect_says(outcome.out, "runtime: zero3");
  expect_says(outcome.out, "ds.json:3");
  expect_says(outcome.out, "did you mean zero_optimization.overlap_comm?");
}

TEST(Import, FilesCutInHalfAreRefused) {
  write_temporary("half.json", "{\"zero_optimization\": {\"stage\": 3, \"over");
  write_temporary("half.toml", "[training]\nseq_len = ");
  for (const char* name : {"half.json", "half.toml"}) {
    const Outcome outcome = run(std::string("import ") + name);
    EXPECT_EQ(outcome.exit_code, 3) << name;
    expect_says(outcome.err, std::string(name) + ":");
    expect_no_crash(outcome);
  }
}

TEST(Launch, RanksFillTheNodes) {
  const Outcome torchrun = run("launch " + kJob);
  ASSERT_EQ(torchrun.exit_code, 0) << torchrun.err;
  expect_says(torchrun.out, "torchrun --nnodes 2 --nproc-per-node 8 ");
  expect_says(torchrun.out, " train.py\n");
  expect_says(
      run("launch --launcher slurm " + kJob).out, "srun --nodes 2 --ntasks 16 --ntasks-per-node 8 --gpus-per-node 8 ");
  expect_says(run("launch --launcher openmpi " + kJob).out, "mpirun -np 16 -N 8 ");
  // 12 ranks do not fill nodes of 8 evenly.
  const Outcome uneven = run("launch --model gpt2 --cluster 12xh100");
  EXPECT_TRUE(uneven.exit_code == 6 || uneven.exit_code == 3) << uneven.exit_code << uneven.err;
}

}
}
