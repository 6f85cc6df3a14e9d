// The program foreshard-null: runs a command on a GPU that is not there (exec/null/), as one rank
// of a world, and writes what it asked of the GPU into a folder (docs/capture.md).

#include "cli/null/null_run.h"
#include "cli/output.h"

int main(int argc, char** argv) {
  using foreshard::ExitCode;
  try {
    const foreshard::NullCommandLine line = foreshard::parse_null_command_line({argv + 1, argv + argc});
    if (!line.usage_error.empty()) {
      foreshard::write_error(line.usage_error);
      return static_cast<int>(ExitCode::kUsage);
    }
    if (line.text.empty()) return foreshard::run_on_null_gpu(line.options);
    foreshard::write_answer(line.text);
    return static_cast<int>(ExitCode::kOk);
  } catch (...) {
    return static_cast<int>(foreshard::report_failure());
  }
}
