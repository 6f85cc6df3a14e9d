// The option tree of foreshard and its use: command line in, verb and its options out.
#pragma once

#include <string>
#include <vector>

#include "cli/completion.h"
#include "cli/usage.h"
#include "planner/options.h"

namespace foreshard {

// `arguments` without the program's name.
CommandLine parse_command_line(std::vector<std::string> arguments);

// The same tree as data.
CommandTree command_tree();

// The flags that name a job (JobOptions), for the verbs of both programs.
void add_job_flags(CLI::App* verb, JobOptions& job, const char* set_help);
// Without --cluster.
void add_model_flags(CLI::App* verb, JobOptions& job, const char* set_help);

}  // namespace foreshard
