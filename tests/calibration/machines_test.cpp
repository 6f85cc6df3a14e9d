#include "calibration/machines.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>

#include "sim/base/error.h"
#include "tests/support/temporary_folder.h"

namespace foreshard {
namespace {

std::string message_of(const std::string& spec) {
  try {
    load_cluster(spec);
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::kInvalidInput) << spec;
    return error.what();
  }
  ADD_FAILURE() << spec << " was accepted";
  return "";
}

std::string file_message(const std::string& yaml) {
  try {
    parse_cluster(yaml, "c.yaml");
  } catch (const ConfigError& error) {
    return error.what();
  }
  ADD_FAILURE() << yaml << " was accepted";
  return "";
}

void expect_part(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' not in: " << text;
}

TEST(Machines, CatalogueIsComplete) {
  std::vector<std::string> keys;
  for (const Machine& machine : list_machines()) keys.push_back(machine.key);
  EXPECT_GE(keys.size(), 30U);
  for (const char* key : {"a100-40gb", "a100-80gb", "h100-sxm", "h100-96gb-500w", "h100-pcie", "h100-nvl", "h200",
           "b200", "b300", "gb200", "gb300", "mi300x", "mi325x", "mi355x", "l40s"}) {
    EXPECT_NE(std::find(keys.begin(), keys.end(), key), keys.end()) << key;
  }
}

// A name means one machine.
TEST(Machines, NamesAreUnique) {
  std::set<std::string> names;
  for (const Machine& machine : list_machines()) {
    EXPECT_TRUE(names.insert(machine.key).second) << machine.key;
    for (const std::string& alias : machine.aliases) EXPECT_TRUE(names.insert(alias).second) << alias;
  }
}

TEST(Machines, EveryGpuSaysWhatItIs) {
  for (const Machine& machine : list_machines()) {
    const Gpu& gpu = machine.node.gpu;
    EXPECT_FALSE(gpu.architecture.empty()) << machine.key;
    EXPECT_GT(gpu.clock, 1e9) << machine.key;
    EXPECT_GT(gpu.power_limit, 50) << machine.key;
    EXPECT_GT(gpu.price_per_hour, 0) << machine.key;
    // fp8 units give twice bf16's rate or there are none.
    if (gpu.peak_fp8.value() > 0) {
      EXPECT_NEAR(gpu.peak_fp8.value() / gpu.peak_bf16.value(), 2, 0.03) << machine.key;
    }
  }
}

TEST(Machines, EveryFigureHasItsOwnSource) {
  for (const Machine& machine : list_machines()) {
    const Cluster& c = machine.node;
    // Said where it does not hold, and where there are such units.
    const std::size_t besides = (c.node.peer_access ? 0 : 1) + (c.gpu.peak_fp4.value() > 0 ? 1 : 0);
    EXPECT_EQ(c.sources.size(), 26U + besides) << machine.key;
    for (const auto& [figure, source] : c.sources) {
      EXPECT_GT(source.size(), 10U) << machine.key << ' ' << figure;
      for (const char* excluded : {"ml-engineering", "stas00", "gpu-benches", "gpu_benchmark"}) {
        EXPECT_EQ(source.find(excluded), std::string::npos) << machine.key << ' ' << figure;
      }
    }
    EXPECT_FALSE(c.gpu.source.empty() || c.node.source.empty() || c.network.source.empty()) << machine.key;
    EXPECT_FALSE(c.memory_outside_allocator) << machine.key;  // depends on the plan
  }
}

TEST(Machines, KnownFigures) {
  const Cluster c = load_cluster("64xh100");
  EXPECT_EQ(c.gpu.key, "h100-sxm");
  EXPECT_EQ(c.spec, "64xh100");
  EXPECT_EQ(c.gpus, 64);
  EXPECT_EQ(c.nodes(), 8);
  EXPECT_EQ(c.gpu.multiprocessors, 132);
  EXPECT_EQ(c.gpu.peak_bf16.value(), 989e12);
  EXPECT_EQ(c.gpu.memory_bandwidth.value(), 3350e9);
  EXPECT_EQ(c.node.gpu_link.value(), 450e9);
  EXPECT_EQ(c.node.nics, 8);
  EXPECT_EQ(c.node.nic_rate.value(), 50e9);
  EXPECT_EQ(c.network.oversubscription, 1);
  EXPECT_EQ(load_cluster("8xa100").gpu.key, "a100-80gb");
  EXPECT_EQ(load_cluster("8xa100-40gb").gpu.memory_bandwidth.value(), 1555e9);
  EXPECT_EQ(load_cluster("3xb200").gpus_per_node(), 3);
  EXPECT_EQ(load_cluster("1048576xh200").nodes(), 131072);
}

TEST(Machines, BadSpecs) {
  expect_part(message_of("64xh10"), "did you mean 64xh100?");
  expect_part(message_of("64xh10"), "foreshard machines lists all");
  expect_part(message_of("64xzzz"), "unknown machine 'zzz'; such as");
  expect_part(message_of("12xh100"), "the next multiples are 8 and 16");
  expect_part(message_of("0xh100"), "1 to 1048576");
  expect_part(message_of("-8xh100"), "1 to 1048576");
  expect_part(message_of("1048577xh100"), "1 to 1048576");
  expect_part(message_of("99999999999999999999xh100"), "1 to 1048576");
  expect_part(message_of("64"), "64xh100");
  expect_part(message_of("h100"), "says no count; did you mean 8xh100?");
  expect_part(message_of(""), "is empty");
  expect_part(message_of("64x"), "expected a count and a machine");
  expect_part(message_of("nowhere/cluster.yaml"), "nowhere/cluster.yaml");
  message_of("/");
}

TEST(Machines, ClusterFileOverridesTheCatalogue) {
  const Cluster c = parse_cluster(
      "gpus: 64\n"
      "machine: h100\n"
      "gpu: {memory: 94GiB}\n"
      "node:\n"
      "  nics: 4\n"
      "  nic_rate: {value: 200Gbit/s, source: our contract}\n"
      "network: {oversubscription: 2.5}\n"
      "memory_outside_allocator: 2GiB\n",
      "c.yaml");
  EXPECT_EQ(c.gpu.key, "h100-sxm");
  EXPECT_EQ(c.gpu.memory.count(), 94LL << 30);
  EXPECT_EQ(c.node.nics, 4);
  EXPECT_EQ(c.node.nic_rate.value(), 25e9);
  EXPECT_EQ(c.node.gpu_link.value(), 450e9);
  EXPECT_EQ(c.network.oversubscription, 2.5);
  EXPECT_EQ(c.memory_outside_allocator->count(), 2LL << 30);
  EXPECT_EQ(c.sources.size(), 27U);
  for (const auto& [figure, source] : c.sources) {
    if (figure == "node.nics") {
      EXPECT_EQ(source, "c.yaml:5");
    }
    if (figure == "node.nic_rate") {
      EXPECT_EQ(source, "our contract");
    }
    if (figure == "gpu.peak_bf16") {
      EXPECT_EQ(source.find("c.yaml"), std::string::npos);
    }
  }
}

TEST(Machines, ClusterFileFromDisk) {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder.write("cluster.yaml", "{gpus: 4, machine: b200}\n");
  const Cluster c = load_cluster(path.string());
  EXPECT_EQ(c.gpu.key, "b200");
  EXPECT_EQ(c.gpus, 4);
  EXPECT_EQ(c.spec, path.string());
}

TEST(Machines, ClusterFileWithoutTheCatalogue) {
  const std::string all =
      "gpus: 8\n"
      "gpu: {key: x1, name: X1, multiprocessors: 100, peak_bf16: 500TFLOP/s, peak_fp32: 50TFLOP/s,"
      " memory: 64GiB, memory_bandwidth: 2TB/s}\n"
      "node: {key: box, gpus: 4, gpu_link: 100GB/s, gpu_link_name: L, nics: 1, nic_rate: 100Gbit/s,"
      " nic_name: N, link_latency: 1us, nic_latency: 5us}\n"
      "network: {kind: rail fat tree, nodes_per_leaf: 16, oversubscription: 1}\n"
      "memory_outside_allocator: 1GiB\n";
  const Cluster c = parse_cluster(all, "x.yaml");
  EXPECT_EQ(c.gpu.key, "x1");
  EXPECT_EQ(c.nodes(), 2);
  expect_part(file_message("gpus: 8\n"), "machine");
  std::string missing = all;
  missing.erase(missing.find(", nic_latency: 5us"), 18);
  expect_part(file_message(missing), "nic_latency");
}

TEST(Machines, BadClusterFiles) {
  expect_part(file_message("{gpus: 64, machin: h100}"), "did you mean machine");
  expect_part(file_message("{gpus: 64, machine: h10}"), "did you mean h100");
  expect_part(file_message("{machine: h100}"), "gpus");
  expect_part(file_message("{gpus: 12, machine: h100}"), "next multiples are 8 and 16");
  expect_part(file_message("{gpus: 0, machine: h100}"), "gpus");
  expect_part(file_message("{gpus: 64, machine: h100, node: {nic_rate: 400}}"), "nic_rate");
  expect_part(file_message("{gpus: 64, machine: h100, node: {nic_rate: 400Gbps}}"), "nic_rate");
  expect_part(file_message("{gpus: 64, machine: h100, node: {nic_rat: 400Gbit/s}}"), "did you mean nic_rate");
  expect_part(file_message("{gpus: 64, machine: h100, node: {nics: 0}}"), "without a network port");
  expect_part(file_message("{gpus: 64, machine: h100, network: {oversubscription: 0.5}}"), "oversubscription");
  expect_part(
      file_message("{gpus: 64, machine: h100, gpu: {memory: 1GiB}, memory_outside_allocator: 2GiB}"), "leaves nothing");
  expect_part(file_message("{gpus: 64, machine: h100, node: 8}"), "not a mapping");
  expect_part(file_message("{gpus: 64, machine: h100, gpu: {memory: {value: 80GiB}}}"), "source");
  expect_part(file_message("[1]"), "c.yaml");
  expect_part(file_message("{gpus: 64, machine: h100, gpu: {key: h200}}"), "machine");
}

}
}
