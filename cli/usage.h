// What the programs' command lines have in common: how CLI11's tree is asked, and what is said of a
// line that it does not take.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "sim/base/error.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace foreshard {

// What a command line comes to: text to print at once (help, version, completion), a usage error,
// or a verb to run.
struct CommandLine {
  std::string text;         // for standard output
  std::string usage_error;  // for standard error; exit code kUsage
  std::function<ExitCode()> verb;
};

// Lets `app` parse. Without text and usage error, a verb was called: which one the caller knows.
CommandLine parse(CLI::App& app, std::vector<std::string> arguments);

// "foreshard" and the arguments, as a shell would read them again.
std::string command_text(const std::vector<std::string>& arguments);

std::vector<CLI::App*> verbs_of(CLI::App& app);
std::vector<std::string> names_of(const CLI::Option& option);  // "--json", "-h"

}  // namespace foreshard
