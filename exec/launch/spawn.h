// Ranks on one machine, started by this process: `foreshard-exec run --spawn N`.
//
// Each rank is a fresh process of `program` that finds its place through resolve_launch() (launcher kSpawnLauncher).
// This process serves the store where they meet, on a free port of the loopback, so that it outlives every rank. Rank 0
// writes to our standard output and error; every line of another rank, on either, goes to our standard error as "[rank
// 1] line". Ranks read nothing from us. No rank outlives this process, however it ends.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace foreshard {

struct SpawnOptions {
  std::string program = "/proc/self/exe";
  std::vector<std::string> arguments;  // argv, the program's name first, without --spawn
  // After a rank failed: what the others have for stopping by themselves, since they learn of it;
  // then SIGTERM; and `last` later SIGKILL.
  std::chrono::milliseconds grace{5000};
  std::chrono::milliseconds last{2000};
  // After SIGINT, SIGTERM or SIGHUP came to us and was passed on: what the ranks have for a proper
  // end (the step, a checkpoint) before SIGTERM. A second signal skips it.
  std::chrono::milliseconds interrupt_grace{30'000};
};

// Starts `ranks` ranks and waits until all are over. Returns 0 when all ended with 0; 130 when interrupted; 7 when a
// rank was killed by a signal, said on standard error and to the other ranks; else the exit code of the first rank that
// failed by itself: 7, the code of a rank that lost another one, counts only when there is no other. Call it before
// this process has threads. Throws Error(kLaunchFailure) when a rank cannot be started.
int spawn_ranks(int ranks, const SpawnOptions& options);

}
