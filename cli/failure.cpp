#include "cli/failure.h"

#include <exception>
#include <new>
#include <string>

#include "cli/output.h"

namespace foreshard {

ExitCode report_failure() {
  try {
    throw;
  } catch (const ConfigError& error) {
    // Starts with the place, file:line:column, where editors look for it.
    write_error(std::string(error.what()) + "\n");
    return error.exit_code();
  } catch (const Error& error) {
    note(error.what());
    return error.exit_code();
  } catch (const std::bad_alloc&) {
    note("not enough memory: what was asked for needs more than this process may have");
    return ExitCode::kInternal;
  } catch (const std::exception& error) {
    note(std::string("internal error: ") + error.what());
    return ExitCode::kInternal;
  }
}

}  // namespace foreshard
