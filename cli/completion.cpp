// Each script is a table of the tree in the shell's own words, and as little code as the shell needs.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/command_line.h"
#include "sim/base/error.h"
#include "sim/base/json.h"
#include "sim/base/lookup.h"

namespace foreshard {
namespace {

// In single quotes, for every one of the three shells.
std::string quoted(std::string text) {
  for (std::size_t at = text.find('\''); at != std::string::npos; at = text.find('\'', at + 4))
    text.replace(at, 1, "'\\''");
  return "'" + text + "'";
}

std::vector<std::string> option_names(const std::vector<CommandOption>& options) {
  std::vector<std::string> names;
  for (const CommandOption& option : options) append(names, option.names);
  return names;
}

std::vector<std::string> command_names(const std::vector<Command>& commands) {
  return list_of<std::string>(commands, &Command::name);
}

std::vector<CommandOption> options_of(const CommandTree& tree, const Command& command) {
  std::vector<CommandOption> options = command.options;
  for (const CommandOption& option : tree.options) {
    const bool is_there = std::ranges::any_of(options, [&](const CommandOption& o) { return o.names == option.names; });
    // The version is the program's, not the verb's.
    if (!is_there && option.names.front() != "--version") options.push_back(option);
  }
  return options;
}

// bash

// Lists of words by the variable that holds them, so that a long list stands in the script once.
class WordLists {
 public:
  std::string variable(const std::vector<std::string>& words) {
    if (words.empty()) return "''";
    const auto found = std::ranges::find(lists_, words);
    const auto index = found - lists_.begin();
    if (found == lists_.end()) lists_.push_back(words);
    return fmt::format("$list{}", index);
  }
  std::string definitions() const {
    std::string text;
    for (std::size_t i = 0; i < lists_.size(); ++i)
      text += fmt::format("  local list{}={}\n", i, quoted(fmt::format("{}", fmt::join(lists_[i], " "))));
    return text;
  }

 private:
  std::vector<std::vector<std::string>> lists_;
};

std::string bash_action(const ValueHint& hint, WordLists& lists) {
  if (hint.kind == ValueHint::Kind::kNone) return "";
  return fmt::format(" words={} files={}", lists.variable(hint.words), hint.files ? "yes" : "");
}

std::string bash(const CommandTree& tree) {
  std::string cases;
  WordLists lists;
  const auto value_cases = [&](const std::string& verb, const std::vector<CommandOption>& options) {
    for (const CommandOption& option : options) {
      if (option.value.kind == ValueHint::Kind::kNone) continue;
      cases += fmt::format("    {}:{}){} ;;\n", verb, fmt::join(option.names, fmt::format("|{}:", verb)),
          bash_action(option.value, lists));
    }
  };
  for (const Command& command : tree.commands) {
    const std::vector<CommandOption> options = options_of(tree, command);
    value_cases(command.name, options);
    cases += fmt::format("    {}:*) options={}{} ;;\n", command.name, lists.variable(option_names(options)),
        bash_action(command.argument, lists));
  }
  value_cases("", tree.options);
  cases += fmt::format("    :*) options={} words={} ;;\n", lists.variable(option_names(tree.options)),
      lists.variable(command_names(tree.commands)));
  return fmt::format(
      R"(# bash completion of foreshard; use it with: source <(foreshard completion bash)
_foreshard() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}}
  local verb= options= words= files= i
{}  for ((i = 1; i < COMP_CWORD; i++)); do
    case ${{COMP_WORDS[i]}} in
      {}) verb=${{COMP_WORDS[i]}}; break ;;
    esac
  done
  case $verb:$before in
{}  esac
  COMPREPLY=()
  if [[ $word == -* ]]; then
    COMPREPLY=($(compgen -W "$options" -- "$word"))
    return
  fi
  [[ -n $words ]] && COMPREPLY=($(compgen -W "$words" -- "$word"))
  if [[ -n $files ]]; then
    compopt -o filenames 2>/dev/null
    while IFS= read -r i; do
      COMPREPLY+=("$i")
    done < <(compgen -f -- "$word")
  fi
  [[ ${{COMPREPLY[0]-}} == *= ]] && compopt -o nospace 2>/dev/null
  return 0
}}
complete -F _foreshard foreshard
)",
      lists.definitions(), fmt::join(command_names(tree.commands), "|"), cases);
}

// zsh

std::string zsh_text(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == ':' || c == '[' || c == ']' || c == '\\') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

// Functions for values that _arguments has no short form for.
class ZshFunctions {
 public:
  std::string action(const ValueHint& hint) {
    const std::string words = fmt::format("{}", fmt::join(hint.words, " "));
    if (hint.words.empty()) return hint.files ? "_files" : " ";
    if (hint.files) return call(fmt::format("_alternative 'words:name:({})' 'files:file:_files'", words));
    // No space behind "mesh.shard=".
    if (hint.words.front().ends_with("=")) return call("compadd -S '' -- " + words);
    return fmt::format("({})", words);
  }
  std::string definitions() const {
    std::string text;
    for (std::size_t i = 0; i < bodies_.size(); ++i) text += fmt::format("_foreshard_{}() {{ {} }}\n", i, bodies_[i]);
    return text;
  }

 private:
  std::string call(const std::string& body) {
    const auto found = std::ranges::find(bodies_, body);
    const auto index = found - bodies_.begin();
    if (found == bodies_.end()) bodies_.push_back(body);
    return fmt::format("_foreshard_{}", index);
  }
  std::vector<std::string> bodies_;
};

std::string zsh_option(const CommandOption& option, const std::string& name, ZshFunctions& functions) {
  const bool is_repeated = contains(option.help, "repeated");
  std::string spec = fmt::format("{}{}[{}]", is_repeated ? "*" : "", name, zsh_text(option.help));
  if (option.value.kind != ValueHint::Kind::kNone) spec += ":value:" + functions.action(option.value);
  return quoted(spec);
}

std::string zsh(const CommandTree& tree) {
  std::string verbs;
  std::string cases;
  ZshFunctions functions;
  for (const Command& command : tree.commands) {
    verbs += fmt::format("    {}\n", quoted(fmt::format("{}:{}", command.name, command.help)));
    cases += fmt::format("    {})\n      _arguments", command.name);
    for (const CommandOption& option : options_of(tree, command))
      for (const std::string& name : option.names)
        cases += fmt::format(" \\\n        {}", zsh_option(option, name, functions));
    if (command.argument.kind != ValueHint::Kind::kNone)
      cases += fmt::format(" \\\n        {}", quoted("*:argument:" + functions.action(command.argument)));
    cases += "\n      ;;\n";
  }
  return fmt::format(R"(#compdef foreshard
# zsh completion of foreshard; use it with: source <(foreshard completion zsh)
{}_foreshard() {{
  local -a verbs
  verbs=(
{}  )
  if (( CURRENT == 2 )); then
    _describe 'verb' verbs
    return
  fi
  local verb=$words[2]
  shift words
  (( CURRENT-- ))
  case $verb in
{}  esac
}}
compdef _foreshard foreshard
)",
      functions.definitions(), verbs, cases);
}

// fish

std::string fish_value(const ValueHint& hint) {
  if (hint.kind == ValueHint::Kind::kNone) return "";
  std::string text = hint.files ? " -r -F" : " -x";
  if (!hint.words.empty()) text += " -a " + quoted(fmt::format("{}", fmt::join(hint.words, " ")));
  return text;
}

std::string fish_option(const CommandOption& option) {
  std::string text;
  for (const std::string& name : option.names)
    text += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
  return text + fish_value(option.value) + " -d " + quoted(option.help);
}

std::string fish(const CommandTree& tree) {
  std::string text =
      "# fish completion of foreshard; use it with: foreshard completion fish | source\n"
      "complete -c foreshard -f\n";
  for (const CommandOption& option : tree.options)
    text += fmt::format("complete -c foreshard -n __fish_use_subcommand{}\n", fish_option(option));
  for (const Command& command : tree.commands) {
    text +=
        fmt::format("complete -c foreshard -n __fish_use_subcommand -a {} -d {}\n", command.name, quoted(command.help));
    const std::string when = quoted("__fish_seen_subcommand_from " + command.name);
    for (const CommandOption& option : options_of(tree, command))
      text += fmt::format("complete -c foreshard -n {}{}\n", when, fish_option(option));
    if (command.argument.kind == ValueHint::Kind::kNone) continue;
    std::string argument = command.argument.files ? " -F" : "";
    if (!command.argument.words.empty())
      argument += " -a " + quoted(fmt::format("{}", fmt::join(command.argument.words, " ")));
    text += fmt::format("complete -c foreshard -n {}{}\n", when, argument);
  }
  return text;
}

// json

Json to_json(const ValueHint& hint) {
  if (hint.kind == ValueHint::Kind::kNone) return nullptr;
  return {{"files", hint.files}, {"words", hint.words}};
}

std::string json(const CommandTree& tree) {
  Json verbs = Json::object();
  for (const Command& command : tree.commands) {
    Json options = json_list(options_of(tree, command), [&](const CommandOption& option) -> Json {
      return {{"names", option.names}, {"help", option.help}, {"type", option.type}, {"value", to_json(option.value)}};
    });
    verbs[command.name] = {{"help", command.help}, {"options", options}, {"argument", to_json(command.argument)}};
  }
  return to_text({{"schema", "foreshard.commands/1"}, {"verbs", verbs}});
}

}

std::string completion_script(const CommandTree& tree, std::string_view shell) {
  if (shell == "bash") return bash(tree);
  if (shell == "zsh") return zsh(tree);
  if (shell == "json") return json(tree);
  FORESHARD_CHECK(shell == "fish", "no completion for this shell");
  return fish(tree);
}

}
