// Environments as the launchers make them, and broken ones.
#include "exec/launch/launch.h"

#include <gtest/gtest.h>

#include <map>

#include "sim/base/error.h"

namespace foreshard {
namespace {

using Variables = std::map<std::string, std::string>;

Launch resolve(const Variables& variables) {
  return resolve_launch([&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  });
}

std::string error_of(const Variables& variables) {
  try {
    resolve(variables);
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::kLaunchFailure);
    return error.what();
  }
  return "no error";
}

const Variables kTorchrun = {{"RANK", "5"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "4"},
    {"MASTER_ADDR", "node0"}, {"MASTER_PORT", "29500"}, {"TORCHELASTIC_RUN_ID", "abc"},
    {"TORCHELASTIC_RESTART_COUNT", "2"}, {"TORCHELASTIC_USE_AGENT_STORE", "True"}};

Variables with(Variables variables, const std::string& name, const std::string& value) {
  variables[name] = value;
  return variables;
}

Variables without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

TEST(Launch, NoLauncherIsOneRank) {
  const Launch launch = resolve({});
  EXPECT_EQ(launch.rank, 0);
  EXPECT_EQ(launch.size, 1);
  EXPECT_EQ(launch.launcher, "none");
}

TEST(Launch, Torchrun) {
  const Launch launch = resolve(kTorchrun);
  EXPECT_EQ(launch.rank, 5);
  EXPECT_EQ(launch.size, 8);
  EXPECT_EQ(launch.local_rank, 1);
  EXPECT_EQ(launch.local_size, 4);
  EXPECT_EQ(launch.master_address, "node0");
  EXPECT_EQ(launch.master_port, 29500);
  EXPECT_TRUE(launch.agent_store);
  EXPECT_EQ(launch.run_id, "abc/2");
  EXPECT_EQ(launch.launcher, "torchrun");
  EXPECT_FALSE(resolve(with(kTorchrun, "TORCHELASTIC_USE_AGENT_STORE", "False")).agent_store);
}

TEST(Launch, ByHandOnOneMachineAllRanksAreLocal) {
  const Variables variables = {
      {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "localhost"}, {"MASTER_PORT", "1234"}};
  const Launch launch = resolve(variables);
  EXPECT_EQ(launch.local_rank, 1);
  EXPECT_EQ(launch.local_size, 2);
  EXPECT_EQ(launch.launcher, "environment");
  EXPECT_EQ(resolve(with(variables, "MASTER_ADDR", "node0")).local_size, 1);
}

TEST(Launch, WhatTorchrunLeavesOutIsNamed) {
  EXPECT_EQ(error_of(without(kTorchrun, "WORLD_SIZE")), "WORLD_SIZE is not set, but RANK is (torchrun)");
  EXPECT_EQ(error_of(without(kTorchrun, "RANK")), "RANK is not set, but WORLD_SIZE is (torchrun)");
  EXPECT_EQ(error_of(without(kTorchrun, "MASTER_ADDR")), "MASTER_ADDR is not set, but WORLD_SIZE is (torchrun)");
  EXPECT_EQ(error_of(without(kTorchrun, "MASTER_PORT")), "MASTER_PORT is not set, but WORLD_SIZE is (torchrun)");
  EXPECT_EQ(error_of({{"WORLD_SIZE", "2"}}), "RANK is not set, but WORLD_SIZE is (RANK and WORLD_SIZE set by hand)");
}

TEST(Launch, NumbersAreReadStrictly) {
  EXPECT_EQ(error_of(with(kTorchrun, "RANK", "8")), "RANK=8 is not below WORLD_SIZE=8");
  EXPECT_EQ(error_of(with(kTorchrun, "RANK", "-1")), "RANK=-1: expected a whole number from 0 to 1000000 (torchrun)");
  EXPECT_EQ(error_of(with(kTorchrun, "WORLD_SIZE", "8x")),
      "WORLD_SIZE=8x: expected a whole number from 1 to 1000000 (torchrun)");
  EXPECT_EQ(error_of(with(kTorchrun, "WORLD_SIZE", "0")),
      "WORLD_SIZE=0: expected a whole number from 1 to 1000000 (torchrun)");
  EXPECT_EQ(error_of(with(kTorchrun, "MASTER_PORT", "70000")),
      "MASTER_PORT=70000: expected a whole number from 1 to 65535 (torchrun)");
  EXPECT_EQ(error_of(with(kTorchrun, "LOCAL_RANK", "4")), "LOCAL_RANK=4 is not below LOCAL_WORLD_SIZE=4");
  EXPECT_EQ(error_of(with(kTorchrun, "LOCAL_WORLD_SIZE", "9")),
      "LOCAL_WORLD_SIZE=9: expected a whole number from 1 to 8 (torchrun)");
}

const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"},
    {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}, {"PMIX_RANK", "1"},
    {"PMIX_NAMESPACE", "241238017"}};

TEST(Launch, OpenMpiOnOneMachine) {
  const Launch launch = resolve(kOpenMpi);
  EXPECT_EQ(launch.rank, 1);
  EXPECT_EQ(launch.size, 2);
  EXPECT_EQ(launch.local_rank, 1);
  EXPECT_EQ(launch.local_size, 2);
  EXPECT_EQ(launch.master_address, "127.0.0.1");
  EXPECT_EQ(launch.run_id, "241238017");
  EXPECT_EQ(launch.launcher, "Open MPI");
  // FNV-1a of "a" is 0xe40c292c = 3826002220, a published value of the function: 20000 + 2220.
  EXPECT_EQ(resolve(with(kOpenMpi, "PMIX_NAMESPACE", "a")).master_port, 22220);
  EXPECT_EQ(resolve(with(kOpenMpi, "MASTER_PORT", "777")).master_port, 777);
}

TEST(Launch, OpenMpiOnSeveralMachinesNeedsAnAddress) {
  const Variables two_nodes =
      with(with(kOpenMpi, "OMPI_COMM_WORLD_LOCAL_SIZE", "1"), "OMPI_COMM_WORLD_LOCAL_RANK", "0");
  EXPECT_EQ(error_of(two_nodes),
      "MASTER_ADDR is not set: Open MPI started 2 ranks on several machines and names none of "
      "them; set MASTER_ADDR to the host of rank 0 for all ranks");
  EXPECT_EQ(resolve(with(two_nodes, "MASTER_ADDR", "node7")).master_address, "node7");
  EXPECT_EQ(error_of(without(kOpenMpi, "OMPI_COMM_WORLD_SIZE")),
      "OMPI_COMM_WORLD_SIZE is not set, but OMPI_COMM_WORLD_RANK is (Open MPI)");
}

const Variables kSlurm = {{"SLURM_PROCID", "9"}, {"SLURM_NTASKS", "16"}, {"SLURM_LOCALID", "1"},
    {"SLURM_STEP_NODELIST", "gpu[07-08]"}, {"SLURM_STEP_NUM_NODES", "2"}, {"SLURM_JOB_ID", "4711"},
    {"SLURM_STEP_ID", "3"}, {"SLURM_LAUNCH_NODE_IPADDR", "10.9.9.9"}};

TEST(Launch, SlurmStep) {
  const Launch launch = resolve(kSlurm);
  EXPECT_EQ(launch.rank, 9);
  EXPECT_EQ(launch.size, 16);
  EXPECT_EQ(launch.local_rank, 1);
  EXPECT_EQ(launch.master_address, "gpu07");
  EXPECT_EQ(launch.run_id, "4711.3");
  EXPECT_GE(launch.master_port, 20000);
  EXPECT_LT(launch.master_port, 30000);
  EXPECT_EQ(launch.launcher, "Slurm");
  EXPECT_FALSE(launch.agent_store);
}

TEST(Launch, SlurmOnOneNodeStaysOnTheLoopback) {
  const Launch launch = resolve(with(kSlurm, "SLURM_STEP_NUM_NODES", "1"));
  EXPECT_EQ(launch.local_size, 16);
  EXPECT_EQ(launch.master_address, "127.0.0.1");
}

TEST(Launch, ABatchScriptIsNoRank) {
  const Variables script = without(kSlurm, "SLURM_STEP_NODELIST");
  EXPECT_NE(error_of(script).find("start the ranks with srun"), std::string::npos);
  EXPECT_EQ(resolve(with(script, "SLURM_NTASKS", "1")).launcher, "none");
}

TEST(Launch, SlurmNodeLists) {
  EXPECT_EQ(first_host("node1"), "node1");
  EXPECT_EQ(first_host("node1,node2"), "node1");
  EXPECT_EQ(first_host("gpu[07-09,12],login1"), "gpu07");
  EXPECT_EQ(first_host("gpu[12]"), "gpu12");
  EXPECT_EQ(first_host("rack[1-2]n[003,005].example"), "rack1n003.example");
  for (const char* broken : {"", "gpu[", "gpu[]", "gpu[a-b]", "gpu]", ",node1", "gpu[-3]"}) {
    EXPECT_THROW(first_host(broken), Error) << broken;
  }
}

TEST(Launch, Pmi) {
  const Variables variables = {{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"},
      {"MASTER_ADDR", "node3"}, {"MASTER_PORT", "4000"}};
  const Launch launch = resolve(variables);
  EXPECT_EQ(launch.rank, 3);
  EXPECT_EQ(launch.size, 4);
  EXPECT_EQ(launch.local_rank, 1);
  EXPECT_EQ(launch.master_address, "node3");
  EXPECT_EQ(launch.launcher, "PMI");
  EXPECT_NE(error_of(without(variables, "MASTER_ADDR")).find("MASTER_ADDR is not set"), std::string::npos);
  EXPECT_EQ(error_of(without(variables, "PMI_SIZE")), "PMI_SIZE is not set, but PMI_RANK is (PMI)");
}

// srun with PMI sets both with one number; a launcher's helpers under srun have numbers of their own.
TEST(Launch, PmiUnderSlurm) {
  const Variables same = with(with(kSlurm, "PMI_RANK", "9"), "PMI_SIZE", "16");
  EXPECT_EQ(resolve(same).launcher, "Slurm");
  const Variables helper = with(with(same, "PMI_RANK", "2"), "MASTER_ADDR", "node3");
  EXPECT_EQ(resolve(helper).launcher, "PMI");
  EXPECT_EQ(resolve(helper).rank, 2);
}

TEST(Launch, TorchrunInsideSlurmIsTorchrun) {
  Variables both = kTorchrun;
  both.insert(kSlurm.begin(), kSlurm.end());
  both.insert(kOpenMpi.begin(), kOpenMpi.end());
  EXPECT_EQ(resolve(both).launcher, "torchrun");
}

TEST(Launch, SpawnedRanksSaySo) {
  const Launch launch = resolve(
      with(with(without(kTorchrun, "TORCHELASTIC_RUN_ID"), "FORESHARD_SPAWNED", "1"), "FORESHARD_RUN_ID", "spawn-1"));
  EXPECT_EQ(launch.launcher, kSpawnLauncher);
  EXPECT_EQ(launch.run_id, "spawn-1/2");
}

}
}
