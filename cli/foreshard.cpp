// The program foreshard: parse, call, and turn whatever failed into one sentence and an exit code.
#include <malloc.h>

#include <string>
#include <vector>

#include "cli/command_line.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "sim/base/error.h"

namespace {

using foreshard::ExitCode;

ExitCode run(std::vector<std::string> arguments) {
  const foreshard::CommandLine line = foreshard::parse_command_line(std::move(arguments));
  if (!line.usage_error.empty()) {
    foreshard::write_error(line.usage_error);
    return ExitCode::kUsage;
  }
  if (line.verb) return line.verb();
  foreshard::write_answer(line.text);
  return ExitCode::kOk;
}

}  // namespace

int main(int argc, char** argv) {
  // What one plan of a search frees the next one takes: without this a tenth of the time goes into
  // giving it back to the system in between.
  mallopt(M_TRIM_THRESHOLD, 256 << 20);
  mallopt(M_TOP_PAD, 16 << 20);
  foreshard::handle_signals();
  try {
    return static_cast<int>(run(std::vector<std::string>(argv + 1, argv + argc)));
  } catch (...) {
    return static_cast<int>(foreshard::report_failure());
  }
}
