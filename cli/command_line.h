// The option tree of foreshard and its use: command line in, verb and its options out.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cli/completion.h"
#include "planner/options.h"
#include "sim/base/error.h"

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

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

// "foreshard" and the arguments, as a shell would read them again.
std::string command_text(const std::vector<std::string>& arguments);

// The same tree as data.
CommandTree command_tree();

// The flags that name a job (JobOptions), for the verbs of both programs.
void add_job_flags(CLI::App* verb, JobOptions& job, const char* set_help);
// Without --cluster.
void add_model_flags(CLI::App* verb, JobOptions& job, const char* set_help);

// Lets `app` parse. Without text and usage error, a verb was called: which one the caller knows.
CommandLine parse(CLI::App& app, std::vector<std::string> arguments);

// What was wrong with a command line, and where help is. `app` has its verbs as subcommands.
std::string usage_error(CLI::App& app, const CLI::ParseError& error);

}  // namespace foreshard
