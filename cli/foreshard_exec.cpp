// The program foreshard-exec.
#include "cli/exec/exec_options.h"

int main(int argc, char** argv) {
  return foreshard::run_program(foreshard::parse_exec_command_line, argc, argv);
}
