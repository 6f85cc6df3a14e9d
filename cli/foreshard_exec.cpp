// The program foreshard-exec: parse, call, and turn whatever failed into one sentence and an exit
// code.
#include <string>
#include <vector>

#include "cli/exec/exec_options.h"
#include "cli/interrupt.h"
#include "cli/output.h"

int main(int argc, char** argv) {
  using foreshard::ExitCode;
  foreshard::handle_signals();
  try {
    const std::vector<std::string> arguments(argv + 1, argv + argc);
    const foreshard::CommandLine line = foreshard::parse_exec_command_line(arguments);
    if (!line.usage_error.empty()) {
      foreshard::write_error(line.usage_error);
      return static_cast<int>(ExitCode::kUsage);
    }
    if (line.verb) return static_cast<int>(line.verb());
    foreshard::write_answer(line.text);
    return static_cast<int>(ExitCode::kOk);
  } catch (...) {
    return static_cast<int>(foreshard::report_failure());
  }
}
