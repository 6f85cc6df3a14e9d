// The program foreshard.
#include <malloc.h>

#include "cli/command_line.h"

int main(int argc, char** argv) {
  // What one plan of a search frees the next one takes: without this a tenth of the time goes into
  // giving it back to the system in between.
  mallopt(M_TRIM_THRESHOLD, 256 << 20);
  mallopt(M_TOP_PAD, 16 << 20);
  return foreshard::run_program(foreshard::parse_command_line, argc, argv);
}
