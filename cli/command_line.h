// The option tree of foreshard and its use: command line in, verb and its options out. Its data,
// and completion of shells written from them; and what the programs' command lines have in common.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "planner/options.h"
#include "sim/base/error.h"

namespace CLI {
class App;
class Option;
}

namespace foreshard {

// --- of all programs (usage.cpp) ---

// What a command line comes to: text to print at once (help, version, completion), a usage error, or a verb to run.
struct CommandLine {
  std::string text;         // for standard output
  std::string usage_error;  // for standard error; exit code kUsage
  std::function<ExitCode()> verb;
};

// Lets `app` parse. Without text and usage error, a verb was called: which one the caller knows.
CommandLine parse(CLI::App& app, std::vector<std::string> arguments);

// "foreshard" and the arguments, as a shell would read them again.
std::string command_text(const std::vector<std::string>& arguments);

// A verb, and an option, argument or switch of one, with what options.txt says of it.
CLI::App* add_subcommand(CLI::App& app, const char* name);
CLI::Option* described(const CLI::App& verb, CLI::Option* option, const char* name);
template <typename App, typename Value>
CLI::Option* add(App* verb, const char* name, Value& value) {
  return described(*verb, verb->add_option(name, value), name);
}
template <typename App, typename Value>
CLI::Option* flag(App* verb, const char* name, Value&& value) {
  if constexpr (std::is_invocable_v<Value>) return described(*verb, verb->add_flag_callback(name, value), name);
  else return described(*verb, verb->add_flag(name, value), name);
}

std::vector<CLI::App*> verbs_of(CLI::App& app);
std::vector<std::string> names_of(const CLI::Option& option);  // "--json", "-h"

// --- the tree as data (completion.cpp) ---

// What may follow an option or stand as an argument.
struct ValueHint {
  enum class Kind : std::uint8_t { kNone, kAny, kWords };
  Kind kind = Kind::kNone;
  bool files = false;              // file names too
  std::vector<std::string> words;  // kWords
};

struct CommandOption {
  std::vector<std::string> names;  // "--model", "-h"
  std::string help;
  ValueHint value;
  std::string type;  // of the value, as --help names it: "N", "KEY=VALUE"; empty for a switch
};

struct Command {
  std::string name;
  std::string help;
  std::vector<CommandOption> options;
  ValueHint argument;
};

struct CommandTree {
  std::vector<CommandOption> options;  // of the program, valid with every verb
  std::vector<Command> commands;
};

// `shell` is one of bash, zsh, fish, and json: the tree itself, for programs that call this one.
std::string completion_script(const CommandTree& tree, std::string_view shell);

// --- foreshard's ---

// `arguments` without the program's name.
CommandLine parse_command_line(std::vector<std::string> arguments);

// A program's main: whatever fails is one sentence and an exit code.
int run_program(CommandLine (*parse)(std::vector<std::string>), int argc, char** argv);

// The same tree as data.
CommandTree command_tree();

// The flags that name a job (JobOptions), for the verbs of both programs.
void add_job_flags(CLI::App* verb, JobOptions& job);
// Without --cluster.
void add_model_flags(CLI::App* verb, JobOptions& job);

}
