// What a user may get wrong, and what the program says to it: exit code, the words, and nothing on standard output.
#include <gtest/gtest.h>

#include <initializer_list>

#include "tests/cli/program.h"

namespace foreshard::bad_input_test {
namespace {

using Parts = std::initializer_list<const char*>;

void expect_refused(const std::string& arguments, int exit_code, Parts says) {
  SCOPED_TRACE(arguments);
  const Outcome outcome = run(arguments);
  EXPECT_EQ(outcome.exit_code, exit_code) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  for (const char* part : says) expect_says(outcome.err, part);
  expect_no_crash(outcome);
}

const std::string kJob = "predict --model llama-3.1-8b --cluster 8xh100 ";

TEST(BadInput, Usage) {
  expect_refused("", 2, {"no verb", "predict, schedule, explain"});
  expect_refused("predit", 2, {"unknown verb 'predit'", "did you mean predict?"});
  expect_refused("calibrate", 2, {"raw is required"});
  expect_refused("recomend", 2, {"unknown verb 'recomend'", "did you mean recommend?"});
  expect_refused("recommend", 2, {"--tokens is required", "Example:", "--tokens 1T"});
  expect_refused("recommend --config config.json", 2, {"unknown option '--config'", "did you mean --model?"});
  expect_refused("search --capture mine --cluster 8xh100", 2, {"foreshard import CAPTURE --out", "--plan plan.yaml"});
  expect_refused("recommend --batch 64", 2, {"did you mean --micro-batch, --global-batch, --batch-tokens?"});
  expect_refused("predict config.json", 2, {"did you mean --model config.json?"});
  expect_refused("help", 2, {"did you mean --help?"});
  expect_refused("predict", 2, {"no model", "--model llama-3.1-8b"});
  expect_refused("predict --model gpt2", 2, {"no cluster", "--cluster 64xh100"});
  expect_refused("predict --modle gpt2", 2, {"unknown option '--modle'", "did you mean --model?"});
  expect_refused("predict plan.yaml", 2, {"unexpected argument 'plan.yaml'", "--plan plan.yaml"});
  expect_refused(
      kJob + "--set mesh.shard=8 recompute=full", 2, {"unexpected argument 'recompute=full'", "--set recompute=full"});
  expect_refused(kJob.substr(kJob.find(' ')).insert(0, "compare") + "--with mesh.shard=8 loss=fused", 2,
      {"no plan file 'loss=fused'", "--with loss=fused"});
  expect_refused("predict --model", 2, {"--model"});
  expect_refused(kJob + "--color sometimes", 2, {"--color", "'sometimes'", "auto, always, never"});
  expect_refused("schema plam", 2, {"'plam'", "did you mean plan?"});
  expect_refused("schema", 2, {"kind is required"});
  expect_refused("completion tcsh", 2, {"'tcsh'", "bash, zsh, fish"});
  expect_refused("compare", 2, {"two plan files", "--with"});
  expect_refused("compare a.yaml", 2, {"one plan file"});
  expect_refused("compare a.yaml b.yaml --with mesh.shard=8", 2, {"--with"});
  expect_refused("machines --dot", 2, {"--dot needs"});
  expect_refused("search --model gpt2 --cluster 8xh100 --threads 0", 2, {"--threads"});
  expect_refused("search --model gpt2 --cluster 8xh100 --threads two", 2, {"--threads"});
}

TEST(BadInput, ModelsOfImagesAndFromFiles) {
  const std::string llava = "predict --model llava-1.5-7b --cluster 8xh100 ";
  expect_refused(llava + "--set batch.images=-1", 3, {"--set:1:14", "batch.images", "-1"});
  expect_refused(llava + "--set batch.images=9", 3, {"--set:1:14", "batch.images", "at most 7"});
  expect_refused(kJob + "--set batch.images=1", 3, {"batch.images", "no images among its words"});
  expect_refused(kJob + "--set frozen=[tower]", 3, {"frozen", "no vision tower"});
  expect_refused(llava + "--runtime native", 6, {"llava", "runtime: fsdp2"});
  const std::string vit = "predict --model vit-large-patch16-224 --cluster 8xh100 ";
  expect_refused(vit + "--sequence 198", 3, {"--sequence:1:1", "197 positions"});
  expect_refused(vit + "--runtime native", 6, {"vit", "runtime: fsdp2"});
  write_temporary("images.yaml", "model: llama-3.1-8b\ncluster: 8xh100\nbatch: {images: 2}\n");
  expect_refused("predict --plan images.yaml", 3, {"images.yaml:3:17", "batch.images"});

  expect_refused("predict --model none.yaml --cluster 8xh100", 3, {"none.yaml"});
  write_temporary("model.yaml", "model: mine\npositions: 8\nlayer: {}\n");
  expect_refused("predict --model model.yaml --cluster 8xh100", 3, {"model.yaml:3:1", "did you mean layers?"});
  expect_refused("models --yaml", 2, {"--yaml"});
}

TEST(BadInput, KeysOfAPlan) {
  expect_refused(kJob + "--set mesh.shrad=8", 3, {"--set:1:1", "unknown key 'mesh.shrad'", "did you mean mesh.shard?"});
  expect_refused(kJob + "--set shard=8", 3, {"did you mean mesh.shard?"});
  expect_refused(kJob + "--set mesh.shard", 3, {"no assignment", "mesh.shard=8"});
  expect_refused(kJob + "--set mesh.shard=", 3, {"mesh.shard"});
  expect_refused(kJob + "--set dtype.param=int4", 3, {"dtype.param", "bf16, fp16, fp32"});
  expect_refused(kJob + "--set recompute=ful", 3, {"did you mean full?"});

  write_temporary("keys.yaml", "model: gpt2\ncluster: 8xh100\nbach: {micro_batch: 2}\n");
  expect_refused("predict --plan keys.yaml", 3, {"keys.yaml:3:1", "unknown key 'bach'", "did you mean batch?"});
  write_temporary("twice.yaml", "model: gpt2\nmodel: gpt2-xl\ncluster: 8xh100\n");
  expect_refused("predict --plan twice.yaml", 3, {"twice.yaml:2:1", "model"});
  write_temporary("nocluster.yaml", "model: gpt2\n");
  expect_refused("predict --plan nocluster.yaml", 3, {"nocluster.yaml", "cluster", "missing"});
  write_temporary("open.yaml", "model: gpt2\nbatch: {micro_batch: 2\n");
  expect_refused("predict --plan open.yaml", 3, {"open.yaml:2:8", "not closed"});
  write_temporary("empty.yaml", "");
  expect_refused("predict --plan empty.yaml", 3, {"empty.yaml"});
  write_temporary("binary.yaml", std::string_view("model: \0\1", 9));
  expect_refused("predict --plan binary.yaml", 3, {"binary.yaml:1"});
}

TEST(BadInput, Sizes) {
  for (const char* key : {"batch.sequence", "batch.micro_batch", "batch.accumulation", "mesh.shard", "mesh.replicate",
           "units.layers_per_unit"}) {
    for (const char* value : {"0", "-1", "99999999999999999999", "4k", "1.5", "nan", "1e30"}) {
      expect_refused(kJob + "--set " + key + "=" + value, 3, {key});
    }
  }
  expect_refused(kJob + "--sequence 0", 3, {"--sequence:1:1", "batch.sequence", "out of range"});
  expect_refused(kJob + "--sequence -5", 3, {"-5 is out of range"});
  expect_refused(kJob + "--micro-batch 9223372036854775808", 3, {"overflows"});
  expect_refused(
      kJob + "--sequence 16777216 --micro-batch 1048576 --accumulation 1048576", 3, {"batch", "too many", "overflows"});
  expect_refused(kJob + "--set batch.global=12", 3, {"12 is no multiple of", "8 or 16"});
  expect_refused("search --model gpt2 --cluster 8xh100 --global-batch 12", 3, {"8 and 16"});
  expect_refused("search --model gpt2 --cluster 8xh100 --global-batch 0", 3, {"--global-batch"});
  expect_refused("predict --model gpt2 --cluster 8xh100 --sequence 2048", 3, {"1024 learned positions"});
}

TEST(BadInput, Mesh) {
  expect_refused(kJob + "--set mesh.shard=3", 3, {"--set:1:12", "3 does not divide the 8 GPUs", "2 or 4"});
  expect_refused(kJob + "--set mesh.shard=4 --set mesh.replicate=4", 3, {"16 ranks, but the cluster has 8 GPUs"});
  expect_refused(kJob + "--set reshard_after_forward=3", 3, {"reshard_after_forward", "divisor"});
}

TEST(BadInput, Clusters) {
  const std::string model = "predict --model gpt2 --cluster ";
  expect_refused(model + "8xh10", 3, {"unknown machine 'h10'", "did you mean 8xh100?"});
  expect_refused(model + "0xh100", 3, {"count must be 1 to"});
  expect_refused(model + "-8xh100", 3, {"count must be 1 to"});
  expect_refused(model + "99999999999999999999xh100", 3, {"count must be 1 to"});
  expect_refused(model + "12xh100", 3, {"not whole nodes of 8", "8 and 16"});
  expect_refused(model + "h100", 3, {"did you mean 8xh100?"});
  expect_refused(model + "none.yaml", 3, {"none.yaml", "no such file"});
  expect_refused(model + "/", 3, {"is a directory"});

  write_temporary("unit.yaml", "gpus: 64\nmachine: h100-sxm\nnode: {nic_rate: 400}\n");
  expect_refused(model + "unit.yaml", 3, {"unit.yaml:3:18", "needs a unit", "400Gbit/s"});
  write_temporary("bits.yaml", "gpus: 64\nmachine: h100-sxm\ngpu: {memory: 80Gib}\n");
  expect_refused(model + "bits.yaml", 3, {"bits.yaml:3:15", "gpu.memory"});
  write_temporary("zero.yaml", "gpus: 64\nmachine: h100-sxm\nnode: {gpu_link: 0GB/s}\n");
  expect_refused(model + "zero.yaml", 3, {"zero.yaml:3:18", "more than zero"});
  write_temporary("key.yaml", "gpus: 64\nmachine: h100-sxm\nnode: {nic_rat: 400Gbit/s}\n");
  expect_refused(model + "key.yaml", 3, {"unknown key 'nic_rat'", "did you mean nic_rate?"});
}

TEST(BadInput, ModelsByName) {
  expect_refused("predict --model llama-3.1-8c --cluster 8xh100", 3, {"unknown model", "did you mean llama-3.1-8b?"});
  expect_refused("predict --model meta-llama/Llama-9.1-8B --cluster 8xh100", 3, {"unknown model"});
  expect_refused("predict --model '' --cluster 8xh100", 3, {"--model"});
}

TEST(BadInput, ModelFiles) {
  const auto expect_config_refused = [](const char* name, const char* content, Parts says) {
    write_temporary(name, content);
    expect_refused(std::string("predict --cluster 8xh100 --model ") + name, 3, says);
  };
  expect_refused("predict --model none.json --cluster 8xh100", 3, {"none.json", "no such file"});
  expect_refused("predict --model ./none --cluster 8xh100", 3, {"./none", "no such file"});
  expect_refused("predict --model / --cluster 8xh100", 3, {"is a directory"});
  expect_config_refused("truncated.json", "{\"model_type\": \"llama\", \"hidden", {"truncated.json:1"});
  expect_config_refused("short.json", "{", {"short.json", "truncated"});
  expect_config_refused("empty.json", "", {"empty.json"});
  expect_config_refused("text.json", "hello", {"text.json:1:1"});
  expect_config_refused("yaml", "model_type: llama\n", {"yaml:1:1", "JSON"});
  expect_config_refused("list.json", "[1, 2]", {"list.json", "not a JSON object"});
  expect_config_refused("deberta.json", "{\"model_type\": \"deberta\"}",
      {"deberta.json:1:16", "\"deberta\" is not supported", "nearest is"});
  expect_config_refused(
      "moe.json", "{\"architectures\": [\"MambaForCausalLM\"]}", {"MambaForCausalLM", "not supported"});
  expect_config_refused(
      "zero.json", R"({"model_type": "gpt2", "n_layer": 0, "n_embd": 8, "n_head": 2})", {"zero.json:1:35", "n_layer"});
  expect_config_refused("huge.json",
      R"({"model_type": "gpt2", "n_layer": 1000000000, "n_embd": 1000000000,
                            "n_head": 1, "vocab_size": 1000000000})",
      {"huge.json"});
}

TEST(BadInput, MissingCapability) {
  expect_refused("predict --model gpt2 --cluster local", 6, {"measured profile", "foreshard-exec"});
  expect_refused(kJob + "--runtime fsdp1@2.1", 6, {"2.1", "fsdp1@2."});
  expect_refused(kJob + "--runtime fsdp2@2.16", 6, {"'2.16'", "fsdp2@2.15"});
  expect_refused(kJob + "--set prefetch.forward=0", 6, {"prefetch.forward: implicit"});
  expect_refused(kJob + "--runtime native --set offload=cpu_unpinned", 6, {"offload: cpu"});
  expect_refused(kJob + "--runtime fsdp2@2.7 --set reduction.force_sum=true", 6,
      {"came with PyTorch 2.8", "reduction.force_sum: false"});
  const std::string stages = kJob + "--set mesh.pp=4 --set units.head=with_norm ";
  expect_refused(stages + "--runtime ddp", 6, {"mesh.pp", "fsdp2@2.11"});
  const std::string halves = stages + "--set pipeline.schedule=ZBVZeroBubble ";
  expect_refused(halves + "--runtime megatron", 6, {"pipeline.schedule", "Interleaved1F1B"});
  const std::string whole = halves + "--set pipeline.stages_per_rank=2 ";
  expect_refused(whole + "--set recompute=selective", 6, {"recompute", "full"});
  expect_refused(whole + "--set reshard_after_forward=always", 3, {"loses them", "never"});
  expect_refused(stages + "--set pipeline.stages_per_rank=16", 3, {"mesh.pp", "stage"});
  for (const char* to : {"fsdp2", "accelerate"}) {
    expect_refused(std::string("export --model llama-3.1-8b --cluster 8xh100 --set mesh.pp=4 --to ") + to, 6,
        {"mesh.pp", "torchtitan"});
  }
  expect_refused(kJob + "--set mesh.pp=8", 6, {"mesh.pp without fully_shard", "mesh.shard: 2"});
}

TEST(BadInput, FilesThatCannotBeWritten) {
  const std::string job = "predict --model gpt2 --cluster 8xh100 ";
  expect_refused(job + "--trace none/trace.json", 3, {"none/trace.json", "No such file"});
  expect_refused(job + "--trace /dev/full", 3, {"/dev/full", "No space left"});
  expect_refused(job + "--csv .", 3, {".: cannot be written"});
  expect_refused("search --model gpt2 --cluster 8xh100 --out none/plan.yaml", 3, {"none/plan.yaml"});
  const Outcome full = shell("\"$F\" predict --model gpt2 --cluster 8xh100 >/dev/full");
  EXPECT_EQ(full.exit_code, 3);
  expect_says(full.err, "standard output: cannot be written: No space left");
  expect_no_crash(full);
}

}
}
