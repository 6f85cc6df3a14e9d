// comm_spawn <ranks> <program> <arguments...>: what --spawn does, for the tests.
#include <cstdio>

#include "exec/launch/spawn.h"
#include "sim/base/error.h"

int main(int argc, char** argv) {
  foreshard::SpawnOptions options = {.program = argv[2],
      .arguments = {argv + 2, argv + argc},
      .grace = std::chrono::milliseconds(2000),
      .last = std::chrono::milliseconds(1000),
      .interrupt_grace = std::chrono::milliseconds(3000)};
  try {
    return foreshard::spawn_ranks(std::stoi(argv[1]), options);
  } catch (const foreshard::Error& error) {
    std::fputs((std::string("error: ") + error.what() + "\n").c_str(), stderr);
    return static_cast<int>(error.exit_code());
  }
}
