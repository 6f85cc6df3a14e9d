// The launchers are tried in the header's order; the first whose rank variable is set decides.
// Numbers are read strictly, and a rank must be below its size, so that a half-set environment is
// explained instead of waiting for ranks that never come.
#include "exec/launch/launch.h"

#include <fmt/format.h>

#include <cstdint>
#include <cstdlib>

#include "exec/comm/rendezvous.h"
#include "exec/comm/sockets.h"
#include "sim/base/parse.h"

namespace foreshard {
namespace {

// Reads variables of one launcher.
class Variables {
 public:
  Variables(const Environment& environment, std::string launcher)
      : environment_(environment), launcher_(std::move(launcher)) {}

  bool has(const std::string& name) const { return text(name).has_value(); }

  std::optional<std::string> text(const std::string& name) const {
    auto value = environment_(name);
    if (value && value->empty()) value.reset();
    return value;
  }

  std::string needed_text(const std::string& name, const std::string& because) const {
    auto value = text(name);
    if (!value) fail_launch("{} is not set, but {} is ({})", name, because, launcher_);
    return *std::move(value);
  }

  std::optional<int> number(const std::string& name, int least, int most) const {
    const auto value = text(name);
    if (!value) return std::nullopt;
    const auto parsed = parse_number<int>(*value);
    if (!parsed || *parsed < least || *parsed > most)
      fail_launch("{}={}: expected a whole number from {} to {} ({})", name, *value, least, most, launcher_);
    return parsed;
  }

  int needed_number(const std::string& name, const std::string& because, int least) const {
    needed_text(name, because);
    return *number(name, least, kMost);
  }

  // The first of `names` that is set; names[0] when none is.
  std::string first_of(const std::vector<std::string>& names) const {
    for (const std::string& name : names)
      if (has(name)) return name;
    return names.front();
  }

  static constexpr int kMost = 1'000'000;

 private:
  const Environment& environment_;
  std::string launcher_;
};

// The names of a launcher's four numbers; the last two may be empty.
struct Names {
  std::string rank, size, local_rank, local_size;
};

Launch read_ranks(const Variables& reader, const Names& names) {
  Launch launch;
  launch.size = reader.needed_number(names.size, names.rank, 1);
  launch.rank = reader.needed_number(names.rank, names.size, 0);
  if (launch.rank >= launch.size)
    fail_launch("{}={} is not below {}={}", names.rank, launch.rank, names.size, launch.size);
  const auto local_rank = reader.number(names.local_rank, 0, Variables::kMost);
  const auto local_size = reader.number(names.local_size, 1, launch.size);
  launch.local_rank = local_rank.value_or(0);
  launch.local_size = local_size.value_or(1);
  if (local_rank && local_size && *local_rank >= *local_size)
    fail_launch("{}={} is not below {}={}", names.local_rank, *local_rank, names.local_size, *local_size);
  return launch;
}

std::optional<int> master_port(const Variables& reader) { return reader.number("MASTER_PORT", 1, 65535); }

int derived_port(const std::string& run_id) {
  std::uint32_t hash = 2166136261U;  // FNV-1a: the same on every rank, whatever its libraries
  for (const char letter : run_id) hash = (hash ^ static_cast<unsigned char>(letter)) * 16777619U;
  return 20000 + static_cast<int>(hash % 10000U);  // below the ports that Linux hands out itself
}

Launch from_torchrun(const Environment& environment) {
  const bool spawned = environment("FORESHARD_SPAWNED").has_value();
  const bool agent = environment("TORCHELASTIC_RUN_ID").has_value();
  const Variables reader(environment, spawned ? kSpawnLauncher
                                      : agent ? "torchrun"
                                              : "RANK and WORLD_SIZE set by hand");
  Launch launch = read_ranks(reader, {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"});
  launch.launcher = spawned ? kSpawnLauncher : agent ? "torchrun" : "environment";
  if (launch.size > 1) {
    launch.master_address = reader.needed_text("MASTER_ADDR", "WORLD_SIZE");
    reader.needed_text("MASTER_PORT", "WORLD_SIZE");
    launch.master_port = *master_port(reader);
  }
  if (!reader.has("LOCAL_WORLD_SIZE") && is_loopback(launch.master_address)) {
    launch.local_size = launch.size;  // nobody else can reach a loopback
    if (!reader.has("LOCAL_RANK")) launch.local_rank = launch.rank;
  }
  launch.agent_store = reader.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  launch.run_id = fmt::format("{}/{}",
      reader.text(spawned ? "FORESHARD_RUN_ID" : "TORCHELASTIC_RUN_ID")
          .value_or(reader.text("FORESHARD_RUN_ID").value_or("job")),
      reader.text("TORCHELASTIC_RESTART_COUNT").value_or("0"));
  return launch;
}

// Launchers that name no place to meet.
void choose_master(const Variables& reader, Launch& launch) {
  launch.master_port = master_port(reader).value_or(derived_port(launch.run_id));
  if (const auto address = reader.text("MASTER_ADDR")) {
    launch.master_address = *address;
  } else if (launch.local_size == launch.size) {
    launch.master_address = "127.0.0.1";
  } else {
    fail_launch(
        "MASTER_ADDR is not set: {} started {} ranks on several machines and names none "
        "of them; set MASTER_ADDR to the host of rank 0 for all ranks",
        launch.launcher, launch.size);
  }
}

Launch from_open_mpi(const Environment& environment) {
  const Variables reader(environment, "Open MPI");
  Launch launch = read_ranks(reader,
      {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"});
  launch.launcher = "Open MPI";
  launch.run_id = reader.text(reader.first_of({"PMIX_NAMESPACE", "OMPI_MCA_orte_ess_jobid"})).value_or("job");
  choose_master(reader, launch);
  return launch;
}

Launch from_pmi(const Environment& environment, const std::string& rank) {
  const Variables reader(environment, "PMI");
  Launch launch = read_ranks(reader, {rank, reader.first_of({"PMI_SIZE", "PMIX_SIZE", "MPI_SIZE"}),
                                         reader.first_of({"MPI_LOCALRANKID", "PMI_LOCAL_RANK", "PALS_LOCAL_RANKID"}),
                                         reader.first_of({"MPI_LOCALNRANKS", "PMI_LOCAL_SIZE", "PALS_LOCAL_SIZE"})});
  launch.launcher = "PMI";
  launch.run_id = reader.text(reader.first_of({"PMIX_NAMESPACE", "PMI_JOBID"})).value_or("job");
  choose_master(reader, launch);
  return launch;
}

Launch lone_process() { return Launch{.launcher = "none"}; }

std::string slurm_size(const Variables& reader) {
  return reader.first_of({"SLURM_NTASKS", "SLURM_STEP_NUM_TASKS", "SLURM_NPROCS"});
}

// "4(x2),1": four tasks on each of the first two nodes. Only one node tells the local size surely.
int slurm_local_size(const Variables& reader, const Launch& launch) {
  const std::string nodes = reader.first_of({"SLURM_STEP_NUM_NODES", "SLURM_NNODES"});
  return reader.number(nodes, 1, Variables::kMost) == 1 ? launch.size : 1;
}

Launch from_slurm(const Environment& environment) {
  const Variables reader(environment, "Slurm");
  const std::string size = slurm_size(reader);
  if (!reader.has("SLURM_STEP_NODELIST")) {  // the batch script itself is no task of a step
    if (reader.number(size, 1, Variables::kMost).value_or(1) == 1) return lone_process();
    fail_launch(
        "SLURM_STEP_NODELIST is not set, but SLURM_PROCID is, with {}={}: this process is the batch "
        "script's, not one that srun started; start the ranks with srun, or with --spawn N on one machine",
        size, *reader.text(size));
  }
  Launch launch = read_ranks(reader, {"SLURM_PROCID", size, "SLURM_LOCALID", ""});
  launch.launcher = "Slurm";
  launch.local_size = slurm_local_size(reader, launch);
  launch.run_id = fmt::format("{}.{}", reader.text(reader.first_of({"SLURM_JOB_ID", "SLURM_JOBID"})).value_or("job"),
      reader.text(reader.first_of({"SLURM_STEP_ID", "SLURM_STEPID"})).value_or("0"));
  launch.master_port = master_port(reader).value_or(derived_port(launch.run_id));
  launch.master_address =
      reader.text("MASTER_ADDR")
          .value_or(launch.local_size == launch.size ? "127.0.0.1" : first_host(*reader.text("SLURM_STEP_NODELIST")));
  return launch;
}

// srun --mpi=pmi2 sets both with the same numbers: then Slurm knows more. Different numbers: srun
// started a launcher's helper, which started this rank.
bool slurm_started_this(const Variables& reader, const std::string& pmi_rank) {
  return reader.has("SLURM_STEP_NODELIST") && reader.text("SLURM_PROCID") == reader.text(pmi_rank);
}

}

Environment process_environment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    if (value == nullptr || *value == '\0') return std::nullopt;
    return value;
  };
}

Launch resolve_launch(const Environment& environment) {
  const Variables reader(environment, "");
  if (reader.has("RANK") || reader.has("WORLD_SIZE")) return from_torchrun(environment);
  if (reader.has("OMPI_COMM_WORLD_RANK") || reader.has("OMPI_COMM_WORLD_SIZE")) return from_open_mpi(environment);
  const std::string pmi = reader.first_of({"PMI_RANK", "PMIX_RANK"});
  if (reader.has(pmi) && !slurm_started_this(reader, pmi)) return from_pmi(environment, pmi);
  if (reader.has("SLURM_PROCID")) return from_slurm(environment);
  return lone_process();
}

std::string first_host(const std::string& node_list) {
  const auto malformed = [&] {
    fail_launch("SLURM_STEP_NODELIST={}: expected hosts like node1,gpu[07-09,12]", node_list);
  };
  std::string host;
  for (std::size_t i = 0; i < node_list.size() && node_list[i] != ',';) {
    if (node_list[i] != '[') {
      host += node_list[i++];
      continue;
    }
    const std::size_t close = node_list.find(']', i);
    if (close == std::string::npos) malformed();
    const std::string ranges = node_list.substr(i + 1, close - i - 1);
    const std::string first = ranges.substr(0, ranges.find_first_of(",-"));
    if (first.empty() || first.find_first_not_of("0123456789") != std::string::npos) malformed();
    host += first;
    i = close + 1;
  }
  if (host.empty() || host.find_first_of("] \t") != std::string::npos) malformed();
  return host;
}

}
