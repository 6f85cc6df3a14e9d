// The program foreshard: parse, call, and turn whatever failed into one sentence and an exit code.
#include <exception>
#include <new>
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

// Of the exception being handled.
ExitCode report_failure() {
  try {
    throw;
  } catch (const foreshard::ConfigError& error) {
    // Starts with the place, file:line:column, where editors look for it.
    foreshard::write_error(std::string(error.what()) + "\n");
    return error.exit_code();
  } catch (const foreshard::Error& error) {
    foreshard::note(error.what());
    return error.exit_code();
  } catch (const std::bad_alloc&) {
    foreshard::note("the plan is too large for the memory of this machine");
    return ExitCode::kInternal;
  } catch (const std::exception& error) {
    foreshard::note(std::string("internal error: ") + error.what());
    return ExitCode::kInternal;
  }
}

}  // namespace

int main(int argc, char** argv) {
  foreshard::handle_signals();
  try {
    return static_cast<int>(run(std::vector<std::string>(argv + 1, argv + argc)));
  } catch (...) {
    return static_cast<int>(report_failure());
  }
}
