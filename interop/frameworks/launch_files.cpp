// torchrun starts one agent per node, which starts the ranks; Slurm and Open MPI start ranks or
// agents themselves. Environments are those of exec/launch and of the script of export_fsdp2.h.
#include <fmt/format.h>

#include <algorithm>

#include "interop/frameworks/frameworks.h"
#include "sim/base/error.h"
#include "sim/base/lookup.h"

namespace foreshard {
namespace {

bool is_engine(const Plan& plan, const std::string& program) {
  return program.empty() && plan.runtime.kind == RuntimeKind::kNative;
}

// What every rank runs, without an interpreter before it.
std::string command_of(const Plan& plan, const std::string& program) {
  if (is_engine(plan, program)) return "foreshard-exec run --plan plan.yaml";
  return program.empty() ? "train.py" : program;
}

bool is_python(const std::string& command) { return contains(command, ".py"); }

std::string torchrun(const Plan& plan, const std::string& program, const LaunchLine& launch, const std::string& head) {
  const std::string command = command_of(plan, program);
  const char* plain = is_python(command) ? "" : "--no-python ";
  if (launch.nodes == 1)
    return fmt::format("torchrun --standalone --nproc-per-node {} {}{}", launch.ranks_per_node, plain, command);
  return fmt::format(
      "torchrun --nnodes {} --nproc-per-node {} --rdzv-id foreshard --rdzv-backend c10d --rdzv-endpoint {}:29500 {}{}",
      launch.nodes, launch.ranks_per_node, head, plain, command);
}

std::string direct(const Plan& plan, const std::string& program) {
  const std::string command = command_of(plan, program);
  return (is_python(command) ? "python3 " : "") + command;
}

std::string environment(const Plan& plan) {
  std::string text;
  if (const std::string conf = alloc_conf(plan.allocator); !conf.empty())
    text = fmt::format("export PYTORCH_ALLOC_CONF={0} PYTORCH_CUDA_ALLOC_CONF={0}\n", conf);
  if (plan.collectives.max_ctas > 0) text += fmt::format("export NCCL_MAX_CTAS={}\n", plan.collectives.max_ctas);
  return text;
}

}

LaunchLine launch_of(const Plan& plan, const Cluster& cluster, Launcher launcher, const std::string& program) {
  LaunchLine launch;
  const std::int64_t world = plan.mesh.world();
  const std::int64_t per_node = std::max<std::int64_t>(1, cluster.node.gpus);
  launch.nodes = (world + per_node - 1) / per_node;
  launch.ranks_per_node = std::min(world, per_node);
  if (launcher == Launcher::kTorchrun && launch.nodes * launch.ranks_per_node != world) {
    throw Error(ExitCode::kMissingCapability,
        fmt::format("launch: {} ranks do not fill nodes of {}: torchrun starts as many on "
                    "each; nearest: --launcher slurm, or mesh of a multiple of {}",
            world, per_node, per_node));
  }
  switch (launcher) {
    case Launcher::kTorchrun: launch.line = torchrun(plan, program, launch, "${HEAD_NODE}"); break;
    case Launcher::kSlurm:
      launch.line = fmt::format(
          "srun --nodes {} --ntasks {} --ntasks-per-node {}{} --export "
          "ALL,MASTER_ADDR=${{HEAD_NODE}},MASTER_PORT=29500 {}",
          launch.nodes, world, launch.ranks_per_node,
          cluster.host_computes ? "" : fmt::format(" --gpus-per-node {}", launch.ranks_per_node),
          direct(plan, program));
      break;
    case Launcher::kOpenMpi:
      launch.line = fmt::format("mpirun -np {} -N {} -x MASTER_ADDR=${{HEAD_NODE}} -x MASTER_PORT=29500 {}", world,
          launch.ranks_per_node, direct(plan, program));
      break;
  }
  return launch;
}

Exported launch_file(const Plan& plan, const Cluster& cluster, Launcher launcher, const std::string& program) {
  const LaunchLine launch = launch_of(plan, cluster, launcher, program);
  const std::string about = fmt::format("# {} ranks of {}: {} nodes of {} (mesh {} x {})\n", plan.mesh.world(),
      plan.model, launch.nodes, launch.ranks_per_node, plan.mesh.replicate, plan.mesh.shard);
  std::string text = "#!/usr/bin/env bash\n";
  switch (launcher) {
    case Launcher::kTorchrun:
      text += about + "# Run it on every node";
      text += launch.nodes > 1 ? "; HEAD_NODE is the host name of the first.\nset -euo pipefail\n"
                                 "HEAD_NODE=${HEAD_NODE:?the host name of the first node}\n"
                               : ".\nset -euo pipefail\n";
      break;
    case Launcher::kSlurm:
      text += fmt::format(
          R"(#SBATCH --job-name=foreshard
#SBATCH --nodes={}
#SBATCH --ntasks={}
#SBATCH --ntasks-per-node={}
{}#SBATCH --exclusive
{}set -euo pipefail
HEAD_NODE=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
)",
          launch.nodes, plan.mesh.world(), launch.ranks_per_node,
          cluster.host_computes ? "" : fmt::format("#SBATCH --gpus-per-node={}\n", launch.ranks_per_node), about);
      break;
    case Launcher::kOpenMpi:
      text += about +
              "# Run it on the first node, with a host file where there are several.\n"
              "set -euo pipefail\nHEAD_NODE=${HEAD_NODE:-$(hostname)}\n";
      break;
  }
  text += environment(plan) + launch.line + "\n";
  ExportLedger ledger;
  ledger.mapped(fmt::format("mesh: {{shard: {}, replicate: {}, inner: {}}}", plan.mesh.shard, plan.mesh.replicate,
                    to_string(plan.mesh.inner)),
      fmt::format("{} ranks, {} on each of {} nodes", plan.mesh.world(), launch.ranks_per_node, launch.nodes),
      plan.mesh.inner == MeshInner::kReplicate
          ? "ranks of a node are neighbours; the program has to make the mesh of them transposed"
          : "");
  ledger.defaulted("port of the rendezvous", "29500", "PyTorch's usual one");
  ledger.ignored("everything else", "the program's: foreshard export --to fsdp2");
  return {text, ledger.take()};
}

}
