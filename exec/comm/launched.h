// What a launcher tells a rank of its job; read from the environment by exec/launch.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace foreshard {

struct Launch {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;          // ranks of this machine; 1 also where that is not known
  std::string master_address;  // where the ranks meet; empty for one rank
  int master_port = 0;
  bool agent_store = false;  // the launcher serves the store there, not rank 0
  std::string run_id;        // of the job and its restart; the same for all ranks
  std::string launcher;      // for messages: "torchrun", "Slurm", ...; "none" for a lone process
};

// The value of a variable; an empty one counts as not set.
using Environment = std::function<std::optional<std::string>(const std::string&)>;

// The launcher of ranks started by --spawn.
inline constexpr const char* kSpawnLauncher = "--spawn";

}
