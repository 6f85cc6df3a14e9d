// Jobs that cannot be: each is refused with the key that is wrong and what would be right, and
// nothing on standard output that could be taken for an answer.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "calibration/profile.h"
#include "calibration/profile_store.h"
#include "tests/cli/program.h"

namespace foreshard {
namespace {

struct Nonsense {
  std::string arguments;
  int exit_code;
  const char* key;
  const char* fix;
};

void expect_refused(const Nonsense& job) {
  SCOPED_TRACE(job.arguments);
  const Outcome outcome = run(job.arguments);
  EXPECT_EQ(outcome.exit_code, job.exit_code) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  expect_says(outcome.err, job.key);
  expect_says(outcome.err, job.fix);
  expect_no_crash(outcome);
}

std::string on(const std::string& cluster, const std::string& set) {
  return "predict --model gpt2 --cluster " + cluster + " --set " + set;
}

TEST(Nonsense, HardwareThatCannot) {
  const std::vector<Nonsense> jobs = {
      {on("8xa100", "float8=tensorwise"), 3, "--set:1:8: float8", "did you mean none?"},
      {on("8xv100", "float8=rowwise"), 3, "float8", "no fp8 units"},
      {on("8xt4", "float8=current"), 3, "float8", "did you mean none?"},
      {on("8xmi250x", "float8=tensorwise"), 3, "float8", "gpu.peak_fp8"},
      {on("8xh100", "float8=tensorwise --set dtype.param=fp32"), 3, "float8", "dtype.param: bf16"},
      {on("8xb200", "float8=rowwise --set dtype.param=fp32"), 3, "float8", "dtype.autocast: bf16"},
      {on("8xa100", "attention=fa3"), 3, "--set:1:11: attention", "did you mean fa2?"},
      {on("8xb200", "attention=fa3"), 3, "attention", "did you mean fa2?"},
      {on("8xl40s", "attention=fa3"), 3, "attention", "GPU of hopper"},
      {on("8xmi300x", "attention=fa3"), 3, "attention", "GPU of hopper"},
      {on("8xv100", "attention=fa2"), 3, "attention", "did you mean flash?"},
      {on("8xt4", "attention=fa2"), 3, "attention", "did you mean fa1?"},
      {on("8xv100", "attention=fa1"), 3, "attention", "did you mean flash?"},
      {on("8xv100", "attention=cudnn"), 3, "attention", "ampere, ada, hopper"},
      {on("8xt4", "attention=cudnn"), 3, "attention", "did you mean fa1?"},
  };
  for (const Nonsense& job : jobs) expect_refused(job);
}

// A line of a cluster file that names 16 H100 and one thing that cannot be.
TEST(Nonsense, MachinesThatCannotBe) {
  struct Line {
    const char* text;
    const char* says;
    const char* fix;
  };
  const std::vector<Line> lines = {
      {"gpu: {memory: 16TiB}", "machine.yaml:3:15: gpu.memory", "79.1GiB"},
      {"gpu: {memory: 1kB}", "machine.yaml:3:15: gpu.memory", "79.1GiB"},
      {"gpu: {memory: 9000000TiB}", "gpu.memory", "for example 80GiB"},
      {"gpu: {memory_bandwidth: 1B/s}", "machine.yaml:3:25: gpu.memory_bandwidth", "3350GB/s"},
      {"gpu: {memory_bandwidth: 3350TB/s}", "gpu.memory_bandwidth", "300TB/s"},
      {"gpu: {memory_bandwidth: 100GB/s}", "gpu.memory_bandwidth", "a rate above"},
      {"gpu: {peak_bf16: 0.1GFLOP/s}", "machine.yaml:3:18: gpu.peak_bf16", "989TFLOP/s"},
      {"gpu: {peak_bf16: 989000PFLOP/s}", "gpu.peak_bf16", "989TFLOP/s"},
      {"gpu: {peak_fp32: 5000PFLOP/s}", "gpu.peak_fp32", "67TFLOP/s"},
      {"gpu: {peak_fp8: 5000PFLOP/s}", "gpu.peak_fp8", "1979TFLOP/s"},
      {"gpu: {architecture: hoper}", "machine.yaml:3:21: gpu.architecture", "did you mean hopper?"},
      {"gpu: {architecture: quantum}", "gpu.architecture", "one of volta"},
      {"gpu: {power_limit: 60W}", "machine.yaml:3:20: gpu.power_limit", "at least 140W"},
      {"gpu: {power_limit: 1W}", "gpu.power_limit", "such as 700W"},
      {"gpu: {power_limit: 90000W}", "gpu.power_limit", "such as 700W"},
      {"gpu: {clock: 1980GHz}", "gpu.clock", "1980MHz"},
      {"gpu: {multiprocessors: 0}", "gpu.multiprocessors", "expected"},
      {"node: {nic_rate: 4Tbit/s}", "machine.yaml:3:18: node.nic_rate", "host_link"},
      {"node: {nic_rate: {value: 40Tbit/s, source: a dream}}", "machine.yaml:3:26: node.nic_rate", "400Gbit/s"},
      {"node: {nic_rate: 1bit/s}", "node.nic_rate", "400Gbit/s"},
      {"node: {gpu_link: 9TB/s}", "machine.yaml:3:18: node.gpu_link", "450GB/s"},
      {"node: {gpu_link: 100TB/s}", "node.gpu_link", "450GB/s"},
      {"node: {link_latency: 10s}", "machine.yaml:3:22: node.link_latency", "600ns"},
      {"node: {nic_latency: 2s}", "machine.yaml:3:21: node.nic_latency", "2700ns"},
      {"node: {link_latency: -1us}", "node.link_latency", "must not be negative"},
      {"node: {host_link: 100TB/s}", "node.host_link", "48GB/s"},
      {"node: {host_memory_bandwidth: 1B/s}", "node.host_memory_bandwidth", "614.4GB/s"},
      {"node: {storage_bandwidth: 100TB/s}", "node.storage_bandwidth", "25GB/s"},
      {"node: {nics: 1000000000}", "node.nics", "4,096"},
      {"node: {gpus: 1000000000}", "node.gpus", "4,096"},
      {"node: {link_domain: 1000000000}", "node.link_domain", "4,096"},
      {"network: {oversubscription: 0.1}", "network.oversubscription", "expected"},
      {"memory_outside_allocator: 100GiB", "memory_outside_allocator", "less than gpu.memory"},
      {"degraded: [{node: 7, nic: 0, fraction: 0}]", "node", "expected"},
  };
  for (const Line& line : lines) {
    write_temporary("machine.yaml", std::string("gpus: 16\nmachine: h100-sxm\n") + line.text + "\n");
    expect_refused({on("machine.yaml", "batch.sequence=512"), 3, line.says, line.fix});
    if (HasFailure()) std::cerr << line.text << "\n";
  }
}

// A scan reads its convolution's weight without calling the convolution.
TEST(Nonsense, UnitsOfWhatIsNotCalled) {
  const std::string job = "predict --model nemotron-h-8b --cluster 8xb200 --runtime fsdp1 --set ";
  expect_refused(
      {job + "units.min_parameters=3000", 3, "conv1d.weight would be in another unit", "units.min_parameters: "});
}

TEST(Nonsense, PartsOfConvolutions) {
  const std::string model = write_temporary("config.json",
      R"({"model_type": "lfm2", "vocab_size": 1000, "hidden_size": 256, "num_hidden_layers": 2,
          "num_attention_heads": 8, "intermediate_size": 512, "layer_types": ["conv", "conv"]})");
  const std::string job = "predict --cluster 8xh100 --runtime fsdp2 --sequence 512 --set mesh.shard=4 --model " + model;
  expect_refused({job + " --set mesh.tp=2", 6, "mesh.tp: linear attention", "mesh.tp: 1"});
  expect_refused({job + " --set mesh.cp=2", 6, "mesh.cp: linear attention", "mesh.cp: 1"});
}

TEST(Nonsense, ProfilesOfOtherGpus) {
  const std::string t4 = write_temporary("t4.json", to_text(to_json(load_profile("t4"))));
  expect_refused(
      {on("8xh100", "batch.sequence=512") + " --profile " + t4, 3, "gpu: the profile is of t4", "--accept-profile"});
  expect_refused({"search --model gpt2 --cluster 8xh100 --profile " + t4, 3, "h100-sxm", "--accept-profile"});
  // Who insists is answered and told.
  const nlohmann::ordered_json answer =
      json_of(run(on("8xh100", "batch.sequence=512") + " --accept-profile --json --profile " + t4));
  expect_says(answer.dump(), "measured on t4 (--accept-profile)");
}

// Products twice as fast as the GPU's peak: whatever answers names the file.
TEST(Nonsense, ProfilesFasterThanTheGpu) {
  Json profile = to_json(load_profile("h100-sxm"));
  profile["gemm_bf16"]["efficiency"] = 2.0;
  profile["gemm_bf16"]["sustained"] = 1.0;
  profile.erase("heat");  // no card has the power for it
  const std::string file = write_temporary("fast.json", profile.dump());
  const std::string job = " --model llama-3.1-70b --profile " + file;
  const char* says = "fast.json: the profile makes";
  for (const char* verb :
      {"recommend --cluster 64xh100 --tokens 1B --deadline 30d", "scale --cluster h100 --gpus 64"}) {
    expect_refused({verb + job, 3, says, "measured on"});
  }
}

TEST(Nonsense, SettingsThatCannotBe) {
  write_temporary("accelerate.yaml",
      "distributed_type: FSDP\nnum_machines: 1\nnum_processes: -1\n"
      "fsdp_config: {fsdp_version: 2}\n");
  const std::string settings = "import accelerate.yaml --model gpt2 --cluster 8xh100";
  expect_refused({settings, 3, "accelerate.yaml:3:16: num_processes", "expected"});
  write_temporary("topo.txt",
      "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV1000000000\t0-1\n"
      "GPU1\tNV1000000000\t X \t0-1\n");
  expect_refused({"import topo.txt --machine h100-sxm", 3, "1000000000 NVLinks", "NV1 to NV72"});
  const std::vector<Nonsense> jobs = {
      {on("8xh100", "mesh.shard=0"), 3, "mesh.shard", "expected"},
      {on("8xh100", "mesh.shard=1000000000"), 3, "mesh.shard", "expected"},
      {on("0xh100", "batch.sequence=512"), 3, "0xh100", "the count must be 1"},
      {on("-8xh100", "batch.sequence=512"), 3, "-8xh100", "the count must be 1"},
      {on("8xh100", "batch.micro_batch=-1"), 3, "batch.micro_batch", "expected"},
      {on("8xh100", "batch.sequence=9e18"), 3, "batch.sequence", "expected"},
      {on("8xh100", "optimizer.clip_norm=-1"), 3, "optimizer.clip_norm", "a number above 0"},
      {on("8xh100", "lora.rank=8 --set float8=rowwise"), 3, "float8", "lora.rank: 0"},
  };
  for (const Nonsense& job : jobs) expect_refused(job);
}

// A config.json of a Llama with one thing in it that cannot be, or that nobody knows how to train.
TEST(Nonsense, ModelsThatCannotBe) {
  const std::string base = R"({"model_type": "llama", "hidden_size": 512, "intermediate_size": 1536,)"
                           R"( "num_hidden_layers": 2, "num_attention_heads": 8, "vocab_size": 1024,)"
                           R"( "max_position_embeddings": 2048,)";
  struct Line {
    const char* text;
    const char* says;
    const char* fix;
  };
  const std::vector<Line> lines = {
      {R"("quantization_config": {"quant_method": "gptq", "bits": 4}})", "quantization_config.quant_method",
          "lora.base=nf4"},
      {R"("quantization_config": {"bits": 4}})", "quantization_config", "unquantised model"},
      {R"("quantization_config": "int8"})", "quantization_config", "unquantised model"},
      {R"("rope_scaling": {"rope_type": "banana", "factor": 8}})", "rope_scaling.rope_type", "llama3"},
      {R"("rope_scaling": {"type": "yarn", "factor": -8}})", "rope_scaling.factor", "from 1 to"},
      {R"("rope_scaling": {"factor": 8}})", "rope_scaling", "rope_type, such as"},
      {R"("rope_scaling": "yes"})", "rope_scaling", "rope_type, factor, ... or null"},
      {R"("head_dim": 63})", "head_dim", "an even head dimension"},
      {R"("head_dim": 0})", "head_dim", "an integer from 1"},
      {R"("head_dim": 64.5})", "head_dim", "an integer from 1"},
  };
  for (const Line& line : lines) {
    write_temporary("model.json", base + line.text);
    expect_refused({"predict --model ./model.json --cluster 8xh100", 3, line.says, line.fix});
    if (HasFailure()) std::cerr << line.text << "\n";
  }
}

TEST(Nonsense, MeasurementsThatCannotBe) {
  write_temporary("fast.csv", "gpu,m,n,k,dtype,tflops\nH100,4096,4096,4096,bf16,7e5\n");
  expect_refused({"calibrate fast.csv --out p.json", 3, "fast.csv:2", "is tflops in TFLOP/s"});
  write_temporary("slow.csv", "gpu,m,n,k,dtype,tflops\nH100,8192,8192,8192,bf16,0.7\n");
  expect_refused({"calibrate slow.csv --out p.json", 3, "slow.csv:2", "is tflops in TFLOP/s"});
  write_temporary("all_gather_perf.log",
      "# Rank 0 Pid 1 on a device 0 [0x1] NVIDIA H100\n"
      "# Rank 1 Pid 2 on a device 1 [0x2] NVIDIA H100\n"
      "# size count type redop root time algbw busbw\n"
      "1073741824 268435456 float none -1 10.0 107374.18 53687.09\n");
  expect_refused({"calibrate all_gather_perf.log --out p.json", 3, "all_gather_perf.log:4", "another unit"});
  write_temporary("nccl.xml",
      "<system><cpu host_hash=\"0x1\"><pci><gpu sm=\"90\"><nvlink count=\"1000000000\"/></gpu></pci></cpu></system>");
  expect_refused({"import nccl.xml", 3, "nccl.xml:1: count of nvlink", "at most 72"});
}

// Ten microseconds more for each hop of a ring of 16 are seen in the step.
TEST(Nonsense, LatenciesAreNotIgnored) {
  const auto communication = [](const char* figure) {
    write_temporary("latency.yaml", std::string("gpus: 16\nmachine: h100-sxm\n") + figure);
    return json_of(run(on("latency.yaml", "batch.sequence=512") + " --json"))
        .at("step")
        .at("communication_s")
        .at("value")
        .get<double>();
  };
  const double usual = communication("");
  EXPECT_EQ(communication("node: {link_latency: 600ns, nic_latency: 2700ns}\n"), usual);
  EXPECT_GT(communication("node: {link_latency: 10us}\n"), usual + 1e-4);
  EXPECT_GT(communication("node: {nic_latency: 100us}\n"), usual + 1e-4);
  EXPECT_LT(communication("node: {nic_latency: 1us}\n"), usual);
}

// Every MFU is of work that is done: 107 % before frozen blocks were left out.
TEST(Nonsense, FrozenBlocksAreNoWork) {
  const nlohmann::ordered_json answer =
      json_of(run("predict --model llama-3.1-8b --cluster 8xh100 --set 'frozen=[embedding,0-30]' --json"));
  const double mfu = answer.at("step").at("mfu").at("value").get<double>();
  EXPECT_GT(mfu, 0);
  EXPECT_LE(mfu, 1);
}

}
}
