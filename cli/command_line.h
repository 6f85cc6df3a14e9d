// The option tree of foreshard and its use: command line in, verb and its options out.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cli/completion.h"
#include "sim/base/error.h"

namespace foreshard {

// What a command line comes to: text to print at once (help, version, completion), a usage error,
// or a verb to run.
struct CommandLine {
  std::string text;         // for standard output
  std::string usage_error;  // for standard error; exit code kUsage
  std::function<ExitCode()> verb;
};

// `arguments` without the program's name.
CommandLine parse_command_line(std::vector<std::string> arguments);

// The same tree as data.
CommandTree command_tree();

}  // namespace foreshard
