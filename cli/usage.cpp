// Unknown words are named with the nearest known one, which CLI11 does not do.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <span>
#include <utility>

#include "cli/command_line.h"
#include "sim/base/embedded.h"
#include "sim/base/lookup.h"
#include "sim/base/spelling.h"

namespace foreshard {
namespace {

// What is behind the name of a verb, or of an option of a verb, or else of all.
using Cells = std::span<const std::string_view>;
Cells row_of(std::string_view verb, std::string_view option) {
  using Rows = std::map<std::pair<std::string_view, std::string_view>, std::vector<std::string_view>>;
  static const Rows kRows = [] {
    Rows rows;
    std::string_view of;
    for (std::vector<std::string_view>& cells : rows_of_table(option_files().front().content)) {
      const std::string_view name = cells.front();
      const bool is_option = name.starts_with("  ");
      if (!is_option) of = name;
      cells.erase(cells.begin());
      rows[{of, is_option ? name.substr(2) : ""}] = std::move(cells);
    }
    return rows;
  }();
  const auto row = kRows.find({verb, option});
  return row != kRows.end() ? row->second : Cells(kRows.at({"*", option}));
}

}

CLI::App* add_subcommand(CLI::App& app, const char* name) {
  const Cells cells = row_of(name, "");
  CLI::App* verb = app.add_subcommand(name, std::string(cells.front()));
  verb->footer(fmt::format("Example:\n  {}", fmt::join(cells.subspan(1), "\n  ")));
  return verb;
}

CLI::Option* described(const CLI::App& verb, CLI::Option* option, const char* name) {
  const Cells cells = row_of(verb.get_name(), name);
  if (cells[0] != "-") option->type_name(std::string(cells[0]));
  return option->description(std::string(cells[1]));
}

std::vector<CLI::App*> verbs_of(CLI::App& app) {
  return app.get_subcommands([](CLI::App*) { return true; });
}

std::vector<std::string> names_of(const CLI::Option& option) {
  auto names = list_of<std::string>(option.get_lnames(), [&](const std::string& name) { return "--" + name; });
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  return names;
}

namespace {

// What others call it.
constexpr std::pair<std::string_view, std::string_view> kOtherWords[] = {{"--config", "--model"},
    {"--cost", "--budget"}, {"--gpu", "--cluster"}, {"--world", "--cluster"}, {"--days", "--deadline"},
    {"--trace", "--run"}, {"--seq-len", "--sequence"}, {"--batch-size", "--micro-batch"}};

// "unknown verb 'predit'; did you mean predict?"
std::string unknown(const std::string& what, const std::string& word, const std::vector<std::string>& known) {
  std::string near = nearest_spelling(word, known);
  for (const auto& [theirs, ours] : kOtherWords)
    if (near.empty() && word == theirs && contains(known, ours)) near = ours;
  const std::string part = word.substr(0, 2) == "--" ? word.substr(1) : "-" + word;  // --batch: of --micro-batch
  for (const std::string& name : near.empty() ? known : std::vector<std::string>())
    if (name.find(part) != name.npos) near += (near.empty() ? "" : ", ") + name;
  return fmt::format("unknown {} {}{}", what, quote(word), near.empty() ? "" : fmt::format("; did you mean {}?", near));
}

// The first word nothing asked for.
std::string unexpected(CLI::App& app, CLI::App* verb, const std::string& word) {
  if (word.starts_with("-")) {
    std::vector<std::string> known;
    for (CLI::App* owner : {verb, &app}) {
      if (owner == nullptr) continue;
      for (const CLI::Option* option : owner->get_options())
        for (std::string& name : names_of(*option)) known.push_back(std::move(name));
    }
    if (word == "--capture" && !contains(known, word))
      return "reads no capture, but its plan: foreshard import CAPTURE --out model.yaml --plan plan.yaml, then --plan "
             "plan.yaml";
    return unknown("option", word.substr(0, word.find('=')), known);
  }
  if (verb != nullptr) {
    const bool is_plan = word.ends_with(".yaml") || word.ends_with(".yml");
    const char* flag = is_plan                   ? "--plan"
                       : word.ends_with(".json") ? "--model"
                       : contains(word, '=')     ? "--set"
                                                 : nullptr;
    return fmt::format(
        "unexpected argument {}{}", quote(word), flag ? fmt::format("; did you mean {} {}?", flag, word) : "");
  }
  if (word == "help") return "no verb 'help'; did you mean --help?";
  auto known = list_of<std::string>(verbs_of(app), &CLI::App::get_name);
  const std::string text = unknown("verb", word, known);
  return text.ends_with("?") ? text : fmt::format("{}; expected {}", text, fmt::join(known, ", "));
}

// What was wrong, and where help is. `app` has its verbs as subcommands.
std::string usage_error(CLI::App& app, const CLI::ParseError& error) {
  const std::vector<CLI::App*> parsed = app.get_subcommands();
  CLI::App* verb = parsed.empty() ? nullptr : parsed.front();
  const std::string program = app.get_name();
  const std::string name = verb == nullptr ? program : program + " " + verb->get_name();
  const std::vector<std::string> rest = app.remaining(true);
  std::string what = error.what();
  if (!rest.empty()) {
    what = unexpected(app, verb, rest.front());
  } else if (verb == nullptr && error.get_name() == "RequiredError") {
    auto known = list_of<std::string>(verbs_of(app), &CLI::App::get_name);
    what = fmt::format("no verb; expected {}", fmt::join(known, ", "));
  }
  const bool is_short = verb != nullptr && rest.empty() && error.get_name() == "RequiredError";
  return fmt::format("{}: {}\n{}{} --help tells more\n", name, what, is_short ? verb->get_footer() + "\n" : "", name);
}

}

std::string command_text(const std::vector<std::string>& arguments) {
  std::string line = "foreshard";
  for (const std::string& argument : arguments) {
    const bool plain =
        !argument.empty() &&
        argument.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=./:,@+%") ==
            std::string::npos;
    line += " ";
    if (plain) {
      line += argument;
      continue;
    }
    line += "'";
    for (char c : argument) c == '\'' ? line += "'\\''" : line += c;
    line += "'";
  }
  return line;
}

CommandLine parse(CLI::App& app, std::vector<std::string> arguments) {
  CommandLine result;
  std::ranges::reverse(arguments);  // as CLI11 takes them
  try {
    app.parse(std::move(arguments));
  } catch (const CLI::CallForHelp&) {
    const std::vector<CLI::App*> parsed = app.get_subcommands();
    result.text = parsed.empty() ? app.help() : parsed.front()->help(app.get_name());
  } catch (const CLI::CallForVersion& version) {
    result.text = std::string(version.what()) + "\n";
  } catch (const CLI::ParseError& error) {
    result.usage_error = usage_error(app, error);
  }
  return result;
}

}
