// The Python module's one native function: a command line of the program foreshard, executed in
// this process. python/foreshard/__init__.py makes functions, dicts and arrays of it.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
#include <tuple>
#include <vector>

#include "cli/command_line.h"
#include "cli/failure.h"
#include "cli/output.h"

namespace {

// Exit code, answer, messages: what the program returns and writes to its two streams.
std::tuple<int, std::string, std::string> run(const std::vector<std::string>& arguments) {
  foreshard::AnswerCapture capture;
  foreshard::ExitCode code = foreshard::ExitCode::kOk;
  try {
    const foreshard::CommandLine line = foreshard::parse_command_line(arguments);
    if (!line.usage_error.empty()) {
      foreshard::write_error(line.usage_error);
      code = foreshard::ExitCode::kUsage;
    } else if (line.verb) {
      code = line.verb();
    } else {
      foreshard::write_answer(line.text);
    }
  } catch (...) {
    code = foreshard::report_failure();
  }
  return {static_cast<int>(code), capture.answer, capture.errors};
}

}  // namespace

PYBIND11_MODULE(_core, module) {
  module.doc() = "The planner's command line as a function.";
  module.attr("__version__") = FORESHARD_VERSION;
  module.def("run", &run, pybind11::arg("arguments"),
             "Runs `foreshard ARGUMENTS` in this process: (exit code, standard output, standard "
             "error).",
             pybind11::call_guard<pybind11::gil_scoped_release>());
}
