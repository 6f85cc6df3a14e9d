// The option tree of foreshard-exec.
#pragma once

#include <string>
#include <vector>

#include "cli/command_line.h"

namespace foreshard {

// `arguments` without the program's name.
CommandLine parse_exec_command_line(const std::vector<std::string>& arguments);

}  // namespace foreshard
