// Shell completion and the tree of verbs as JSON, written from the option tree.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace foreshard {

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

}  // namespace foreshard
