// The program foreshard-exec.
#include <cstdio>
#include <cstdlib>

#include "cli/exec/exec_options.h"

int main(int argc, char** argv) {
  const int status = foreshard::run_program(foreshard::parse_exec_command_line, argc, argv);
  std::fflush(nullptr);
  std::_Exit(status);  // LibTorch would take its operators down one by one: a third of a short run
}
